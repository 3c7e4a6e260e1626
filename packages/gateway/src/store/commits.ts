/**
 * Counts the commits of the writer thread, so that readers know without asking the database whether anything changed.
 * Odd while a commit is under way: then nobody knows yet which side of it a read shows.
 */
export class Commits {
  readonly shared: SharedArrayBuffer;
  readonly #count: Int32Array;

  /** `shared`: of the counter in another thread. */
  constructor(shared = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT)) {
    this.shared = shared;
    this.#count = new Int32Array(shared);
  }

  /** Before a commit can be seen. */
  begin(): void {
    Atomics.add(this.#count, 0, 1);
  }

  /** After it can be seen, or has failed. */
  end(): void {
    Atomics.add(this.#count, 0, 1);
  }

  /** Differs from its last value when a commit began in between; undefined while one is under way. */
  get settled(): number | undefined {
    const count = Atomics.load(this.#count, 0);
    return count % 2 === 0 ? count : undefined;
  }
}
