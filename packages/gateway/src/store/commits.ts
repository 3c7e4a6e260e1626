/** What sandboxes' configurations are made of beside their own rows: the subjects of statements that change it. */
const CONTENTS: ReadonlySet<string> = new Set(["setting", "policy", "provider", "credential"]);

/** Whether a write changes anything of {@link CONTENTS}. */
export function changesContents(batch: readonly { readonly subject: string }[]): boolean {
  return batch.some(({ subject }) => CONTENTS.has(subject));
}

const ALL = 0;
const OF_CONTENTS = 1;
const FOREIGN = 2;
const COUNTERS = 3;

/**
 * Counts the commits of the writer thread, so that readers know without asking the database whether anything changed.
 * Odd while a commit is under way: then nobody knows yet which side of it a read shows.
 */
export class Commits {
  readonly shared: SharedArrayBuffer;
  readonly #counts: Int32Array;

  /** `shared`: of the counters in another thread. */
  constructor(shared = new SharedArrayBuffer(COUNTERS * Int32Array.BYTES_PER_ELEMENT)) {
    this.shared = shared;
    this.#counts = new Int32Array(shared);
  }

  /** Before a commit can be seen. `contents`: it changes what configurations are made of. */
  begin(contents = true): void {
    this.#count(contents);
  }

  /** After it can be seen, or has failed; with what `begin` was given. */
  end(contents = true): void {
    this.#count(contents);
  }

  /** Differs from its last value when a commit began in between; undefined while one is under way. */
  get settled(): number | undefined {
    return this.#settled(ALL);
  }

  /** The same of commits that change what configurations are made of: policies, settings, providers. */
  get settledContents(): number | undefined {
    return this.#settled(OF_CONTENTS);
  }

  /** Commits that have begun and ended so far: odd while one is under way. */
  get own(): number {
    return Atomics.load(this.#counts, ALL);
  }

  /** How often the writer found that another process had committed. */
  get foreign(): number {
    return Atomics.load(this.#counts, FOREIGN);
  }

  /** Another process has committed since the writer looked last. */
  countForeign(): void {
    Atomics.add(this.#counts, FOREIGN, 1);
  }

  #count(contents: boolean): void {
    Atomics.add(this.#counts, ALL, 1);
    if (contents) Atomics.add(this.#counts, OF_CONTENTS, 1);
  }

  #settled(index: number): number | undefined {
    const count = Atomics.load(this.#counts, index);
    return count % 2 === 0 ? count : undefined;
  }
}
