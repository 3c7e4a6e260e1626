import { SECRET } from "./bad-values.ts";
import type { Outcome } from "./surroundings.ts";

/** How a command line may end that was given something wrong. */
export interface Tried extends Outcome {
  /** Changes that the gateway was asked for. */
  readonly sent: readonly string[];
}

// What a terminal would obey, line ends apart.
const OBEYED =
  /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]/u;
const INSIDE =
  /\n\s+at \S|node:internal|\.ts:\d+|\[object |undefined|TypeError|RangeError|Cannot read prop|Maximum call|ERR_[A-Z]/;
/** Everything that is said of a mistake fits on a screen. */
const MOST_CHARACTERS = 6_000;

/** What is wrong with how a command line ended; undefined when nothing is. */
export function problem(
  { code, stdout, stderr, sent }: Tried,
  refused: boolean,
  structured: boolean,
): string | undefined {
  if (![0, 1, 2].includes(code)) return `exit status ${code}`;
  if (refused && code !== 2) return `exit status ${code} where 2 is due`;
  if (code === 2 && sent.length > 0) return `wrong use, after ${sent.join(", ")} was sent`;
  if (refused && sent.length > 0) return `${sent.join(", ")} was sent`;
  if (new Set(sent).size < sent.length) return `sent more than once: ${sent.join(", ")}`;
  if (OBEYED.test(stderr)) return "control characters on standard error";
  if (!structured && OBEYED.test(stdout)) return "control characters on standard output";
  if (INSIDE.test(stderr)) return "the inside of a program";
  if (stderr.includes(SECRET) || stdout.includes(SECRET)) return "the secret is shown";
  if (stderr.length > MOST_CHARACTERS) return `${stderr.length} characters on standard error`;
  if (code === 0) return undefined;
  const lines = stderr.split("\n");
  const causes = lines.filter((line) => /^(?:.*: )?error: \S/.test(line)).length;
  if (causes !== 1) return `${causes} lines tell a cause`;
  if (!lines.some((line) => /^ {2}next: \S/.test(line))) return "no next step";
  return undefined;
}
