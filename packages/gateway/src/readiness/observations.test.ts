import { create } from "@bufbuild/protobuf";
import { ReadinessObservationSchema } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { beforeEach, describe, expect, it } from "vitest";
import { OBSERVATION_TTL_MS } from "./limits.ts";
import { Observations } from "./observations.ts";

const reporter = (sessionId: string) => ({ sandboxId: "box", sessionId, instanceId: "instance" });
const evidence = (sessionId: string, sequence: bigint) => create(ReadinessObservationSchema, { sessionId, sequence });

describe("evidence of readiness", () => {
  let now = 0;
  let observations: Observations;
  beforeEach(() => {
    now = 0;
    observations = new Observations({ now: () => now, monotonic: () => now, sleep: async () => {} });
  });
  const take = (sessionId: string, sequence: bigint, named = sessionId) =>
    observations.accept(reporter(sessionId), evidence(named, sequence));

  it("counts from 1 for each session; what is repeated or older changes nothing and renews nothing", () => {
    expect(take("a", 0n)).toBe(false);
    expect(take("a", 2n)).toBe(true);
    now = OBSERVATION_TTL_MS - 1;
    expect([take("a", 1n), take("a", 2n)]).toEqual([false, false]);
    now += 1;
    expect(observations.of("box")).toMatchObject({ expired: true, observedAt: 0 });
    expect(take("b", 1n)).toBe(true);
    expect(observations.of("box")).toMatchObject({ expired: false, observation: { sessionId: "b" } });
  });

  it("of a session that names another one is not taken", () => {
    expect(take("a", 1n, "b")).toBe(false);
    expect(observations.of("box")).toBeUndefined();
  });

  it("lives as long as its host renews it", () => {
    take("a", 1n);
    for (let round = 0; round < 5; round += 1) {
      now += OBSERVATION_TTL_MS - 1;
      observations.renew(["box", "unknown"]);
    }
    expect(observations.of("box")).toMatchObject({ expired: false, observedAt: now });
    now += OBSERVATION_TTL_MS;
    expect(observations.of("box")?.expired).toBe(true);
  });

  it("ends with its session, and not with the late end of a replaced one", () => {
    take("a", 1n);
    take("b", 1n);
    observations.forget(reporter("a"));
    expect(observations.of("box")).toBeDefined();
    observations.forget(reporter("b"));
    expect(observations.of("box")).toBeUndefined();
  });
});
