import { create } from "@bufbuild/protobuf";
import {
  type ComponentResult,
  ComponentResultSchema,
  ConfigApplyOutcome,
  FailureSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { ConfigurationProblem } from "./compile.ts";

/** Longest text of a failure on the wire, characters. */
export const FAILURE_CHARACTERS = 1_024;

/** In force at the revision that was asked for. */
export function applied(revision: string): ComponentResult {
  return create(ComponentResultSchema, { outcome: ConfigApplyOutcome.APPLIED, appliedRevision: revision });
}

/** In force already. */
export function duplicate(revision: string): ComponentResult {
  return create(ComponentResultSchema, { outcome: ConfigApplyOutcome.IGNORED_DUPLICATE, appliedRevision: revision });
}

/** In force at the revision that was asked for, but only in part. */
export function degraded(problem: ConfigurationProblem, revision: string): ComponentResult {
  return failed(ConfigApplyOutcome.DEGRADED, problem, revision);
}

/** Held back until its counterpart is there. */
export function awaiting(): ComponentResult {
  return create(ComponentResultSchema, { outcome: ConfigApplyOutcome.AWAITING_COMPONENT });
}

/** Not in force; nothing of what came before it is, either. */
export function failedClosed(problem: ConfigurationProblem): ComponentResult {
  return failed(ConfigApplyOutcome.FAILED_CLOSED, problem);
}

/** Not in force; `revision` is, still. */
export function retained(problem: ConfigurationProblem, revision: string): ComponentResult {
  return failed(ConfigApplyOutcome.FAILED_RETAINED_LAST_KNOWN_GOOD, problem, revision);
}

/** Never taken up: the message itself cannot be used. */
export function unsupported(problem: ConfigurationProblem): ComponentResult {
  return failed(ConfigApplyOutcome.UNSUPPORTED, problem);
}

/** Older than what came before it. */
export function stale(problem: ConfigurationProblem): ComponentResult {
  return failed(ConfigApplyOutcome.IGNORED_STALE, problem);
}

function failed(outcome: ConfigApplyOutcome, problem: ConfigurationProblem, appliedRevision = ""): ComponentResult {
  const { code, message, next } = problem;
  const failure = create(FailureSchema, { code, message: message.slice(0, FAILURE_CHARACTERS), next });
  return create(ComponentResultSchema, { outcome, appliedRevision, failure });
}
