import type { Part } from "./live-memory.ts";

/** Memory of the parts at one moment, MB. */
export interface Sample {
  readonly minutes: number;
  /** In use after a collection. */
  readonly live: Readonly<Record<Part, number>>;
  /** PSS. */
  readonly pages: Readonly<Record<Part, number>>;
}

/** A straight line through points, by least squares. */
export interface Line {
  readonly slope: number;
  /** Its value at the first point, and what it grows by until the last one. */
  readonly first: number;
  readonly total: number;
}

export function growth(points: readonly { readonly x: number; readonly y: number }[]): Line {
  const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
  const x = mean(points.map((point) => point.x));
  const y = mean(points.map((point) => point.y));
  const covariance = points.reduce((sum, point) => sum + (point.x - x) * (point.y - y), 0);
  const variance = points.reduce((sum, point) => sum + (point.x - x) ** 2, 0);
  const slope = variance === 0 ? 0 : covariance / variance;
  const [from, to] = [Math.min(...points.map((point) => point.x)), Math.max(...points.map((point) => point.x))];
  return { slope, first: y + slope * (from - x), total: slope * (to - from) };
}
