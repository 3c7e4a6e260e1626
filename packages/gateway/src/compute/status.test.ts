import { create } from "@bufbuild/protobuf";
import { SandboxPhase, SandboxStatusSchema } from "@openshell/api";
import { toTimestamp } from "@openshell/api/times.ts";
import { expect, it } from "vitest";
import { mayStart, type ReadyReason, restartPending, withPhase } from "./status.ts";

const NOW = 1_800_000_000_000;
const inPhase = (phase: SandboxPhase, reason: ReadyReason) =>
  withPhase(create(SandboxStatusSchema), phase, reason, "", NOW);

it.each<[SandboxPhase, ReadyReason, boolean]>([
  [SandboxPhase.STOPPED, "Stopped", true],
  [SandboxPhase.STOPPED, "MachineRestarted", true],
  [SandboxPhase.COMPLETED, "MainProcessCompleted", true],
  [SandboxPhase.ERROR, "MainProcessFailed", true],
  // The files of the sandbox are there after each of these, so nobody has to delete it to go on.
  [SandboxPhase.ERROR, "ProvisioningTimedOut", true],
  [SandboxPhase.ERROR, "ComputeResourceMissing", true],
  [SandboxPhase.ERROR, "SandboxEnded", true],
  [SandboxPhase.ERROR, "StartFailed", true],
  [SandboxPhase.ERROR, "DeleteFailed", false],
  [SandboxPhase.STOPPING, "Stopping", false],
  [SandboxPhase.DELETING, "Deleting", false],
  [SandboxPhase.READY, "DependenciesReady", false],
])("phase %i (%s) may be started: %s", (phase, reason, may) => {
  expect(mayStart(inPhase(phase, reason))).toBe(may);
});

it("a restart is waited for in STARTING alone", () => {
  const status = inPhase(SandboxPhase.STARTING, "RestartPending");
  status.nextRestartTime = toTimestamp(NOW);
  expect(restartPending(status)).toBe(true);
  for (const phase of [SandboxPhase.STOPPING, SandboxPhase.DELETING, SandboxPhase.ERROR, SandboxPhase.READY]) {
    const next = withPhase(status, phase, "Stopping", "", NOW);
    expect([restartPending(next), next.nextRestartTime]).toEqual([false, undefined]);
  }
});
