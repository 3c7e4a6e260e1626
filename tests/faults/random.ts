/**
 * Numbers that a seed decides: the same on every machine and in every version of Node. sfc32, after Chris Doty-Humphrey's
 * PractRand (https://pracrand.sourceforge.net/RNG_engines.txt), started from FNV-1a hashes of the seed's text.
 */
export class Random {
  readonly #seed: string;
  readonly #state: Uint32Array;

  constructor(seed: string) {
    this.#seed = seed;
    this.#state = Uint32Array.from([0, 1, 2], (lane) => fnv1a(`${lane} ${seed}`));
    this.#counter = 1;
    for (let round = 0; round < 12; round++) this.#next();
  }

  #counter: number;

  #next(): number {
    const state = this.#state;
    const sum = (state[0]! + state[1]! + this.#counter) >>> 0;
    this.#counter = (this.#counter + 1) >>> 0;
    state[0] = state[1]! ^ (state[1]! >>> 9);
    state[1] = state[2]! + (state[2]! << 3);
    state[2] = ((state[2]! << 21) | (state[2]! >>> 11)) + sum;
    return sum;
  }

  /** An independent sequence: what is drawn from it changes nothing here. */
  fork(name: string): Random {
    return new Random(`${this.#seed} ${name}`);
  }

  /** A whole number, `from` ≤ n < `to`. */
  integer(from: number, to: number): number {
    return from + Math.floor((this.#next() / 2 ** 32) * (to - from));
  }

  chance(probability: number): boolean {
    return this.#next() / 2 ** 32 < probability;
  }

  pick<T>(values: readonly T[]): T {
    if (values.length === 0) throw new Error("nothing to choose from");
    return values[this.integer(0, values.length)]!;
  }

  /** One of the keys, each as likely as its weight says. */
  weighted<K extends string>(weights: Readonly<Partial<Record<K, number>>>): K {
    const entries = Object.entries(weights) as [K, number][];
    let left = (this.#next() / 2 ** 32) * entries.reduce((sum, [, weight]) => sum + weight, 0);
    for (const [key, weight] of entries) {
      left -= weight;
      if (left < 0) return key;
    }
    return entries.at(-1)![0];
  }
}

function fnv1a(text: string): number {
  let hash = 0x811c9dc5;
  for (const byte of Buffer.from(text)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return hash;
}
