/** A producer that waits for room, with what it brings. */
interface Waiting<T> {
  readonly item: T;
  readonly settle: (accepted: boolean) => void;
}

/** Of a push that did not wait: every such caller awaits the same two promises. */
const ACCEPTED = Promise.resolve(true);
const REFUSED = Promise.resolve(false);
/** Slots of the first buffer; it doubles as needed and holds a power of two. */
const FIRST_SLOTS = 8;

/**
 * A first-in first-out queue with a limit, between producers and one consumer.
 *
 * `offer` never waits and says whether there was room (control messages: a peer that does not read is cut off). `push`
 * waits for room (bulk: the producer is slowed to the consumer's speed). The consumer iterates; leaving the loop, or
 * `return`, closes the queue, so that producers never wait for somebody who is gone. Items are handed over in the order
 * of the calls, those that waited included. Adding and taking cost the same however much is queued, and a push that
 * need not wait allocates nothing.
 */
export class BoundedQueue<T> implements AsyncIterableIterator<T, undefined> {
  readonly #limit: number;
  /** A ring: `#size` items from `#head` on. */
  #buffer: (T | undefined)[] = [];
  #head = 0;
  #size = 0;
  /** Only while it is full. */
  readonly #producers: Waiting<T>[] = [];
  /** Only while it is empty: one for each `next` that waits. */
  readonly #readers: ((result: IteratorResult<T, undefined> | Promise<never>) => void)[] = [];
  #closed = false;
  #failure: { readonly error: unknown } | undefined;

  /** @param limit items that are queued at most, at least 1. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Items that are queued; those of producers that wait for room do not count. */
  get size(): number {
    return this.#size;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** Adds without waiting; false when the queue is full or closed. */
  offer(item: T): boolean {
    if (this.#closed) return false;
    const reader = this.#readers.shift();
    if (reader !== undefined) reader({ done: false, value: item });
    else if (this.#size >= this.#limit) return false;
    else this.#append(item);
    return true;
  }

  /**
   * Adds, waiting for room. Resolves with true once the item is queued, with false when it never will be: the queue is
   * closed, or the consumer left meanwhile. Rejects with the signal's reason when that comes first; the item is not
   * queued then.
   */
  push(item: T, signal?: AbortSignal): Promise<boolean> {
    if (this.offer(item)) return ACCEPTED;
    if (this.#closed) return REFUSED;
    if (signal === undefined) {
      return new Promise((settle) => void this.#producers.push({ item, settle }));
    }
    if (signal.aborted) return Promise.reject(signal.reason);
    return new Promise((resolve, reject) => {
      const onAbort = (): void => {
        this.#producers.splice(this.#producers.indexOf(waiting), 1);
        reject(signal.reason);
      };
      const waiting: Waiting<T> = {
        item,
        settle: (accepted) => {
          signal.removeEventListener("abort", onAbort);
          resolve(accepted);
        },
      };
      signal.addEventListener("abort", onAbort, { once: true });
      this.#producers.push(waiting);
    });
  }

  /**
   * No more items. What was handed over before, by producers that wait too, is still read; then the iteration ends, or
   * throws `error` when given. Harmless when repeated.
   */
  close(error?: unknown): void {
    if (this.#closed) return;
    this.#closed = true;
    if (error !== undefined) this.#failure = { error };
    for (const { item, settle } of this.#producers.splice(0)) {
      this.#append(item);
      settle(true);
    }
    for (const reader of this.#readers.splice(0)) reader(this.#end());
  }

  next(): Promise<IteratorResult<T, undefined>> {
    if (this.#size > 0) return Promise.resolve({ done: false, value: this.#take() });
    if (this.#closed) return Promise.resolve(this.#end());
    return new Promise((resolve) => void this.#readers.push(resolve));
  }

  /** The consumer left: the queue is closed and what it holds is dropped. */
  return(): Promise<IteratorReturnResult<undefined>> {
    this.#drop();
    return Promise.resolve({ done: true, value: undefined });
  }

  /** As `return`, for a consumer that gives up with an error. */
  throw(error: unknown): Promise<IteratorReturnResult<undefined>> {
    this.#drop();
    return Promise.reject(error);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #end(): IteratorResult<T, undefined> | Promise<never> {
    return this.#failure === undefined ? { done: true, value: undefined } : Promise.reject(this.#failure.error);
  }

  #drop(): void {
    this.#closed = true;
    this.#failure = undefined;
    this.#buffer = [];
    this.#head = 0;
    this.#size = 0;
    for (const { settle } of this.#producers.splice(0)) settle(false);
    for (const reader of this.#readers.splice(0)) reader(this.#end());
  }

  #append(item: T): void {
    if (this.#size === this.#buffer.length) this.#grow();
    this.#buffer[(this.#head + this.#size) & (this.#buffer.length - 1)] = item;
    this.#size += 1;
  }

  #take(): T {
    const item = this.#buffer[this.#head] as T;
    this.#buffer[this.#head] = undefined;
    this.#head = (this.#head + 1) & (this.#buffer.length - 1);
    this.#size -= 1;
    const producer = this.#closed ? undefined : this.#producers.shift();
    if (producer !== undefined) {
      this.#append(producer.item);
      producer.settle(true);
    }
    return item;
  }

  #grow(): void {
    const slots = Math.max(FIRST_SLOTS, this.#buffer.length * 2);
    const buffer = new Array<T | undefined>(slots);
    for (let at = 0; at < this.#size; at += 1) {
      buffer[at] = this.#buffer[(this.#head + at) & (this.#buffer.length - 1)];
    }
    this.#buffer = buffer;
    this.#head = 0;
  }
}
