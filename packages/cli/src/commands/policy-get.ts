import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG, wholeNumber } from "../context.ts";
import { EXIT, quote, usageError } from "../errors.ts";
import { standing } from "../model/in-force.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { revisionObject } from "../model/policy-revision.ts";
import { object, text } from "../model/sandbox.ts";
import { cell, formatTime } from "../output/terminal.ts";
import { plainPolicy, policyText } from "../policy/message.ts";
import type { Json } from "../transport/unary.ts";

export const spec: CommandSpec = {
  path: ["policy", "get"],
  summary: "show the policy of a sandbox",
  positionals: [{ name: "SANDBOX", names: "sandboxes" }],
  flags: [
    { long: "rev", value: "N", names: "revisions", help: "a stored revision (default: 0, the effective policy)" },
    { long: "full", conflicts: ["base"], help: "with the policy itself, rules of providers included" },
    { long: "base", help: "with the policy itself as it was set, without rules of providers" },
    { long: "global", help: "of the gateway, in place of a sandbox's" },
    OUTPUT_FLAG,
  ],
  about: ["What --base prints behind the line --- can be changed and given back to openshell policy set."],
  examples: ["openshell policy get dev --base", "openshell policy get dev --rev 3 -o json"],
};

export async function run(context: Context, args: Args): Promise<number> {
  const rev = wholeNumber(args.value("rev"), "rev", 0, 2 ** 31) ?? 0;
  const result = args.has("global") ? await ofGateway(context, args, rev) : await ofSandbox(context, args, rev);
  const policy = result.policy === undefined ? undefined : plainPolicy(result.policy);
  const shown = policy === undefined || !args.has("base") ? policy : withoutProviderRules(policy);
  const format = context.outputFormat;
  if (format !== "table") {
    await context.printStructured({ ...result.facts, policy: shown ?? null }, format);
    return EXIT.ok;
  }
  const lines = result.lines.map(([label, value]) => `${label}: ${value}\n`).join("");
  await context.print(lines);
  if ((args.has("full") || args.has("base")) && shown !== undefined) await context.print(`---\n${policyText(shown)}`);
  return EXIT.ok;
}

function ofGateway(context: Context, args: Args, rev: number): Promise<Shown> {
  const [sandbox] = args.positionals;
  if (sandbox !== undefined)
    throw usageError(`--global and the sandbox ${quote(sandbox)} exclude each other`, "Keep one of them");
  return stored(context, rev, { global: true }, { scope: "global" });
}

async function ofSandbox(context: Context, args: Args, rev: number): Promise<Shown> {
  const sandbox = await sandboxName(context, args.positionals[0]);
  const scope = { workspaceScope: context.scope };
  if (rev === 0) return effective(context, sandbox, scope);
  return stored(context, rev, { ...scope, sandbox }, { scope: "sandbox", sandbox });
}

interface Shown {
  readonly lines: readonly (readonly [string, string])[];
  readonly facts: Json;
  readonly policy: Json | undefined;
}

/** What is wanted now; `active_version` is the last one of its own that the sandbox had in force. */
async function effective(context: Context, name: string, scope: Json): Promise<Shown> {
  const config = await context.call("GetSandboxConfig", { ...scope, name });
  const version = Number(config["version"] ?? 0);
  const source =
    text(config["policySource"])
      .replace(/^POLICY_SOURCE_/, "")
      .toLowerCase() || "sandbox";
  const { view, inForce } = await standing(context, name, config);
  const active = Number(view.status["currentPolicyVersion"] ?? 0);
  const facts = {
    scope: "sandbox",
    sandbox: name,
    version,
    ...(source === "sandbox" ? { active_version: active } : {}),
    hash: text(config["policyHash"]),
    status: "effective",
    in_force: inForce === "yes",
    config_revision: text(config["configRevision"]) || "0",
    policy_source: source,
    global_policy_version: Number(config["globalPolicyVersion"] ?? 0),
  };
  return {
    facts,
    lines: [
      ["Version", String(facts.version)],
      ["Hash", cell(facts.hash)],
      ["Status", "effective"],
      ["In force", cell(inForce)],
      ["Source", source],
      ["Config rev", cell(facts.config_revision)],
      ...(facts.global_policy_version === 0 ? [] : [["Global", String(facts.global_policy_version)] as const]),
    ],
    policy: config["policy"] === undefined ? undefined : object(config["policy"]),
  };
}

/** `request`: whose revision; `about`: the same as structured output says it. */
async function stored(context: Context, version: number, request: Json, about: Json): Promise<Shown> {
  const answer = await context.call("GetSandboxPolicyStatus", { ...request, version });
  const revision = object(answer["revision"]);
  const facts = revisionObject(revision);
  const active = Number(answer["activeVersion"] ?? 0);
  return {
    facts: { ...about, active_version: active, ...facts },
    lines: [
      ["Version", String(facts["version"])],
      ["Hash", cell(facts["hash"])],
      ["Status", cell(facts["status"])],
      ["Active", String(active)],
      ["Created", formatTime(facts["created_at"])],
      ["Loaded", formatTime(facts["loaded_at"])],
      ...(facts["load_error"] === "" ? [] : [["Error", cell(facts["load_error"])] as const]),
    ],
    policy: revision["policy"] === undefined ? undefined : object(revision["policy"]),
  };
}

/** Rules that the gateway composed from attached providers are not part of what was set. */
function withoutProviderRules(policy: Json): Json {
  const rules = Object.entries(object(policy["network_policies"])).filter(([key]) => !key.startsWith("_provider_"));
  const { network_policies: _rules, ...rest } = policy;
  return rules.length === 0 ? rest : { ...rest, network_policies: Object.fromEntries(rules) };
}
