import {
  type ComponentResult,
  ConfigApplyOutcome as Outcome,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";

/**
 * What an answer of a supervisor means for the delivery of one component.
 *
 * - `acknowledged`: not sent again until something changes.
 * - `staged`: held by the supervisor until its counterpart is there.
 * - `rejected`: refused; sent again by the reconcile.
 * - `unacknowledged`: not taken up, for a reason that says nothing about the configuration; sent again by the reconcile.
 * - `invalid`: the outcome and the revision in force contradict each other; counts as refused.
 */
export type Verdict = "acknowledged" | "staged" | "rejected" | "unacknowledged" | "invalid";

/** Which revision an outcome must name as the one in force. */
type Expected = "requested" | "none" | "another" | "any";

const RULES: Readonly<Record<Outcome, { readonly verdict: Verdict; readonly expected: Expected }>> = {
  [Outcome.UNSPECIFIED]: { verdict: "invalid", expected: "any" },
  [Outcome.APPLIED]: { verdict: "acknowledged", expected: "requested" },
  [Outcome.IGNORED_DUPLICATE]: { verdict: "acknowledged", expected: "requested" },
  [Outcome.DEGRADED]: { verdict: "acknowledged", expected: "requested" },
  [Outcome.RETAINED_LOCAL_OVERRIDE]: { verdict: "acknowledged", expected: "none" },
  [Outcome.AWAITING_COMPONENT]: { verdict: "staged", expected: "none" },
  [Outcome.FAILED_CLOSED]: { verdict: "rejected", expected: "none" },
  [Outcome.FAILED_RETAINED_LAST_KNOWN_GOOD]: { verdict: "rejected", expected: "another" },
  [Outcome.IGNORED_STALE]: { verdict: "unacknowledged", expected: "any" },
  [Outcome.UNSUPPORTED]: { verdict: "unacknowledged", expected: "any" },
};

/** Judges the answer to a component that was sent at the revision `requested`. */
export function verdictOf(
  { outcome, appliedRevision }: Pick<ComponentResult, "outcome" | "appliedRevision">,
  requested: string,
): Verdict {
  const rule = RULES[outcome] as (typeof RULES)[Outcome] | undefined;
  if (rule === undefined) return "invalid";
  const named = appliedRevision === requested ? "requested" : appliedRevision === "" ? "none" : "another";
  return rule.expected === "any" || rule.expected === named ? rule.verdict : "invalid";
}

/** Whether the component is in force as it was sent, if only in part. */
export function isInForce(outcome: Outcome): boolean {
  return outcome === Outcome.APPLIED || outcome === Outcome.IGNORED_DUPLICATE || outcome === Outcome.DEGRADED;
}
