import { NO_EFFECT, SETTINGS } from "@openshell/base/settings.ts";
import type { Args, Flag } from "../args.ts";
import type { Context } from "../context.ts";
import { quote, usageError } from "../errors.ts";
import type { Json } from "../transport/unary.ts";
import { sandboxName } from "./last-sandbox.ts";

export const KEY_FLAG: Flag = {
  long: "key",
  value: "KEY",
  choices: SETTINGS.map(({ key }) => key),
  help: SETTINGS.map(({ key }) => key).join(", "),
};

export const GLOBAL_FLAG: Flag = {
  long: "global",
  help: "of the gateway: holds in every sandbox, and wins over its own",
};

const without = SETTINGS.filter(({ hasEffect }) => !hasEffect).map(({ key }) => key);

export const SETTINGS_ABOUT: readonly string[] = [
  "ocsf_json_enabled: JSON records of security events beside the log lines of a sandbox; running sandboxes follow at once.",
  `${without.join(", ")}: kept and delivered; ${NO_EFFECT}.`,
];

/** What a request is about: one sandbox, or the gateway. */
export interface SettingsPlace {
  /** The place in a request. */
  readonly request: Json;
  /** Undefined: the gateway. */
  readonly sandbox: string | undefined;
}

export async function settingsPlace(context: Context, args: Args): Promise<SettingsPlace> {
  const given = args.positionals[0];
  if (args.has("global")) {
    if (given !== undefined)
      throw usageError(`--global and the sandbox ${quote(given)} exclude each other`, "Keep one of them");
    return { request: { global: true }, sandbox: undefined };
  }
  const sandbox = await sandboxName(context, given);
  return { request: { workspaceScope: context.scope, sandbox }, sandbox };
}

/** The key that is to be changed. */
export function settingKey(args: Args): string {
  const key = args.value("key");
  if (key === undefined) throw usageError("--key is missing", `Write --key KEY: ${KEY_FLAG.help}`);
  return key;
}

/** How people write what is on and off. */
const BOOLS: Readonly<Record<string, boolean>> = {
  ...Object.fromEntries(["1", "true", "yes", "y", "on"].map((word) => [word, true])),
  ...Object.fromEntries(["0", "false", "no", "n", "off"].map((word) => [word, false])),
};

/** A `SettingValue` of the text for this key. */
export function settingValue(key: string, text: string): { readonly message: Json; readonly shown: string } {
  const { type, allowed } = SETTINGS.find((item) => item.key === key)!;
  if (type === "bool") {
    const word = text.toLowerCase();
    if (!Object.hasOwn(BOOLS, word)) throw usageError(`--value ${quote(text)} is no bool`, "Write true or false");
    return { message: { boolValue: BOOLS[word]! }, shown: String(BOOLS[word]) };
  }
  if (allowed !== undefined && !allowed.includes(text))
    throw usageError(`--value ${quote(text)} is not possible for ${key}`, `Use one of: ${allowed.join(", ")}`);
  return { message: { stringValue: text }, shown: text };
}

/** Says that a setting does nothing, where it is so. */
export async function sayEffect(context: Context, key: string): Promise<void> {
  if (SETTINGS.some((item) => item.key === key && !item.hasEffect)) await context.warn(`${key}: ${NO_EFFECT}.`);
}
