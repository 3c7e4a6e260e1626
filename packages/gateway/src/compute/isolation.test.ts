import { create } from "@bufbuild/protobuf";
import { IsolationReportSchema } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { describe, expect, it } from "vitest";
import type { GatewayConfig } from "../config/config.ts";
import {
  ISOLATION_ANNOTATION,
  isolationAnnotationProblem,
  isolationCondition,
  isolationReason,
  MINIMUM_ISOLATION_ANNOTATION,
  minimumIsolation,
  publicAnnotations,
  storedIsolation,
} from "./isolation.ts";
import { encodeRuntimeFacts, runtimeFacts } from "./runtime-record.ts";

const report = (...layers: readonly (readonly [string, boolean, boolean, string])[]) =>
  create(IsolationReportSchema, {
    captureMode: "nft",
    layers: layers.map(([name, enforced, tested, detail]) => ({ name, enforced, tested, detail })),
  });

describe("the report of isolation", () => {
  it("is complete, or names what is not in force and why; what was tried is said", () => {
    expect(isolationCondition(report(["seccomp", true, true, ""], ["freezer", true, false, "signals"]))).toEqual({
      type: "Isolation",
      status: "True",
      reason: "Complete",
      message: "network capture: nft; tested: seccomp",
    });
    expect(isolationCondition(report(["landlock", false, false, "abi=0"], ["ipv6", false, false, ""]))).toMatchObject({
      status: "False",
      reason: "Reduced",
      message: "not in force: landlock (abi=0), ipv6; network capture: nft",
    });
  });
  it("is shown for the generation that it belongs to, and survives the store", () => {
    const isolation = storedIsolation(report(["landlock", true, true, "abi=7"]), 3n);
    const facts = runtimeFacts({
      runtimeRecord: encodeRuntimeFacts({ ...runtimeFacts({ runtimeRecord: {} }), isolation }),
    });
    const own = { team: "blue" };
    expect(publicAnnotations({ annotations: own, generation: 2n }, facts)).toEqual(own);
    const shown = publicAnnotations({ annotations: own, generation: 3n }, facts);
    expect(JSON.parse(shown[ISOLATION_ANNOTATION]!)).toEqual({
      network_capture: "nft",
      layers: [{ name: "landlock", enforced: true, tested: true, detail: "abi=7" }],
    });
  });
  it("cannot carry terminal control characters or grow without bound", () => {
    const wild = storedIsolation(report(["a\u001b[31m", true, false, `${"x".repeat(5_000)}\n`]), 1n);
    expect(wild.report).not.toMatch(/\\u001b|\\n/);
    expect(wild.report.length).toBeLessThan(1_000);
    const many = storedIsolation(report(...Array.from({ length: 500 }, () => ["x", true, false, ""] as const)), 1n);
    expect(JSON.parse(many.report).layers).toHaveLength(64);
  });
  it("tells a start that failed for isolation from any other", () => {
    expect(isolationReason("isolation_breached")).toBe("IsolationBreached");
    expect(isolationReason("isolation_below_minimum")).toBe("IsolationBelowMinimum");
    expect(isolationReason("canaries_unanswered")).toBe("IsolationNotProven");
    expect([isolationReason("command_not_started"), isolationReason(undefined)]).toEqual([undefined, undefined]);
  });
});

describe("a minimum of isolation", () => {
  it("is the gateway's and the sandbox's together", () => {
    const config = { supervisor: { minimumIsolation: ["landlock"] } } as unknown as GatewayConfig;
    const annotations = { [MINIMUM_ISOLATION_ANNOTATION]: " seccomp, landlock ,," };
    expect(minimumIsolation({ annotations }, config)).toEqual(["landlock", "seccomp"]);
    expect(minimumIsolation({ annotations: {} }, config)).toEqual(["landlock"]);
  });
  it("names layers that exist; the report is nobody's to write", () => {
    expect(isolationAnnotationProblem(MINIMUM_ISOLATION_ANNOTATION, "confined,limit_memory")).toBeUndefined();
    expect(isolationAnnotationProblem(MINIMUM_ISOLATION_ANNOTATION, "constructor")).toContain('"constructor"');
    expect(isolationAnnotationProblem(MINIMUM_ISOLATION_ANNOTATION, "a,".repeat(40))).toContain("at most 32");
    expect(isolationAnnotationProblem(ISOLATION_ANNOTATION, "{}")).toBe("is written by the gateway");
    expect(isolationAnnotationProblem("team", "anything")).toBeUndefined();
  });
});
