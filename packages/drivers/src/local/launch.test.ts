import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { RuntimeError } from "@openshell/base";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { resolveIdentity } from "./identity.ts";
import { captureLayer, demandedMode, planNetwork, probeCapture, shortId } from "./launch.ts";

describe("planNetwork", () => {
  it("carries exactly the program that the mode needs", () => {
    expect(planNetwork("sk_lookup", [443])).toMatchObject({ mode: "sk_lookup", nft: undefined, ports: [] });
    expect(planNetwork("sk_lookup", []).skLookup?.mapFixups).toHaveLength(1);
    expect(planNetwork("nft", [])).toMatchObject({ skLookup: undefined, ports: [] });
    expect(planNetwork("nft", []).nft?.length).toBeGreaterThan(800);
  });
  it("listens on the policy's ports once each, never on the DNS port, within the limit", () => {
    expect(planNetwork("listener_per_port", [8443, 443, 53, 0, 70000, 8443]).ports).toEqual([80, 443, 3128, 8443]);
    const many = Array.from({ length: 500 }, (_, i) => 10_000 + i);
    expect(planNetwork("listener_per_port", many).ports).toHaveLength(128);
  });
});

describe("demandedMode", () => {
  it("knows the three modes and refuses others", () => {
    expect(demandedMode(undefined)).toBeUndefined();
    expect(demandedMode("nft")).toBe("nft");
    expect(() => demandedMode("iptables")).toThrow(/no capture mode/);
  });
});

describe("shortId", () => {
  it("tells ('a','bc') from ('ab','c')", () => {
    expect(shortId("a", "bc")).not.toBe(shortId("ab", "c"));
    expect(shortId("a")).toMatch(/^[0-9a-f]{12}$/);
  });
});

describe("probeCapture", () => {
  let runtimeFolder: string;
  beforeEach(async () => {
    runtimeFolder = await mkdtemp(join(tmpdir(), "probe-"));
  });
  afterEach(() => rm(runtimeFolder, { recursive: true }));
  const identity = resolveIdentity({ runAsUser: "", runAsGroup: "" }, { kind: "user", uid: 5, gid: 5 }, undefined);

  it("takes the first mode that works, ends the trial and leaves no folder", async () => {
    const tried: string[] = [];
    const ended: number[] = [];
    const choice = await probeCapture(
      (plan) => {
        tried.push(plan.network.mode);
        if (plan.network.mode === "sk_lookup") return Promise.reject(new RuntimeError("internal", "no CAP_BPF"));
        return Promise.resolve({ pid: 42, startTicks: 1n, netnsCookie: 1n, isolation: [] });
      },
      { runtimeFolder, identity, demanded: undefined, end: async (pid) => void ended.push(pid) },
    );
    expect([choice.mode, tried, ended]).toEqual(["nft", ["sk_lookup", "nft"], [42]]);
    expect(captureLayer(choice)).toEqual({
      name: "capture_mode",
      enforced: false,
      detail: "nft; sk_lookup: no CAP_BPF",
    });
    expect(await readdir(join(runtimeFolder, "s"))).toEqual([]);
  });
  it("calls the best mode in force", () => {
    expect(captureLayer({ mode: "sk_lookup", refused: [] })).toEqual({
      name: "capture_mode",
      enforced: true,
      detail: "sk_lookup",
    });
  });
  it("fails closed when the demanded mode does not work, with the reason", async () => {
    const launch = () =>
      Promise.reject(new RuntimeError("internal", "user namespaces are off", { next: "Turn them on" }));
    await expect(
      probeCapture(launch, { runtimeFolder, identity, demanded: "sk_lookup", end: async () => {} }),
    ).rejects.toThrow(/user namespaces are off. Turn them on/);
  });
});
