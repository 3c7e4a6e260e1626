import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT, errorLines, toCliError, usageError } from "../errors.ts";
import { cell } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["provider", "delete"],
  summary: "remove providers",
  positionals: [{ name: "NAME", names: "providers", required: true, many: true }],
  flags: [],
  about: ["A provider that sandboxes use cannot be removed. One that does not exist counts as removed."],
  examples: ["openshell provider delete model"],
};

export async function run(context: Context, args: Args): Promise<number> {
  if (args.positionals.length === 0) throw usageError("no provider is named", "Write openshell provider delete NAME");
  let failed = false;
  for (const name of args.positionals) {
    try {
      const { outcome } = await context.call("DeleteProvider", {
        workspaceScope: context.scope,
        name,
        allowMissing: true,
      });
      if (outcome === "DELETION_OUTCOME_ALREADY_ABSENT") await context.warn(`Provider ${name} does not exist.`);
      else await context.success(`Deleted provider ${name}.`);
    } catch (error) {
      const shown = toCliError(error);
      // The same for every name.
      if (shown.code === "usage") throw shown;
      failed = true;
      const [first, ...rest] = errorLines(shown, context.err.bold);
      await context.say([`${cell(name)}: ${first}`, ...rest].join("\n"));
    }
  }
  return failed ? EXIT.failure : EXIT.ok;
}
