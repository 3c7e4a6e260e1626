import type { ReadinessObservation } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { beforeEach, describe, expect, it } from "vitest";
import { ReadinessTracker } from "./readiness.ts";

const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe("readiness", () => {
  let tracker: ReadinessTracker;
  let told: ReadinessObservation[];
  let reads: boolean;
  const observe = (sessionId: string): void =>
    tracker.observe({
      sessionId,
      instanceId: "i",
      send: (observation) => {
        if (reads) told.push(observation);
        return reads;
      },
    });

  beforeEach(() => {
    tracker = new ReadinessTracker();
    told = [];
    reads = true;
  });

  it("tells what is in force when a session begins, and nothing while nothing changes", async () => {
    tracker.set({ policyActive: true, policyHash: "h" });
    observe("s1");
    tracker.set({ policyActive: true });
    await settle();
    expect(told).toMatchObject([{ sessionId: "s1", sequence: 1n, policyActive: true, policyHash: "h" }]);
  });
  it("tells changes that belong together as one", async () => {
    observe("s1");
    tracker.set({ policyActive: true });
    tracker.set({ credentialsInstalled: true });
    await settle();
    expect(told.map(({ sequence, credentialsInstalled }) => [sequence, credentialsInstalled])).toEqual([
      [1n, false],
      [2n, true],
    ]);
  });
  it("names the main process while it runs, and why something is not in force", async () => {
    observe("s1");
    tracker.set({ processRunning: true, problem: { code: "invalid_policy", message: "m".repeat(2_000), next: "n" } });
    await settle();
    expect(told[1]).toMatchObject({ processInstanceId: "i", failure: { code: "invalid_policy", next: "n" } });
    expect(told[1]!.failure!.message).toHaveLength(1_024);
    tracker.set({ processRunning: false, problem: undefined });
    await settle();
    expect(told[2]).toMatchObject({ processInstanceId: "" });
    expect(told[2]!.failure).toBeUndefined();
  });
  it("counts anew in each session, and is not ended by the late end of an older one", async () => {
    observe("s1");
    tracker.set({ policyActive: true });
    await settle();
    observe("s2");
    tracker.unobserve("s1");
    tracker.set({ policyActive: false });
    await settle();
    expect(told.map(({ sessionId, sequence }) => [sessionId, sequence])).toEqual([
      ["s1", 1n],
      ["s1", 2n],
      ["s2", 1n],
      ["s2", 2n],
    ]);
  });
  it("vouches only for what was told", async () => {
    expect(tracker.vouched).toBe(false);
    observe("s1");
    expect(tracker.vouched).toBe(true);
    tracker.set({ policyActive: true });
    expect(tracker.vouched).toBe(false);
    await settle();
    expect(tracker.vouched).toBe(true);
    reads = false;
    tracker.set({ policyActive: false });
    await settle();
    expect(tracker.vouched).toBe(false);
    tracker.unobserve("s1");
    expect(tracker.vouched).toBe(false);
  });
});
