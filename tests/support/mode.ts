/**
 * Who runs the product: uid 0 with every capability, or an ordinary user with none. The system tests run once as each
 * (tests/run.ts), and a test whose outcome depends on it says so with `inMode` or `expectPerMode` (modes.ts).
 */
export type Mode = "root" | "user";

/** The mode of this process. */
export const mode: Mode = process.getuid?.() === 0 ? "root" : "user";

/** A value for each mode. */
export type PerMode<T> = Readonly<Record<Mode, T>>;

/** The value that holds in this mode. */
export function inMode<T>(values: PerMode<T>): T {
  return values[mode];
}
