import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { clientConfigRoot } from "@openshell/base/paths.ts";
import { readTextFile } from "@openshell/base/read-file.ts";
import type { Context } from "../context.ts";
import { usageError } from "../errors.ts";
import { cell } from "../output/terminal.ts";

const MAX_BYTES = 4096;

/** Two lines: workspace and name of the sandbox that was used last with this gateway. */
function fileOf(context: Context): string {
  return join(clientConfigRoot(context.surroundings), "gateways", context.target.name, "last_sandbox");
}

/** The sandbox that was used last in this workspace of this gateway. */
export function lastUsed(context: Context): string | undefined {
  try {
    const [workspace, name] = readTextFile(fileOf(context), MAX_BYTES).split("\n");
    return workspace === context.workspace && name !== undefined && name !== "" ? name : undefined;
  } catch {
    return undefined;
  }
}

/** Remembers a sandbox for commands that are not told one. Failing to is no failure of the command. */
export function rememberSandbox(context: Context, name: string): void {
  try {
    mkdirSync(dirname(fileOf(context)), { recursive: true, mode: 0o700 });
    writeFileSync(fileOf(context), `${context.workspace}\n${name}\n`, { mode: 0o600 });
  } catch {
    // The name has to be given next time.
  }
}

export function forgetSandbox(context: Context, name: string): void {
  if (lastUsed(context) === name) rmSync(fileOf(context), { force: true });
}

/** The named sandbox, else the last one used, which is said on standard error. */
export async function sandboxName(context: Context, given: string | undefined): Promise<string> {
  if (given !== undefined) return given;
  const name = lastUsed(context);
  if (name === undefined)
    throw usageError("no sandbox is named, and none was used before", "Name one; `openshell sandbox list` shows them");
  await context.say(context.err.bold(`→ sandbox ${cell(name)} (used last)`));
  return name;
}
