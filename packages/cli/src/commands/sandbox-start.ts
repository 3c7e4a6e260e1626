import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT } from "../errors.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { limitSeconds, waitForPhase } from "../model/wait.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "start"],
  summary: "start a stopped sandbox again",
  positionals: [{ name: "NAME", names: "sandboxes" }],
  flags: [],
  about: ["Returns when it is done, at the latest after OPENSHELL_LIFECYCLE_TIMEOUT seconds (300)."],
  examples: ["openshell sandbox start dev"],
};

export async function run(context: Context, args: Args): Promise<number> {
  limitSeconds(context, "OPENSHELL_LIFECYCLE_TIMEOUT");
  const name = await sandboxName(context, args.positionals[0]);
  await context.call("StartSandbox", { workspaceScope: context.scope, name });
  await waitForPhase(context, name, {
    until: ["Ready", "Completed"],
    failed: ["Error", "Stopped", "Deleting"],
    doing: "Starting sandbox",
    limitVariable: "OPENSHELL_LIFECYCLE_TIMEOUT",
  });
  await context.success(`Sandbox ${name} started.`);
  return EXIT.ok;
}
