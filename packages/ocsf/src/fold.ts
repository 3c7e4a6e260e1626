/**
 * A flood of equal denials becomes a few events and a count. Within one second the first `perSecond` of each kind pass;
 * the rest is counted and told when the second is over. Kinds are bounded as well: beyond them all share one count, so
 * an agent that invents host names cannot write more than one that repeats itself.
 */
import type { OcsfEvent } from "./events.ts";

export const FoldLimit = {
  /** Identical denials in one second that are written one by one. */
  perSecond: 20,
  /** Kinds of denials told apart in one second. */
  kinds: 256,
} as const;

interface Kind {
  seen: number;
  /** The last one that was not written. */
  last: OcsfEvent | undefined;
}

export class DenialFolder {
  readonly #kinds = new Map<string, Kind>();
  #second = -1;

  /** Events to write now: those of a second that ended, then this one unless it is folded. */
  offer(event: OcsfEvent): OcsfEvent[] {
    if (!isDenial(event)) return [event];
    const second = Math.floor(event.time / 1000);
    const due = second === this.#second ? [] : this.drain();
    this.#second = second;
    const key = kindOf(event);
    let kind = this.#kinds.get(key);
    if (kind === undefined) {
      const full = this.#kinds.size >= FoldLimit.kinds;
      kind = full
        ? (this.#kinds.get("*") ?? { seen: FoldLimit.perSecond, last: undefined })
        : { seen: 0, last: undefined };
      this.#kinds.set(full ? "*" : key, kind);
    }
    kind.seen += 1;
    if (kind.seen <= FoldLimit.perSecond) return [...due, event];
    kind.last = event;
    return due;
  }

  /** Something is counted and not yet told. */
  get pending(): boolean {
    for (const kind of this.#kinds.values()) if (kind.last !== undefined) return true;
    return false;
  }

  /** One event for each kind that was folded, with the number of those left out. */
  drain(): OcsfEvent[] {
    const events: OcsfEvent[] = [];
    for (const [key, kind] of this.#kinds) {
      if (kind.last === undefined) continue;
      const count = kind.seen - FoldLimit.perSecond;
      events.push({
        ...kind.last,
        attributes: { ...kind.last.attributes, [key === "*" ? "folded_other" : "folded"]: count },
      });
    }
    this.#kinds.clear();
    this.#second = -1;
    return events;
  }
}

function isDenial(event: OcsfEvent): boolean {
  return (event.class === "network" || event.class === "http") && event.action === "denied";
}

/** Everything but time and process id. */
function kindOf(event: OcsfEvent): string {
  if (event.class === "network") {
    return JSON.stringify([
      "n",
      event.process?.name,
      event.destination.host,
      event.destination.port,
      event.rule,
      event.reason,
    ]);
  }
  if (event.class === "http") {
    return JSON.stringify(["h", event.process?.name, event.method, event.url, event.rule, event.reason]);
  }
  return "";
}
