import { setTimeout as sleep } from "node:timers/promises";

/** Somebody waits for this long at most. Milliseconds. */
const LIMIT_MS = 5_000;

/** A barrier on the way of messages. */
export class Stall {
  readonly #reached = Promise.withResolvers<void>();
  readonly #released = Promise.withResolvers<void>();
  readonly #onRelease: () => void;

  constructor(onRelease: () => void) {
    this.#onRelease = onRelease;
  }

  /** A message is here: resolves when it may go on. */
  async wait(): Promise<void> {
    this.#reached.resolve();
    const limit = new AbortController();
    const late = sleep(LIMIT_MS, undefined, { signal: limit.signal }).catch(() => {});
    await Promise.race([this.#released.promise, late]);
    limit.abort();
  }

  /** Resolves when a message is here, or after `withinMs`. */
  async reached(withinMs: number): Promise<void> {
    await Promise.race([this.#reached.promise, sleep(withinMs)]);
  }

  release(): void {
    this.#onRelease();
    this.#released.resolve();
  }
}
