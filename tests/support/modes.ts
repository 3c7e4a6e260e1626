import { expect } from "vitest";

/**
 * Who runs the product: uid 0 with every capability, or an ordinary user with none. The system tests run once as each
 * (tests/run.ts), and a test whose outcome depends on it says so with `inMode` or `expectPerMode`.
 */
export type Mode = "root" | "user";

export const MODES: readonly Mode[] = ["root", "user"];

/** The mode of this test process. */
export const mode: Mode = process.getuid?.() === 0 ? "root" : "user";

/** A value for each mode. */
export type PerMode<T> = Readonly<Record<Mode, T>>;

/** The value that holds in this mode. */
export function inMode<T>(values: PerMode<T>): T {
  return values[mode];
}

/**
 * Asserts that `actual` equals what this mode expects. A function is called with `actual` instead and makes its own
 * assertions.
 */
export function expectPerMode<T>(actual: T, expected: PerMode<T | ((actual: T) => void)>): void {
  const wanted = expected[mode];
  if (typeof wanted === "function") (wanted as (actual: T) => void)(actual);
  else expect(actual, `as ${mode}`).toEqual(wanted);
}
