import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT } from "../errors.ts";
import { confirmed, YES_FLAG } from "../model/confirm.ts";
import { sayUnlessInForce } from "../model/in-force.ts";
import { GLOBAL_FLAG, KEY_FLAG, settingKey, settingsPlace } from "../model/settings.ts";

export const spec: CommandSpec = {
  path: ["settings", "delete"],
  summary: "unset one",
  positionals: [{ name: "SANDBOX", names: "sandboxes" }],
  flags: [KEY_FLAG, GLOBAL_FLAG, YES_FLAG],
  about: ["What sandboxes have set themselves holds again once a key is unset with --global."],
  examples: [
    "openshell settings delete dev --key ocsf_json_enabled",
    "openshell settings delete --global --key ocsf_json_enabled --yes",
  ],
};

export async function run(context: Context, args: Args): Promise<number> {
  const key = settingKey(args);
  const { request, sandbox } = await settingsPlace(context, args);
  if (sandbox === undefined && !(await confirmed(context, `Unset ${key} for every sandbox?`))) return EXIT.failure;
  const { deleted } = await context.call("UpdateConfig", { ...request, settingKey: key, deleteSetting: true });
  const what = sandbox === undefined ? `global setting ${key}` : `sandbox setting ${key} of ${sandbox}`;
  if (deleted === true) await context.success(`Deleted ${what}.`);
  else await context.warn(`Nothing to delete: ${what} is not set.`);
  if (sandbox !== undefined && deleted === true) await sayUnlessInForce(context, sandbox);
  return EXIT.ok;
}
