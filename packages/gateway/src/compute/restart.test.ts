import { create } from "@bufbuild/protobuf";
import { SandboxPhase, SandboxRestartPolicy, SandboxSpecSchema, SandboxStatusSchema } from "@openshell/api";
import { timestampMs, toTimestamp } from "@openshell/api/times.ts";
import { describe, expect, it } from "vitest";
import type { SandboxRecord } from "../store/types.ts";
import { mainEnded, nextRun, restartDelay, restartsAfter } from "./restart.ts";
import { encodeRuntimeFacts, runtimeFacts } from "./runtime-record.ts";
import { readyCondition, restartPending } from "./status.ts";

const { ALWAYS, NEVER, ON_FAILURE, UNSPECIFIED } = SandboxRestartPolicy;
const NOW = 1_800_000_000_000;

function record(restartPolicy: SandboxRestartPolicy, quickRuns = 0, startedAt = NOW): SandboxRecord {
  const facts = {
    caller: undefined,
    defaultCommand: false,
    awaitAttachment: true,
    stagedArchive: false,
    interruptedStarts: 0,
    launchedGeneration: 3n,
    bootId: "b",
  };
  return {
    generation: 3n,
    spec: create(SandboxSpecSchema, { restartPolicy }),
    status: create(SandboxStatusSchema, {
      phase: SandboxPhase.READY,
      mainProcessStartedTime: toTimestamp(startedAt),
      restartCount: 5,
    }),
    runtimeRecord: encodeRuntimeFacts({ ...facts, quickRuns }),
  } as unknown as SandboxRecord;
}

/** The end of a run of `ranMs`, and what follows. */
function end(policy: SandboxRestartPolicy, code: number, quickRuns = 0, ranMs = 0) {
  const before = record(policy, quickRuns, NOW - ranMs);
  const patch = mainEnded(before, { code, how: `exited with code ${code}`, at: NOW }, NOW);
  const next = patch.status!.nextRestartTime;
  return {
    status: patch.status!,
    waitMs: next === undefined ? undefined : timestampMs(next) - NOW,
    after: { ...before, ...patch } as SandboxRecord,
  };
}

describe("the restart policy", () => {
  it.each([
    [UNSPECIFIED, false, false],
    [NEVER, false, false],
    [ON_FAILURE, false, true],
    [ALWAYS, true, true],
  ])("%i: after code 0 %s, after another %s", (policy, afterZero, afterFailure) => {
    expect(restartsAfter(record(policy), 0)).toBe(afterZero);
    expect(restartsAfter(record(policy), 1)).toBe(afterFailure);
    expect(restartsAfter(record(policy), 128 + 9)).toBe(afterFailure);
    expect(restartPending(end(policy, 0).status)).toBe(afterZero);
    expect(restartPending(end(policy, 1).status)).toBe(afterFailure);
  });

  it("waits 0, 1, 2, 4 … seconds, 180 at most, however often", () => {
    const waits = Array.from({ length: 11 }, (_, quick) => restartDelay(quick) / 1000);
    expect(waits).toEqual([0, 1, 2, 4, 8, 16, 32, 64, 128, 180, 180]);
    expect(restartDelay(100_000)).toBe(180_000);
    for (const [quick, seconds] of waits.entries()) expect(end(ALWAYS, 1, quick).waitMs).toBe(seconds * 1000);
  });

  it("begins anew after a run of 10 s, and not a millisecond before", () => {
    expect(end(ALWAYS, 1, 4, 9_999)).toMatchObject({ waitMs: 8_000 });
    const steady = end(ALWAYS, 1, 4, 10_000);
    expect(steady.waitMs).toBe(0);
    expect(runtimeFacts(steady.after).quickRuns).toBe(1);
    expect(end(ALWAYS, 1, 4, -3_600_000)).toMatchObject({ waitMs: 8_000 });
  });

  it("shows a restart that is waited for as STARTING with the status of the run that has ended", () => {
    const { status } = end(ON_FAILURE, 7, 2);
    expect(status).toMatchObject({ phase: SandboxPhase.STARTING, exitCode: 7, restartCount: 5 });
    expect(readyCondition(status)).toMatchObject({
      status: "False",
      reason: "RestartPending",
      message: "the main process exited with code 7; the restart policy starts it again in 2 s",
    });
  });

  it.each([
    [0, SandboxPhase.COMPLETED, "MainProcessCompleted"],
    [7, SandboxPhase.ERROR, "MainProcessFailed"],
  ])("leaves code %i without a restart at rest", (code, phase, reason) => {
    const { status, waitMs } = end(NEVER, code);
    expect(status).toMatchObject({ phase, exitCode: code });
    expect(readyCondition(status)?.reason).toBe(reason);
    expect(waitMs).toBeUndefined();
  });

  it("counts its own restarts, forgets them at a start that is asked for, and waits for nobody's attachment", () => {
    const ended = end(ALWAYS, 1, 3).after;
    const next = nextRun(ended, "ended", NOW);
    expect(next).toMatchObject({ generation: 4n, status: { phase: SandboxPhase.STARTING, restartCount: 6 } });
    expect(next.status!.exitCode).toBeUndefined();
    expect(next.status!.nextRestartTime).toBeUndefined();
    const facts = runtimeFacts({ runtimeRecord: next.runtimeRecord! });
    expect(facts).toMatchObject({
      quickRuns: 4,
      awaitAttachment: false,
      stagedArchive: false,
      interruptedStarts: 0,
      launchedGeneration: 3n,
      bootId: "b",
    });
    const asked = nextRun(ended, "asked", NOW);
    expect(asked.status!.restartCount).toBe(0);
    expect(runtimeFacts({ runtimeRecord: asked.runtimeRecord! }).quickRuns).toBe(0);
    expect(nextRun(ended, "rebooted", NOW).status!.restartCount).toBe(6);
  });
});
