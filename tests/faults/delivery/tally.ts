/** What was looked at in all runs together. */
export class Tally {
  /** Pairs whose halves passed apart. */
  readonly apart = { held: 0, swapped: 0 };
  /** Requests that were judged, and right. */
  right = 0;
  readonly #converged: number[] = [];

  /** One run: everything was in force so long after its last disturbance. Milliseconds. */
  converged(tookMs: number): void {
    this.#converged.push(tookMs);
  }

  add({ held, swapped }: { readonly held: number; readonly swapped: number }): void {
    this.apart.held += held;
    this.apart.swapped += swapped;
  }

  text(): string {
    const sorted = this.#converged.toSorted((a, b) => a - b);
    const at = (part: number): string => `${((sorted[Math.ceil(sorted.length * part) - 1] ?? 0) / 1_000).toFixed(1)} s`;
    const { held, swapped } = this.apart;
    return [
      `Halves that passed apart: ${held} in order, ${swapped} the other way round; ${this.right} requests were right.`,
      `In force after the last disturbance within ${at(0.5)} (half of the runs), ${at(0.95)} (95 %), ${at(1)} (all).`,
    ].join("\n");
  }
}
