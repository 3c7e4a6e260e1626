import { mutationLockTimeout, resourceExhausted } from "@openshell/api/errors.ts";
import type { Clock } from "@openshell/base";
import { DONE } from "../sessions/reader.ts";

/** A change waits so long for those before it. */
const LOCK_WAIT_MS = 10_000;
/** Changes that may wait for one object. */
const MAX_WAITING = 64;

/**
 * Changes of one object one after the other, so that honest concurrency does not end in version conflicts. The store's
 * compare-and-swap still decides; this only keeps the losers from trying in vain.
 */
export class KeyedMutex {
  readonly #clock: Clock;
  readonly #kind: string;
  readonly #tails = new Map<string, { waiting: number; tail: Promise<void> }>();

  constructor(clock: Clock, kind: string) {
    this.#clock = clock;
    this.#kind = kind;
  }

  async #turn(before: Promise<void>, name: string): Promise<void> {
    const timer = new AbortController();
    try {
      const limit = this.#clock.sleep(LOCK_WAIT_MS, { signal: timer.signal, unref: true }).then(() => {
        throw mutationLockTimeout(this.#kind, name, 1_000);
      });
      limit.catch(() => {});
      await Promise.race([before, limit]);
    } finally {
      timer.abort(DONE);
    }
  }

  /** @throws ApiError UNAVAILABLE (MUTATION_LOCK_TIMEOUT), RESOURCE_EXHAUSTED; what `task` throws. */
  async run<T>(key: string, name: string, task: () => Promise<T>): Promise<T> {
    const entry = this.#tails.get(key) ?? { waiting: 0, tail: Promise.resolve() };
    if (entry.waiting >= MAX_WAITING) {
      throw resourceExhausted(`more than ${MAX_WAITING} changes of ${this.#kind} "${name}" wait`, {
        next: "Try again",
        retryDelayMs: 1_000,
      });
    }
    this.#tails.set(key, entry);
    entry.waiting += 1;
    const before = entry.tail;
    const { promise: mine, resolve: release } = Promise.withResolvers<void>();
    entry.tail = before.then(() => mine);
    try {
      if (entry.waiting > 1) await this.#turn(before, name);
      return await task();
    } finally {
      release();
      entry.waiting -= 1;
      if (entry.waiting === 0) this.#tails.delete(key);
    }
  }
}
