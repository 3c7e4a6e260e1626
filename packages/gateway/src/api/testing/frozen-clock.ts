import type { Clock } from "@openshell/base";

interface Sleeper {
  readonly at: number;
  wake(): void;
}

/** Time that stands still until a test moves it. */
export class FrozenClock implements Clock {
  #now: number;
  readonly #sleepers = new Set<Sleeper>();

  constructor(now = 1_800_000_000_000) {
    this.#now = now;
  }

  now(): number {
    return this.#now;
  }

  monotonic(): number {
    return this.#now;
  }

  sleep(ms: number, { signal }: { readonly signal?: AbortSignal } = {}): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const sleeper: Sleeper = { at: this.#now + ms, wake: resolve };
      this.#sleepers.add(sleeper);
      signal?.addEventListener("abort", () => {
        if (this.#sleepers.delete(sleeper)) reject(signal.reason);
      });
    });
  }

  /** Sleepers whose time comes within so many milliseconds from now. */
  due(ms: number): number {
    return [...this.#sleepers].filter(({ at }) => at <= this.#now + ms).length;
  }

  /** Moves the time, and wakes whose time has come. */
  advance(ms: number): void {
    this.#now += ms;
    for (const sleeper of [...this.#sleepers].toSorted((a, b) => a.at - b.at)) {
      if (sleeper.at > this.#now || !this.#sleepers.delete(sleeper)) continue;
      sleeper.wake();
    }
  }
}
