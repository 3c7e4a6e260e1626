import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { EXIT } from "../errors.ts";
import { object, text } from "../model/sandbox.ts";
import { GLOBAL_FLAG, SETTINGS_ABOUT, settingsPlace } from "../model/settings.ts";
import { columnWidths, tableLine } from "../output/table.ts";
import { cell } from "../output/terminal.ts";
import type { Json } from "../transport/unary.ts";

export const spec: CommandSpec = {
  path: ["settings", "get"],
  summary: "show the settings",
  positionals: [{ name: "SANDBOX", names: "sandboxes" }],
  flags: [GLOBAL_FLAG, { long: "json", conflicts: ["output"], help: "as -o json" }, OUTPUT_FLAG],
  about: ["A value comes from the gateway (global), from the sandbox, or from nowhere (unset).", ...SETTINGS_ABOUT],
  examples: ["openshell settings get dev", "openshell settings get --global -o json"],
};

/** Of a setting that nothing sets. */
const UNSET = "<unset>";

export async function run(context: Context, args: Args): Promise<number> {
  const { sandbox } = await settingsPlace(context, args);
  const shown = sandbox === undefined ? await ofGateway(context) : await ofSandbox(context, sandbox);
  const format = args.has("json") ? "json" : context.outputFormat;
  if (format !== "table") await context.printStructured(shown.facts, format);
  else {
    const lines = [shown.headers, ...shown.rows];
    const widths = columnWidths(
      shown.headers.map(() => 0),
      lines,
    );
    await context.print(lines.map((line) => `${tableLine(line, widths)}\n`).join(""));
  }
  return EXIT.ok;
}

interface Shown {
  readonly facts: Json;
  readonly headers: readonly string[];
  readonly rows: readonly (readonly string[])[];
}

async function ofSandbox(context: Context, sandbox: string): Promise<Shown> {
  const config = await context.call("GetSandboxConfig", { workspaceScope: context.scope, name: sandbox });
  const entries = sorted(config["settings"]).map(([key, setting]) => ({
    key,
    value: valueText(setting["value"]),
    scope: scopeName(setting["scope"]),
  }));
  const facts = {
    sandbox,
    workspace: context.workspace,
    config_revision: text(config["configRevision"]) || "0",
    policy_source: enumName(config["policySource"], "POLICY_SOURCE_") || "sandbox",
    policy_hash: text(config["policyHash"]),
    settings_revision: text(config["settingsRevision"]) || "0",
    settings: Object.fromEntries(entries.map(({ key, value, scope }) => [key, { value, scope }])),
  };
  const rows = entries.map(({ key, value, scope }) => [cell(key), cell(value), scope]);
  return { facts, headers: ["KEY", "VALUE", "SCOPE"], rows };
}

async function ofGateway(context: Context): Promise<Shown> {
  const answer = await context.call("GetGatewayConfig", {});
  const entries = sorted(answer["settings"]).map(([key, value]) => [key, valueText(value)] as const);
  const facts = {
    scope: "global",
    settings_revision: text(answer["settingsRevision"]) || "0",
    settings: Object.fromEntries(entries),
  };
  return { facts, headers: ["KEY", "VALUE"], rows: entries.map(([key, value]) => [cell(key), cell(value)]) };
}

function sorted(settings: unknown): readonly (readonly [string, Json])[] {
  return Object.entries(object(settings))
    .map(([key, value]) => [key, object(value)] as const)
    .toSorted(([a], [b]) => (a < b ? -1 : 1));
}

/** A `SettingValue` as text. */
function valueText(value: unknown): string {
  const [given] = Object.values(object(value));
  return given === undefined ? UNSET : String(given);
}

function scopeName(scope: unknown): string {
  return enumName(scope, "SETTING_SCOPE_").replace("unspecified", "") || "unset";
}

function enumName(value: unknown, prefix: string): string {
  return text(value).replace(prefix, "").toLowerCase();
}
