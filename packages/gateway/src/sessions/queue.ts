import { RuntimeError } from "@openshell/base";

/**
 * A first-in first-out queue between one producer side and one consumer, with a limit.
 *
 * `offer` never waits and says whether there was room (control messages: a peer that does not read is cut off). `push`
 * waits for room (bulk: the producer is slowed to the consumer's speed). The consumer iterates; leaving the loop closes
 * the queue, so that producers never wait for somebody who is gone.
 */
export class BoundedQueue<T> implements AsyncIterable<T> {
  readonly #limit: number;
  readonly #items: T[] = [];
  #head = 0;
  #closed = false;
  #error: unknown;
  #reader: (() => void) | undefined;
  #writers: (() => void)[] = [];

  constructor(limit: number) {
    this.#limit = limit;
  }

  get size(): number {
    return this.#items.length - this.#head;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** Appends without waiting; false when the queue is full or closed. */
  offer(item: T): boolean {
    if (this.#closed || this.size >= this.#limit) return false;
    this.#append(item);
    return true;
  }

  /** Appends, waiting for room. Throws `queue_closed` when the consumer is gone, or the signal's reason. */
  async push(item: T, signal?: AbortSignal): Promise<void> {
    while (!this.#closed && this.size >= this.#limit) {
      signal?.throwIfAborted();
      await new Promise<void>((resolve, reject) => {
        const writer = (): void => {
          signal?.removeEventListener("abort", onAbort);
          resolve();
        };
        const onAbort = (): void => {
          this.#writers = this.#writers.filter((other) => other !== writer);
          reject(signal?.reason);
        };
        signal?.addEventListener("abort", onAbort, { once: true });
        this.#writers.push(writer);
      });
    }
    if (this.#closed) throw new RuntimeError("queue_closed", "the receiver is gone");
    this.#append(item);
  }

  /** No more items; what is queued is still read, then the iteration ends, or throws `error` when given. */
  close(error?: unknown): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#error = error;
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, void> {
    try {
      for (;;) {
        while (this.#head < this.#items.length) {
          const item = this.#items[this.#head]!;
          this.#items[this.#head] = undefined as T;
          this.#head += 1;
          if (this.#head === this.#items.length || this.#head >= 1024) {
            this.#items.splice(0, this.#head);
            this.#head = 0;
          }
          this.#writers.shift()?.();
          yield item;
        }
        if (this.#closed) {
          if (this.#error !== undefined) throw this.#error;
          return;
        }
        await new Promise<void>((resolve) => {
          this.#reader = resolve;
        });
      }
    } finally {
      this.#closed = true;
      this.#items.length = 0;
      this.#head = 0;
      this.#wake();
    }
  }

  #append(item: T): void {
    this.#items.push(item);
    const reader = this.#reader;
    this.#reader = undefined;
    reader?.();
  }

  #wake(): void {
    const reader = this.#reader;
    this.#reader = undefined;
    reader?.();
    const writers = this.#writers;
    this.#writers = [];
    for (const writer of writers) writer();
  }
}
