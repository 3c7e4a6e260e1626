import type { Clock } from "@openshell/base";

/**
 * How long the output of a process that has ended stays open. Time that its reader takes does not count: only a process
 * that holds the streams open may be given up, never a caller who is slow.
 */
export class HeldOutput {
  readonly #clock: Clock;
  #readers = 0;
  #since = 0;
  #excusedMs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Awaits the reader; the time it takes is excused. */
  async excuse<T>(reading: Promise<T>): Promise<T> {
    if (this.#readers === 0) this.#since = this.#clock.monotonic();
    this.#readers += 1;
    try {
      return await reading;
    } finally {
      this.#readers -= 1;
      if (this.#readers === 0) this.#excusedMs += this.#clock.monotonic() - this.#since;
    }
  }

  /** Resolves once `ms` have passed that are not excused. Rejects with the signal's reason. */
  async limit(ms: number, signal: AbortSignal): Promise<void> {
    const start = this.#countedMs();
    for (;;) {
      const left = ms - (this.#countedMs() - start);
      if (left <= 0) return;
      await this.#clock.sleep(left, { signal, unref: true });
    }
  }

  #countedMs(): number {
    const now = this.#clock.monotonic();
    return now - this.#excusedMs - (this.#readers > 0 ? now - this.#since : 0);
  }
}
