import { ConfigApplyOutcome } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { ComponentName, Lane } from "./delivery.ts";

/** Buckets of the time that a session waits for its turn, in seconds. */
export const WAIT_BUCKETS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15] as const;

export interface WaitHistogram {
  /** Waits that took at most the bucket's time, and last those that took longer. */
  readonly counts: number[];
  sum: number;
}

/** What has been delivered so far, counted whether anybody asks or not: a few numbers. */
export class DeliveryStats {
  /** Answers to updates, by component and outcome. */
  readonly results = new Map<ComponentName, Map<string, number>>();
  /** Ends of bootstraps, by outcome. */
  readonly bootstraps = new Map<string, number>();
  readonly waits: Readonly<Record<Lane, WaitHistogram>> = { sandbox: emptyHistogram(), fanout: emptyHistogram() };
  /** Sessions of supervisors that poll, by revision of the protocol. */
  readonly pollingSessions = new Map<string, number>();
  /** Bootstraps that were answered at another revision than was sent. */
  revisionMismatches = 0;

  answered(component: ComponentName, outcome: ConfigApplyOutcome): void {
    const counts = this.results.get(component) ?? new Map<string, number>();
    this.results.set(component, counts);
    count(counts, outcome === ConfigApplyOutcome.UNSPECIFIED ? "not_sent" : nameOf(outcome));
  }

  bootstrapped(outcome: "applied" | "refused" | "failed" | "mismatch"): void {
    count(this.bootstraps, outcome);
    if (outcome === "mismatch") this.revisionMismatches += 1;
  }

  polling(revision: number): void {
    count(this.pollingSessions, String(revision));
  }

  waited(lane: Lane, seconds: number): void {
    const histogram = this.waits[lane];
    const bucket = WAIT_BUCKETS.findIndex((limit) => seconds <= limit);
    histogram.counts[bucket < 0 ? WAIT_BUCKETS.length : bucket]! += 1;
    histogram.sum += seconds;
  }
}

/** `FAILED_CLOSED` is `failed_closed`; numbers that nobody knows are `unknown`. */
function nameOf(outcome: ConfigApplyOutcome): string {
  return (ConfigApplyOutcome[outcome] ?? "unknown").toLowerCase();
}

function count(counts: Map<string, number>, name: string): void {
  counts.set(name, (counts.get(name) ?? 0) + 1);
}

function emptyHistogram(): WaitHistogram {
  return { counts: Array.from({ length: WAIT_BUCKETS.length + 1 }, () => 0), sum: 0 };
}
