/** Times of one measurement, milliseconds, with how long all of it took. */
export interface Series {
  readonly times: readonly number[];
  /** Wall time of the whole measurement; with several clients less than the sum of the times. */
  readonly totalMs: number;
}

/** What is kept of a {@link Series}; milliseconds and operations a second. */
export interface Summary {
  readonly count: number;
  readonly perSecond: number;
  readonly p50: number;
  readonly p95: number;
  readonly p99: number;
}

/** The value below which `share` of the sorted values lie (nearest rank). */
export function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(sorted.length * share) - 1))] ?? Number.NaN;
}

export function median(values: readonly number[]): number {
  return quantile(
    values.toSorted((a, b) => a - b),
    0.5,
  );
}

export function summarise({ times, totalMs }: Series): Summary {
  const sorted = times.toSorted((a, b) => a - b);
  return {
    count: sorted.length,
    perSecond: (sorted.length / totalMs) * 1000,
    p50: quantile(sorted, 0.5),
    p95: quantile(sorted, 0.95),
    p99: quantile(sorted, 0.99),
  };
}

/** Calls `step` in `clients` loops side by side until the time is over or `count` calls were started. */
export async function loop(
  clients: number,
  limit: { readonly seconds?: number; readonly count?: number },
  step: (client: number) => Promise<void>,
): Promise<Series> {
  const times: number[] = [];
  const startedAt = performance.now();
  const until = startedAt + (limit.seconds ?? Number.POSITIVE_INFINITY) * 1000;
  let left = limit.count ?? Number.POSITIVE_INFINITY;
  await Promise.all(
    Array.from({ length: clients }, async (_, client) => {
      while (left > 0 && performance.now() < until) {
        left -= 1;
        const begin = performance.now();
        await step(client);
        times.push(performance.now() - begin);
      }
    }),
  );
  return { times, totalMs: performance.now() - startedAt };
}
