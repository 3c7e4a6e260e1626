/**
 * A bounded queue between a producer that can wait and an async iterator. `push` resolves when there is room, so a slow
 * reader slows the writer down instead of growing memory.
 */
export class BoundedQueue<T> implements AsyncIterableIterator<T> {
  readonly #limit: number;
  readonly #items: T[] = [];
  #reader: ((result: IteratorResult<T>) => void) | undefined;
  #failReader: ((reason: unknown) => void) | undefined;
  readonly #writers: (() => void)[] = [];
  #ended = false;
  #error: { readonly reason: unknown } | undefined;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get size(): number {
    return this.#items.length;
  }

  /** Adds an item; resolves when the queue has room for the next one. False when the queue is closed and the item was dropped. */
  async push(item: T): Promise<boolean> {
    if (this.#ended) return false;
    if (this.#reader !== undefined) {
      const reader = this.#reader;
      this.#reader = undefined;
      reader({ done: false, value: item });
      return true;
    }
    this.#items.push(item);
    while (this.#items.length >= this.#limit && !this.#ended) {
      await new Promise<void>((resolve) => this.#writers.push(resolve));
    }
    return true;
  }

  /** Adds an item if there is room now. */
  offer(item: T): boolean {
    if (this.#ended || this.#items.length >= this.#limit) return false;
    void this.push(item);
    return true;
  }

  /** No more items; what is queued is still delivered. */
  end(): void {
    this.#ended = true;
    for (const wake of this.#writers.splice(0)) wake();
    if (this.#reader !== undefined && this.#items.length === 0) {
      this.#reader({ done: true, value: undefined });
      this.#reader = undefined;
    }
  }

  /** Ends with an error for the reader, dropping what is queued. */
  fail(reason: unknown): void {
    if (this.#error !== undefined) return;
    this.#error = { reason };
    this.#items.length = 0;
    this.#ended = true;
    for (const wake of this.#writers.splice(0)) wake();
    this.#failReader?.(reason);
    this.#reader = undefined;
  }

  next(): Promise<IteratorResult<T>> {
    if (this.#error !== undefined) return Promise.reject(this.#error.reason);
    if (this.#items.length > 0) {
      const value = this.#items.shift() as T;
      this.#writers.shift()?.();
      return Promise.resolve({ done: false, value });
    }
    if (this.#ended) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve, reject) => {
      this.#reader = resolve;
      this.#failReader = reject;
    });
  }

  return(): Promise<IteratorResult<T>> {
    this.#items.length = 0;
    this.end();
    return Promise.resolve({ done: true, value: undefined });
  }

  /** Connect aborts a request's message stream with this. */
  throw(reason: unknown): Promise<IteratorResult<T>> {
    this.#items.length = 0;
    this.end();
    return Promise.reject(reason);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
