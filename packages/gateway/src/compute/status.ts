import { clone, create } from "@bufbuild/protobuf";
import {
  type SandboxCondition,
  SandboxConditionSchema,
  SandboxPhase,
  type SandboxStatus,
  SandboxStatusSchema,
} from "@openshell/api";
import { toTimestamp } from "@openshell/api/times.ts";
import type { ReadyReason } from "@openshell/base/catalogue/conditions.ts";

import type { SandboxPatch, SandboxRecord } from "../store/types.ts";

export type { ReadyReason } from "@openshell/base/catalogue/conditions.ts";

export interface ConditionFacts {
  readonly type: string;
  readonly status: "True" | "False" | "Unknown";
  readonly reason: string;
  readonly message: string;
}

/** Characters of a condition's message. */
export const MAX_MESSAGE = 1024;

/** A copy of the status with one condition set; its transition time changes only with its status. */
export function withCondition(status: SandboxStatus, facts: ConditionFacts, nowMs: number): SandboxStatus {
  const next = clone(SandboxStatusSchema, status);
  const before = next.conditions.find((condition) => condition.type === facts.type);
  const kept = before?.status === facts.status ? before.transitionTime : undefined;
  const condition = create(SandboxConditionSchema, {
    ...facts,
    message: facts.message.slice(0, MAX_MESSAGE),
    transitionTime: kept ?? toTimestamp(nowMs),
  });
  if (before === undefined) next.conditions.push(condition);
  else next.conditions[next.conditions.indexOf(before)] = condition;
  return next;
}

/** A copy of the status in another phase, with the `Ready` condition that explains it. */
export function withPhase(
  status: SandboxStatus,
  phase: SandboxPhase,
  reason: ReadyReason,
  message: string,
  nowMs: number,
): SandboxStatus {
  const ready = phase === SandboxPhase.READY ? "True" : "False";
  const next = withCondition(status, { type: "Ready", status: ready, reason, message }, nowMs);
  next.phase = phase;
  // A restart is waited for in STARTING alone: whoever wants something else calls it off.
  if (phase !== SandboxPhase.STARTING) delete next.nextRestartTime;
  return next;
}

export function readyCondition(status: SandboxStatus): SandboxCondition | undefined {
  return status.conditions.find((condition) => condition.type === "Ready");
}

/** The status of a sandbox that starts (again): what the last run left is gone, what was durable stays. */
export function startingStatus(status: SandboxStatus, phase: SandboxPhase, nowMs: number): SandboxStatus {
  const next = withPhase(status, phase, "Starting", "the sandbox is being started", nowMs);
  delete next.exitCode;
  delete next.mainProcessStartedTime;
  delete next.nextRestartTime;
  delete next.configurationAdmission;
  next.mainProcessInstanceId = "";
  next.conditions = next.conditions.filter(({ type }) => type !== "Isolation");
  return next;
}

/** The main process has ended, and the restart policy starts it again at `next_restart_time`. */
export function restartPending(status: SandboxStatus): boolean {
  return status.phase === SandboxPhase.STARTING && status.nextRestartTime !== undefined;
}

/** Phases in which a sandbox is meant to run. */
export function wantsToRun(phase: SandboxPhase): boolean {
  return (
    phase === SandboxPhase.PROVISIONING ||
    phase === SandboxPhase.STARTING ||
    phase === SandboxPhase.READY ||
    phase === SandboxPhase.UNKNOWN
  );
}

/** Phases after which nothing happens until somebody asks for it. */
export function isTerminal(phase: SandboxPhase): boolean {
  return phase === SandboxPhase.COMPLETED || phase === SandboxPhase.ERROR || phase === SandboxPhase.STOPPED;
}

/** Reasons of phase ERROR from which StartSandbox may try again: nothing of the sandbox was lost. */
const STARTABLE_ERRORS: ReadonlySet<string> = new Set<ReadyReason>([
  "MainProcessFailed",
  "ProvisioningTimedOut",
  "ComputeResourceMissing",
  "SandboxEnded",
  "DiskLimitExceeded",
  "VolumeTampered",
  "IsolationBreached",
  "IsolationBelowMinimum",
  "IsolationNotProven",
  "StartFailed",
  "StopFailed",
]);

/** Whether StartSandbox is allowed now. */
export function mayStart(status: SandboxStatus): boolean {
  if (status.phase === SandboxPhase.STOPPED || status.phase === SandboxPhase.COMPLETED) return true;
  return status.phase === SandboxPhase.ERROR && STARTABLE_ERRORS.has(readyCondition(status)?.reason ?? "");
}

/** The public exit code of a main process: its own, or 128 + the signal that ended it. */
export function publicExitCode(exit: { case: "exitCode" | "signal"; value: number }): number {
  return exit.case === "exitCode" ? exit.value : 128 + exit.value;
}

/** The change that makes a sandbox one that is being deleted. */
export function deletingPatch(record: SandboxRecord, nowMs: number): SandboxPatch {
  const message = "the sandbox is being deleted";
  return {
    deletionAt: record.deletionAt ?? nowMs,
    status: withPhase(record.status, SandboxPhase.DELETING, "Deleting", message, nowMs),
  };
}

/** Why a sandbox in this phase does not get on while a step that failed is repeated; undefined for phases without steps. */
export function failedStepReason(phase: SandboxPhase): ReadyReason | undefined {
  if (phase === SandboxPhase.DELETING) return "DeleteFailed";
  if (phase === SandboxPhase.STOPPING) return "StopFailed";
  return phase === SandboxPhase.PROVISIONING || phase === SandboxPhase.STARTING ? "DependenciesNotReady" : undefined;
}
