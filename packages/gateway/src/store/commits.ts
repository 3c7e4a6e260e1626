/** Settings and providers: what sandboxes' configurations are made of that readers keep. Subjects of statements that change it. */
const KEPT: ReadonlySet<string> = new Set(["setting", "provider", "credential"]);
/** All that configurations are made of beside the sandboxes' own rows. */
const CONTENTS: ReadonlySet<string> = new Set([...KEPT, "policy"]);

/** What a commit changes of what configurations are made of. */
export interface Changes {
  readonly kept: boolean;
  readonly contents: boolean;
}

/** What a group of writes changes. */
export function changesOf(batches: readonly (readonly { readonly subject: string }[])[]): Changes {
  const some = (subjects: ReadonlySet<string>): boolean =>
    batches.some((batch) => batch.some(({ subject }) => subjects.has(subject)));
  const contents = some(CONTENTS);
  return { kept: contents && some(KEPT), contents };
}

const ALL = 0;
const OF_CONTENTS = 1;
const OF_KEPT = 2;
const FOREIGN = 3;
const COUNTERS = 4;

const EVERYTHING: Changes = { kept: true, contents: true };

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

  /** Before a commit can be seen. */
  begin(changes: Changes = EVERYTHING): void {
    this.#count(changes);
  }

  /** After it can be seen, or has failed; with what `begin` was given. */
  end(changes: Changes = EVERYTHING): void {
    this.#count(changes);
  }

  /** Differs from its last value when a commit began in between; undefined while one is under way. */
  get settled(): number | undefined {
    return this.#settled(ALL);
  }

  /** The same of commits that change what configurations are made of: policies, settings, providers. */
  get settledContents(): number | undefined {
    return this.#settled(OF_CONTENTS);
  }

  /** The same of commits that change settings or providers. */
  get settledKept(): number | undefined {
    return this.#settled(OF_KEPT);
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

  #count({ kept, contents }: Changes): void {
    Atomics.add(this.#counts, ALL, 1);
    if (contents) Atomics.add(this.#counts, OF_CONTENTS, 1);
    if (kept) Atomics.add(this.#counts, OF_KEPT, 1);
  }

  #settled(index: number): number | undefined {
    const count = Atomics.load(this.#counts, index);
    return count % 2 === 0 ? count : undefined;
  }
}
