/** Keeps what is used most recently, by weight. */
export class WeightedCache<Value> {
  readonly #maxWeight: number;
  readonly #entries = new Map<string, { readonly value: Value; readonly weight: number }>();
  #weight = 0;

  /** `maxWeight`: of all entries together, in whatever unit the caller weighs. */
  constructor(maxWeight: number) {
    this.#maxWeight = maxWeight;
  }

  get weight(): number {
    return this.#weight;
  }

  /** The entry, now the most recently used one. Wrapped, since a value may be undefined. */
  get(key: string): { readonly value: Value } | undefined {
    const entry = this.#entries.get(key);
    if (entry === undefined) return undefined;
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    return entry;
  }

  /** Keeps a value in place of others that were not used for longer. One that weighs more than everything may is not kept. */
  set(key: string, value: Value, weight: number): void {
    this.delete(key);
    if (weight > this.#maxWeight) return;
    this.#entries.set(key, { value, weight });
    this.#weight += weight;
    for (const [oldest, entry] of this.#entries) {
      if (this.#weight <= this.#maxWeight) return;
      this.#entries.delete(oldest);
      this.#weight -= entry.weight;
    }
  }

  delete(key: string): void {
    const entry = this.#entries.get(key);
    if (entry === undefined) return;
    this.#entries.delete(key);
    this.#weight -= entry.weight;
  }

  clear(): void {
    this.#entries.clear();
    this.#weight = 0;
  }
}

/** What an entry costs beside the rows it holds: key, map entry, promise. Bytes, roughly. */
const ENTRY_BYTES = 256;

/**
 * Answers of queries, kept until the database changes at all. A version that is asked for before each answer tells that,
 * so an answer is as fresh as the query itself would give it, at a fraction of the cost.
 */
export class ReadCache {
  readonly #version: () => number | undefined;
  readonly #answers: WeightedCache<unknown>;
  #seen: number | undefined;

  /**
   * `version`: differs from its last value when anything was committed in between; undefined while that cannot be said;
   * throws when the database is closed. `maxBytes`: of what is kept, roughly.
   */
  constructor(version: () => number | undefined, maxBytes: number) {
    this.#version = version;
    this.#answers = new WeightedCache(maxBytes);
  }

  /** The answer that `load` gives for this key. `bytes`: what an answer weighs. Answers are shared: nobody may change them. */
  async read<Answer>(
    key: string,
    load: () => Promise<Answer>,
    bytes: (answer: Answer) => number = () => 0,
  ): Promise<Answer> {
    const version = this.#version();
    if (version === undefined) return await load();
    if (version !== this.#seen) {
      this.#answers.clear();
      this.#seen = version;
    }
    const kept = this.#answers.get(key);
    if (kept !== undefined) return kept.value as Answer;
    const answer = await load();
    // With a commit since, nobody knows which side of it the answer shows.
    if (this.#seen === version && this.#version() === version)
      this.#answers.set(key, answer, bytes(answer) + 2 * key.length + ENTRY_BYTES);
    return answer;
  }
}

/** Where commits of other processes than this gateway show. */
export interface CommitSources {
  /** Commits of the writer that have begun and ended so far: odd while one is under way. */
  readonly own: () => number;
  /** A number of the database that differs when anybody, the writer included, has committed; asking costs more than all else of a read. */
  readonly anybody: () => number;
  /** How often the writer, whom its own commits do not mislead, found that somebody else had committed. */
  readonly foundByWriter: () => number;
  /** Lets the writer look. */
  readonly look: () => void;
  /** Milliseconds that only grow. */
  readonly now?: () => number;
}

/**
 * Notices that a foreign process (an operator's tool) has committed, within {@link FOREIGN_CHECK_MS} or, when the writer commits
 * at the same time, as soon as it has looked.
 */
export class ForeignCommits {
  readonly #sources: CommitSources;
  #asked = Number.NEGATIVE_INFINITY;
  #anybody: number | undefined;
  #own = 0;
  #noticed = 0;

  constructor(sources: CommitSources) {
    this.#sources = sources;
  }

  /** Grows with every time that there was one. */
  get count(): number {
    const { own, anybody, foundByWriter, look, now = () => performance.now() } = this.#sources;
    const time = now();
    if (time - this.#asked >= FOREIGN_CHECK_MS) {
      this.#asked = time;
      const version = anybody();
      const commits = own();
      if (this.#anybody !== undefined && version !== this.#anybody) {
        const alone = commits === this.#own && commits % 2 === 0;
        if (alone) this.#noticed += 1;
        else look();
      }
      this.#anybody = version;
      this.#own = commits;
    }
    return this.#noticed + foundByWriter();
  }
}

/** The version of a database that one writer changes: `settled` commits of it count at once, those of others once they are noticed. */
export function databaseVersion(settled: () => number | undefined, foreign: () => number): () => number | undefined {
  return () => {
    const others = foreign();
    const commits = settled();
    // Both only grow, so their sum changes with either.
    return commits === undefined ? undefined : commits + others;
  };
}

/** Milliseconds. */
export const FOREIGN_CHECK_MS = 50;
