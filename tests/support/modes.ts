import { expect } from "vitest";
import { mode, type PerMode } from "./mode.ts";

export { inMode, type Mode, mode, type PerMode } from "./mode.ts";

/**
 * Asserts that `actual` equals what this mode expects. A function is called with `actual` instead and makes its own
 * assertions.
 */
export function expectPerMode<T>(actual: T, expected: PerMode<T | ((actual: T) => void)>): void {
  const wanted = expected[mode];
  if (typeof wanted === "function") (wanted as (actual: T) => void)(actual);
  else expect(actual, `as ${mode}`).toEqual(wanted);
}
