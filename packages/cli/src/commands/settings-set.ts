import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT, usageError } from "../errors.ts";
import { confirmed, YES_FLAG } from "../model/confirm.ts";
import { sayUnlessInForce } from "../model/in-force.ts";
import {
  GLOBAL_FLAG,
  KEY_FLAG,
  SETTINGS_ABOUT,
  sayEffect,
  settingKey,
  settingsPlace,
  settingValue,
} from "../model/settings.ts";
import { cell } from "../output/terminal.ts";

export const spec: CommandSpec = {
  path: ["settings", "set"],
  summary: "set one",
  positionals: [{ name: "SANDBOX", names: "sandboxes" }],
  flags: [
    KEY_FLAG,
    { long: "value", value: "VALUE", help: "true or false; for proposal_approval_mode manual or auto" },
    GLOBAL_FLAG,
    YES_FLAG,
  ],
  about: [...SETTINGS_ABOUT, "A key that is set with --global cannot be set for a sandbox."],
  examples: [
    "openshell settings set dev --key ocsf_json_enabled --value true",
    "openshell settings set --global --key ocsf_json_enabled --value true --yes",
  ],
};

export async function run(context: Context, args: Args): Promise<number> {
  const key = settingKey(args);
  const text = args.value("value");
  if (text === undefined) throw usageError("--value is missing", "Write --value VALUE");
  const { message, shown } = settingValue(key, text);
  const { request, sandbox } = await settingsPlace(context, args);
  if (sandbox === undefined && !(await confirmed(context, `Set ${key}=${shown} in every sandbox?`)))
    return EXIT.failure;
  const answer = await context.call("UpdateConfig", { ...request, settingKey: key, settingValue: message });
  const revision = `(revision ${cell(answer["settingsRevision"])})`;
  if (sandbox === undefined) await context.success(`Set global setting ${key}=${shown} ${revision}.`);
  else await context.success(`Set sandbox setting ${key}=${shown} of ${sandbox} ${revision}.`);
  await sayEffect(context, key);
  if (sandbox !== undefined) await sayUnlessInForce(context, sandbox);
  return EXIT.ok;
}
