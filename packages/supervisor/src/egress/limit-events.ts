import { DNS_TCP_CONNECTIONS, type EgressLimits, LEAVES_PER_SECOND } from "./limits.ts";

/** Limits of one sandbox that its traffic can meet. Names are those of the settings where there is one. */
export type LimitName = keyof EgressLimits | "dnsConnections" | "tlsHostsPerSecond";

/** A limit was met; repeated while that goes on, at most every {@link LIMIT_EVENT_MS}. */
export interface LimitEvent {
  /** As in configuration and documentation: `flows`, `dns_queries_per_second`, … */
  readonly limit: string;
  readonly value: number;
  /** What happens beyond it. */
  readonly effect: string;
  readonly next: string;
  /** How often it was met since the event before, this time included. */
  readonly times: number;
}

/** A flood of what is beyond a limit must not become a flood of events. */
export const LIMIT_EVENT_MS = 10_000;

const FEWER = "Open fewer connections at once, or raise the sandbox's limits.";
const TEXTS: Readonly<Record<LimitName, { readonly effect: string; readonly next: string }>> = {
  flows: { effect: "further connections wait until one ends", next: FEWER },
  pendingHandshakes: {
    effect: "further connections wait until those that are open have shown what they are",
    next: FEWER,
  },
  newFlowsPerSecond: { effect: "further connections wait for their turn", next: "Open connections less often." },
  bufferedBytes: {
    effect: "nothing more is read until somebody takes what was read",
    next: "Read responses faster, or fewer at once.",
  },
  dnsQueriesPerSecond: {
    effect: "questions wait for their turn, and are lost beyond a second's worth",
    next: "Ask less often: an answer holds for a few seconds.",
  },
  dnsNames: {
    effect: "no further name that the policy mentions resolves",
    next: "Use fewer different names, or start the sandbox again.",
  },
  dnsConnections: { effect: "further connections for DNS are closed", next: "Ask over UDP." },
  tlsHostsPerSecond: {
    effect: "connections to hosts that were not used before are closed",
    next: "Wait a moment, or contact fewer different hosts.",
  },
};

interface Seen {
  since: number;
  times: number;
}

/** Turns every meeting with a limit into one event now and then. */
export class LimitEvents {
  readonly #values: Readonly<Record<LimitName, number>>;
  readonly #now: () => number;
  readonly #emit: (event: LimitEvent) => void;
  readonly #seen = new Map<LimitName, Seen>();

  /** `now`: monotonic milliseconds. */
  constructor(limits: EgressLimits, now: () => number, emit: (event: LimitEvent) => void) {
    this.#values = {
      ...limits,
      dnsConnections: DNS_TCP_CONNECTIONS,
      tlsHostsPerSecond: LEAVES_PER_SECOND,
    };
    this.#now = now;
    this.#emit = emit;
  }

  reached(name: LimitName): void {
    const now = this.#now();
    const seen = this.#seen.get(name);
    if (seen === undefined) this.#seen.set(name, { since: now, times: 0 });
    else {
      seen.times += 1;
      if (now - seen.since < LIMIT_EVENT_MS) return;
    }
    this.#tell(name, seen?.times ?? 1);
    this.#seen.set(name, { since: now, times: 0 });
  }

  /** Tells what was counted and not told. */
  flush(): void {
    for (const [name, { times }] of this.#seen) if (times > 0) this.#tell(name, times);
    this.#seen.clear();
  }

  #tell(name: LimitName, times: number): void {
    const limit = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    this.#emit({ limit, value: this.#values[name], ...TEXTS[name], times });
  }
}
