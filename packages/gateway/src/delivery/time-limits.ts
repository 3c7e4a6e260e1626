import type { Clock } from "@openshell/base";
import { DONE } from "../sessions/reader.ts";

/**
 * Many waits of one length with a single timer: those that are almost always called off cost an entry of a set each, and
 * no timer and no signal.
 */
export class TimeLimits {
  readonly #clock: Clock;
  readonly #limitMs: number;
  /** In the order of their ends. */
  readonly #open = new Set<{ readonly end: number; readonly late: () => void }>();
  readonly #closed = new AbortController();
  #sleeping = false;

  constructor(clock: Clock, limitMs: number) {
    this.#clock = clock;
    this.#limitMs = limitMs;
  }

  /** Calls `late` after the limit, unless what it returns is called before. */
  begin(late: () => void): () => void {
    if (this.#closed.signal.aborted) return () => {};
    const entry = { end: this.#clock.monotonic() + this.#limitMs, late };
    this.#open.add(entry);
    if (!this.#sleeping) void this.#watch();
    return () => void this.#open.delete(entry);
  }

  /** Nothing is late any more. */
  close(): void {
    this.#open.clear();
    this.#closed.abort(DONE);
  }

  async #watch(): Promise<void> {
    this.#sleeping = true;
    const { signal } = this.#closed;
    for (const entry of this.#open) {
      const left = entry.end - this.#clock.monotonic();
      if (left > 0) await this.#clock.sleep(left, { signal, unref: true }).catch(() => {});
      if (this.#open.delete(entry)) entry.late();
    }
    this.#sleeping = false;
  }
}
