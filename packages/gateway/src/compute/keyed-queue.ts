/**
 * Runs at most one task a key at a time, and remembers at most one more: whoever asks while a task runs makes it run once
 * again. So a task that reads the newest state and acts on it never misses a change and never piles up.
 */
export class KeyedQueue {
  readonly #task: (key: string) => Promise<void>;
  readonly #onError: (key: string, error: unknown) => void;
  readonly #running = new Map<string, { again: boolean; readonly done: Promise<void> }>();

  constructor(task: (key: string) => Promise<void>, onError: (key: string, error: unknown) => void) {
    this.#task = task;
    this.#onError = onError;
  }

  /** Asks for a run that begins after this call. Resolves when that run, or a later one, has ended; never rejects. */
  async request(key: string): Promise<void> {
    const running = this.#running.get(key);
    if (running !== undefined) {
      running.again = true;
      await running.done;
      return;
    }
    const { promise: done, resolve } = Promise.withResolvers<void>();
    const entry = { again: true, done };
    this.#running.set(key, entry);
    while (entry.again) {
      entry.again = false;
      try {
        await this.#task(key);
      } catch (error) {
        this.#onError(key, error);
      }
    }
    this.#running.delete(key);
    resolve();
  }

  get size(): number {
    return this.#running.size;
  }

  /** Resolves when nothing runs. */
  async idle(): Promise<void> {
    while (this.#running.size > 0) await Promise.all([...this.#running.values()].map((entry) => entry.done));
  }
}
