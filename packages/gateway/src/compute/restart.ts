import { SandboxPhase, SandboxRestartPolicy } from "@openshell/api";
import { timestampMs, toTimestamp } from "@openshell/api/times.ts";
import type { SandboxPatch, SandboxRecord } from "../store/types.ts";
import { MAX_INTERRUPTED_STARTS, RESTART_FIRST_MS, RESTART_LAST_MS, STEADY_RUN_MS } from "./limits.ts";
import { encodeRuntimeFacts, runtimeFacts } from "./runtime-record.ts";
import { startingStatus, withPhase } from "./status.ts";

/**
 * What the restart policy says, as changes of a record. Everything that it needs is in the record: a gateway that takes
 * over in between goes on where the one before stopped.
 */

/** How a main process ended. */
export interface MainEnd {
  /** 128 + signal when a signal ended it. */
  readonly code: number;
  /** `exited with code 3` */
  readonly how: string;
  /** Milliseconds since the epoch. */
  readonly at: number;
}

/** Whether a run that was ended by the machine, not by a stop or by itself, is followed by another one. */
export function restartsAtAll({ spec }: Pick<SandboxRecord, "spec">): boolean {
  return spec.restartPolicy === SandboxRestartPolicy.ALWAYS || spec.restartPolicy === SandboxRestartPolicy.ON_FAILURE;
}

/** Whether a run that ended by itself with this code is followed by another one. */
export function restartsAfter(record: Pick<SandboxRecord, "spec">, code: number): boolean {
  return restartsAtAll(record) && (code !== 0 || record.spec.restartPolicy === SandboxRestartPolicy.ALWAYS);
}

/** The wait before the next run, after so many quick ones before the last. Milliseconds. */
export function restartDelay(quickRuns: number): number {
  if (quickRuns === 0) return 0;
  return Math.min(RESTART_FIRST_MS * 2 ** (quickRuns - 1), RESTART_LAST_MS);
}

/** The main process has ended: COMPLETED or ERROR, or STARTING with the time of the next run. */
export function mainEnded(record: SandboxRecord, end: MainEnd, nowMs: number): SandboxPatch {
  const message = `the main process ${end.how}`;
  if (!restartsAfter(record, end.code)) {
    const status =
      end.code === 0
        ? withPhase(record.status, SandboxPhase.COMPLETED, "MainProcessCompleted", message, nowMs)
        : withPhase(record.status, SandboxPhase.ERROR, "MainProcessFailed", message, nowMs);
    status.exitCode = end.code;
    return { status };
  }
  const facts = runtimeFacts(record);
  const startedAt = record.status.mainProcessStartedTime;
  // A clock that was set in between makes one wait shorter or longer, nothing else.
  const ranMs = startedAt === undefined ? 0 : end.at - timestampMs(startedAt);
  const quickRuns = ranMs >= STEADY_RUN_MS ? 0 : facts.quickRuns;
  const delayMs = restartDelay(quickRuns);
  const when = delayMs === 0 ? "at once" : `in ${delayMs / 1000} s`;
  const text = `${message}; the restart policy starts it again ${when}`;
  const status = withPhase(record.status, SandboxPhase.STARTING, "RestartPending", text, nowMs);
  status.exitCode = end.code;
  status.nextRestartTime = toTimestamp(nowMs + delayMs);
  return { status, runtimeRecord: encodeRuntimeFacts({ ...facts, quickRuns: quickRuns + 1 }) };
}

/**
 * The start ended before the main process ran, as when the host is killed between the restrictions and the process:
 * restrictions hold once a generation, so the start is repeated in the next one, at once and whatever the restart policy
 * says. Undefined: it ran, or something ended too many starts in a row.
 */
export function startCutOff(record: SandboxRecord, nowMs: number): SandboxPatch | undefined {
  const facts = runtimeFacts(record);
  if (record.status.mainProcessStartedTime !== undefined || facts.interruptedStarts >= MAX_INTERRUPTED_STARTS)
    return undefined;
  const message = "the start was cut off before the main process ran; it is repeated at once";
  const status = withPhase(record.status, SandboxPhase.STARTING, "RestartPending", message, nowMs);
  status.nextRestartTime = toTimestamp(nowMs);
  const runtimeRecord = encodeRuntimeFacts({ ...facts, interruptedStarts: facts.interruptedStarts + 1 });
  return { status, runtimeRecord };
}

/**
 * The next run, in a generation of its own: somebody asked for it, the restart policy did, or it did because the machine
 * was restarted. The nonce of the new generation belongs to the same transaction.
 */
export function nextRun(record: SandboxRecord, why: "asked" | "ended" | "rebooted", nowMs: number): SandboxPatch {
  const facts = runtimeFacts(record);
  const status = startingStatus(record.status, SandboxPhase.STARTING, nowMs);
  // A start that is repeated is the same run: nothing of it ran yet.
  const repeated = why === "ended" && record.status.exitCode === undefined;
  if (repeated) return { generation: record.generation + 1n, status };
  status.restartCount = why === "asked" ? 0 : record.status.restartCount + 1;
  const quickRuns = why === "ended" ? facts.quickRuns : 0;
  return {
    generation: record.generation + 1n,
    status,
    // Nobody announced that they would attach to this run.
    runtimeRecord: encodeRuntimeFacts({ ...facts, quickRuns, interruptedStarts: 0, awaitAttachment: false }),
  };
}
