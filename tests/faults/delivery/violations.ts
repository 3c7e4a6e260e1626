import type { Arrival } from "./origin.ts";

/** One change, as the client who made it knows it. Wall clock, milliseconds. */
export interface Change {
  readonly kind: "policy" | "credential";
  /** Version of the policy from 0 on, or serial number of the credential. */
  readonly value: number;
  readonly sentAt: number;
  /** When it was known to be in force. */
  acknowledgedAt?: number;
}

/**
 * What is wrong with the arrivals from one sandbox whose changes were made one after the other: each must have been
 * allowed by one of the states that the store was in, none before its change was sent, none older than what was acknowledged
 * before it began, and none older than the one before it.
 */
export function violations(changes: readonly Change[], arrivals: readonly Arrival[]): readonly string[] {
  const states = [{ policy: 0, serial: 0, sentAt: 0, acknowledgedAt: undefined as number | undefined }];
  for (const { kind, value, sentAt, acknowledgedAt } of changes) {
    const { policy, serial } = states.at(-1)!;
    const state = kind === "policy" ? { policy: value, serial } : { policy, serial: value };
    states.push({ ...state, sentAt, acknowledgedAt });
  }
  const found: string[] = [];
  let reached = 0;
  for (const { version, serial, startedAt, arrivedAt } of arrivals) {
    const acknowledged = states.findLastIndex(({ acknowledgedAt = Infinity }) => acknowledgedAt < startedAt);
    const from = Math.max(reached, acknowledged);
    const matches = (state: (typeof states)[number]): boolean =>
      (version === undefined || state.policy === version) && state.serial === serial && state.sentAt <= arrivedAt;
    const at = states.findIndex((state, index) => index >= from && matches(state));
    if (at >= 0) {
      reached = at;
      continue;
    }
    const earlier = states.findLastIndex(matches);
    const cause =
      earlier < 0
        ? "never was a state of the store"
        : `is state ${earlier}, after state ${from} was ${acknowledged > reached ? "acknowledged" : "seen"}`;
    const policy = version === undefined ? "some policy" : version < 0 ? "a refused policy" : `policy ${version}`;
    found.push(`${policy} with credential ${serial ?? "of nobody"} at ${arrivedAt} ${cause}`);
  }
  return found;
}
