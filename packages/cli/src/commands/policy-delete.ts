import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT, usageError } from "../errors.ts";
import { confirmed, YES_FLAG } from "../model/confirm.ts";

export const spec: CommandSpec = {
  path: ["policy", "delete"],
  summary: "remove the policy of the gateway",
  flags: [{ long: "global", help: "needed: the policy of one sandbox cannot be removed" }, YES_FLAG],
  about: ["Every sandbox has its own policy again at once."],
  examples: ["openshell policy delete --global --yes"],
};

export async function run(context: Context, args: Args): Promise<number> {
  if (!args.has("global"))
    throw usageError(
      "a sandbox always has a policy: only that of the gateway can be removed",
      "Write --global, or give the sandbox another policy: openshell policy set",
    );
  if (!(await confirmed(context, "Give every sandbox its own policy back?"))) return EXIT.failure;
  const { deleted } = await context.call("UpdateConfig", { global: true, settingKey: "policy", deleteSetting: true });
  if (deleted === true) await context.success("Deleted the global policy: every sandbox has its own again.");
  else await context.warn("Nothing to delete: there is no global policy.");
  return EXIT.ok;
}
