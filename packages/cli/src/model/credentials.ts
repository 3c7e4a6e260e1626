import { decodeText, UnusableFile } from "@openshell/base/read-file.ts";
import type { Flag } from "../args.ts";
import { type Context, pairs } from "../context.ts";
import { CliError, usageError } from "../errors.ts";

/** Options that name credentials. Values are sent and forgotten: nothing here prints one. */
export const CREDENTIAL_FLAGS: readonly Flag[] = [
  {
    long: "credential",
    value: "KEY[=VALUE]",
    many: true,
    help: "credential; without VALUE taken from the variable KEY, with =- from standard input",
  },
  { long: "config", value: "KEY=VALUE", many: true, help: "setting that is no secret" },
];

const KEY = /^[A-Za-z_][A-Za-z0-9_]*$/;
/** Longest value read from standard input. */
const MAX_VALUE_BYTES = 64 * 1024;

/** Values by key. A value on the command line can be read by other processes of this user; a variable or standard input cannot be seen so. */
export async function credentialsOf(context: Context): Promise<Readonly<Record<string, string>>> {
  const result: Record<string, string> = {};
  let stdinUsed = false;
  for (const text of context.args.values("credential")) {
    const at = text.indexOf("=");
    const key = at === -1 ? text : text.slice(0, at);
    // The text after the key may be the secret: only the key is ever quoted.
    if (!KEY.test(key))
      throw usageError(
        "--credential: the key is no name of a variable",
        "Write --credential KEY, or --credential KEY=VALUE",
      );
    if (key in result) throw usageError(`--credential ${key} is given twice`, "Keep one of them");
    const given = at === -1 ? undefined : text.slice(at + 1);
    if (given === "-") {
      if (stdinUsed) throw usageError("standard input can give one credential only", "Use variables for the others");
      stdinUsed = true;
      result[key] = await readValue(context, key);
    } else if (given === undefined) {
      const value = context.env[key];
      if (value === undefined || value === "") {
        throw new CliError(`the variable ${key} is not set`, {
          code: "credential_value_missing",
          next: `Export ${key}, or write --credential ${key}=- and give it on standard input`,
        });
      }
      result[key] = value;
    } else {
      result[key] = given;
    }
  }
  return result;
}

export function configOf(context: Context): Readonly<Record<string, string>> {
  return pairs(context.args.values("config"), "config");
}

async function readValue(context: Context, key: string): Promise<string> {
  const { stdin } = context.surroundings;
  if (stdin.isTTY === true) await context.say(`openshell: value of ${key}, then Enter and Ctrl-D:`);
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of stdin) {
    length += (chunk as Buffer).length;
    if (length > MAX_VALUE_BYTES)
      throw new CliError(`the value of ${key} exceeds ${MAX_VALUE_BYTES} bytes`, {
        code: "credential_value_too_large",
        next: "Give the credential alone",
      });
    chunks.push(Buffer.from(chunk as Buffer));
  }
  const value = textOf(Buffer.concat(chunks), key).replace(/\r?\n$/, "");
  if (value === "")
    throw new CliError(`standard input gave no value for ${key}`, {
      code: "credential_value_missing",
      next: "Pipe the value into the command",
    });
  return value;
}

/** A value that is not text would be stored as another one. */
function textOf(bytes: Buffer, key: string): string {
  try {
    return decodeText(bytes);
  } catch (error) {
    if (!(error instanceof UnusableFile)) throw error;
    throw new CliError(`the value of ${key} on standard input ${error.message}`, {
      code: "credential_value_invalid",
      next: "Give the credential as UTF-8 text",
    });
  }
}
