import type { Flag } from "../args.ts";
import type { Context } from "../context.ts";
import { usageError } from "../errors.ts";

export const YES_FLAG: Flag = { long: "yes", help: "with --global: do not ask" };

/** Characters of an answer that are looked at. */
const MAX_ANSWER = 64;

/**
 * Asks on the terminal whether to go on, unless --yes says so; anything but yes is no.
 *
 * @throws CliError wrong use, where nobody can be asked.
 */
export async function confirmed(context: Context, question: string): Promise<boolean> {
  if (context.args.has("yes")) return true;
  const { stdin, stderr } = context.surroundings;
  if (stdin.isTTY !== true)
    throw usageError("this concerns every sandbox and needs a confirmation", "Add --yes, or run it on a terminal");
  stderr.write(`${question} [y/N] `);
  let answer = "";
  for await (const chunk of stdin) {
    answer += String(chunk);
    if (answer.includes("\n") || answer.length > MAX_ANSWER) break;
  }
  if (/^\s*y(es)?\s*$/i.test(answer.split("\n", 1)[0] ?? "")) return true;
  await context.warn("Nothing was changed.");
  return false;
}
