import { quote, usageError } from "./errors.ts";

/**
 * Refuses arguments that are not UTF-8. The API carries commands as text: such an argument would reach the program changed,
 * and name another file than the caller meant. U+FFFD itself is text like any other.
 */
export function refuseUndecodable(argv: readonly string[], commandLine: (() => Uint8Array) | undefined): void {
  if (commandLine === undefined) return;
  const { isUtf8 } = process.getBuiltinModule("node:buffer");
  const all = Buffer.from(commandLine());
  if (isUtf8(all)) return;
  const index = split(all).findIndex((bytes) => !isUtf8(bytes));
  // The interpreter and the program come first.
  const argument = argv[index - 2];
  throw usageError(
    `${argument === undefined ? "an argument" : quote(argument)} is not UTF-8, and would not arrive unchanged`,
    "Give the file another name, or pass its bytes through standard input",
  );
}

function split(all: Buffer): readonly Buffer[] {
  const parts: Buffer[] = [];
  for (let from = 0; from < all.length; ) {
    const end = all.indexOf(0, from);
    const to = end === -1 ? all.length : end;
    parts.push(all.subarray(from, to));
    from = to + 1;
  }
  return parts;
}
