import type { Clock } from "@openshell/base";
import type { DriverEvent, ProcessRecord } from "../driver.ts";
import { isAlive, type ProcessTable } from "./process-table.ts";

/**
 * How often living inits are looked at. Hosts report an end at once over their socket; this is for sandboxes that have
 * none. One look is one short read of /proc: 20 µs.
 */
const INTERVAL_MS = 500;

interface Watched {
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly record: ProcessRecord;
}

/** Notices that an init is gone and tells every subscriber once. Polls only while somebody subscribes. */
export class InitWatch implements AsyncDisposable {
  readonly #table: ProcessTable;
  readonly #clock: Clock;
  readonly #watched = new Map<string, Watched>();
  /** Pending events by subscriber; bounded, since a sandbox appears at most once a generation. */
  readonly #subscribers = new Set<{ readonly queue: DriverEvent[]; wake: () => void }>();
  readonly #stop = new AbortController();
  #polling: Promise<void> | undefined;

  constructor(table: ProcessTable, clock: Clock) {
    this.#table = table;
    this.#clock = clock;
  }

  /** Watches this generation instead of an earlier one. */
  add(sandboxId: string, generation: bigint, record: ProcessRecord): void {
    this.#watched.set(sandboxId, { sandboxId, generation, record });
    this.#ensurePolling();
  }

  /** An end that the driver itself brings about is no event. */
  remove(sandboxId: string): void {
    this.#watched.delete(sandboxId);
  }

  async *events(signal: AbortSignal): AsyncIterable<DriverEvent> {
    const subscriber = { queue: [] as DriverEvent[], wake: () => {} };
    const onAbort = (): void => subscriber.wake();
    signal.addEventListener("abort", onAbort);
    this.#stop.signal.addEventListener("abort", onAbort);
    this.#subscribers.add(subscriber);
    this.#ensurePolling();
    try {
      while (!signal.aborted && !this.#stop.signal.aborted) {
        const event = subscriber.queue.shift();
        if (event !== undefined) yield event;
        else {
          await new Promise<void>((resolve) => {
            subscriber.wake = resolve;
          });
        }
      }
    } finally {
      this.#subscribers.delete(subscriber);
      signal.removeEventListener("abort", onAbort);
      this.#stop.signal.removeEventListener("abort", onAbort);
    }
  }

  /** Looks once, now. */
  check(): void {
    for (const watched of [...this.#watched.values()]) {
      if (this.#mayLive(watched.record)) continue;
      this.#watched.delete(watched.sandboxId);
      this.report({ kind: "ended", ...watched });
    }
  }

  /** What cannot be seen now is looked at again. */
  #mayLive(record: ProcessRecord): boolean {
    try {
      return isAlive(this.#table, record);
    } catch {
      return true;
    }
  }

  /** Tells every subscriber. */
  report(event: DriverEvent): void {
    for (const subscriber of this.#subscribers) {
      subscriber.queue.push(event);
      subscriber.wake();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await this.#polling;
  }

  #ensurePolling(): void {
    if (this.#polling !== undefined || this.#stop.signal.aborted) return;
    if (this.#watched.size === 0 || this.#subscribers.size === 0) return;
    this.#polling = this.#poll().finally(() => {
      this.#polling = undefined;
      this.#ensurePolling();
    });
  }

  async #poll(): Promise<void> {
    while (this.#watched.size > 0 && this.#subscribers.size > 0) {
      try {
        await this.#clock.sleep(INTERVAL_MS, { signal: this.#stop.signal, unref: true });
      } catch {
        return;
      }
      this.check();
    }
  }
}
