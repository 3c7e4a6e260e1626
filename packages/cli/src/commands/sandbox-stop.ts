import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT } from "../errors.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { limitSeconds, waitForPhase } from "../model/wait.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "stop"],
  summary: "stop a sandbox and keep its files",
  positionals: [{ name: "NAME", names: "sandboxes" }],
  flags: [],
  about: ["Returns when it is done, at the latest after OPENSHELL_LIFECYCLE_TIMEOUT seconds (300)."],
  examples: ["openshell sandbox stop dev"],
};

export async function run(context: Context, args: Args): Promise<number> {
  limitSeconds(context, "OPENSHELL_LIFECYCLE_TIMEOUT");
  const name = await sandboxName(context, args.positionals[0]);
  await context.call("StopSandbox", { workspaceScope: context.scope, name });
  await waitForPhase(context, name, {
    until: ["Stopped"],
    failed: ["Error", "Deleting"],
    doing: "Stopping sandbox",
    limitVariable: "OPENSHELL_LIFECYCLE_TIMEOUT",
  });
  await context.success(`Sandbox ${name} stopped.`);
  return EXIT.ok;
}
