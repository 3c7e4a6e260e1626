import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT, errorLines, toCliError, usageError } from "../errors.ts";
import { forgetSandbox } from "../model/last-sandbox.ts";
import { pagesOf } from "../model/paging.ts";
import { sandboxView } from "../model/sandbox.ts";
import { cell } from "../output/terminal.ts";
import { DELETE_TIMEOUT_MS } from "../transport/limits.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "delete"],
  summary: "remove sandboxes",
  positionals: [{ name: "NAME", names: "sandboxes", many: true }],
  flags: [{ long: "all", help: "every sandbox of the workspace" }],
  about: ["A sandbox that does not exist counts as removed. Goes on after a failure; the exit status is 1 then."],
  examples: ["openshell sandbox delete dev", "openshell sandbox delete --all"],
};

const PAGE = 1000;

export async function run(context: Context, args: Args): Promise<number> {
  const all = args.has("all");
  if (all === args.positionals.length > 0) {
    throw usageError(all ? "--all and names exclude each other" : "no sandbox is named", "Write names, or --all");
  }
  const names = all ? await everyName(context) : args.positionals;
  if (names.length === 0) await context.print("No sandboxes found.\n");
  let failed = false;
  for (const name of names) failed = !(await remove(context, name)) || failed;
  return failed ? EXIT.failure : EXIT.ok;
}

async function remove(context: Context, name: string): Promise<boolean> {
  try {
    const request = { workspaceScope: context.scope, name, allowMissing: true };
    const { outcome } = await context.call("DeleteSandbox", request, { timeoutMs: DELETE_TIMEOUT_MS });
    forgetSandbox(context, name);
    if (outcome === "DELETION_OUTCOME_COMPLETED") await context.success(`Deleted sandbox ${name}.`);
    else if (outcome === "DELETION_OUTCOME_ALREADY_ABSENT") await context.warn(`Sandbox ${name} does not exist.`);
    else await context.success(`Deletion of sandbox ${name} was accepted and goes on.`);
    return true;
  } catch (error) {
    const shown = toCliError(error);
    // The same for every name.
    if (shown.code === "usage") throw shown;
    const [first, ...rest] = errorLines(shown, context.err.bold);
    await context.say([`${cell(name)}: ${first}`, ...rest].join("\n"));
    return false;
  }
}

async function everyName(context: Context): Promise<readonly string[]> {
  const names: string[] = [];
  const request = { workspaceScope: context.scope };
  for await (const { items } of pagesOf(context, "ListSandboxes", request, "sandboxes", undefined, PAGE)) {
    names.push(...items.map((item) => sandboxView(item).name));
  }
  return names;
}
