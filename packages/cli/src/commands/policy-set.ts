import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT, quote, usageError } from "../errors.ts";
import { confirmed, YES_FLAG } from "../model/confirm.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { beginWait, policyStored, WAIT_ABOUT, WAIT_FLAGS, waitSeconds } from "../model/policy-wait.ts";
import { object, text } from "../model/sandbox.ts";
import { cell } from "../output/terminal.ts";
import { policyMessage, readPolicyFile } from "../policy/file.ts";
import type { Json } from "../transport/unary.ts";

export const spec: CommandSpec = {
  path: ["policy", "set"],
  summary: "replace the policy of a sandbox",
  positionals: [{ name: "SANDBOX", names: "sandboxes" }],
  flags: [
    { long: "policy", value: "FILE", help: "policy file, YAML or JSON; - for standard input" },
    ...WAIT_FLAGS,
    {
      long: "global",
      conflicts: WAIT_FLAGS.map(({ long }) => long),
      help: "in every sandbox, in place of its own network rules",
    },
    YES_FLAG,
  ],
  about: [
    "Connections that the new policy does not allow are cut; the others go on.",
    "filesystem_policy, landlock and process apply when a sandbox starts: those that FILE leaves out stay as they are.",
    WAIT_ABOUT,
    "With --global FILE has network sections only, and the policies of sandboxes cannot be changed until openshell policy delete --global.",
  ],
  examples: [
    "openshell policy set dev --policy policy.yaml --wait",
    "openshell policy set --global --policy policy.yaml --yes",
  ],
};

export async function run(context: Context, args: Args): Promise<number> {
  const file = args.value("policy");
  if (file === undefined) throw usageError("--policy is missing", "Write --policy FILE");
  const seconds = waitSeconds(context);
  const { policy, warnings } = await readPolicyFile(file, context);
  for (const line of warnings) await context.warn(line);
  if (args.has("global")) return setGlobal(context, args, policyMessage(policy));
  const sandbox = await sandboxName(context, args.positionals[0]);
  const scope = { workspaceScope: context.scope };
  const before = await context.call("GetSandboxConfig", { ...scope, name: sandbox });
  const { message, kept } = withStartSections(policyMessage(policy), object(before["policy"]));
  const wait = beginWait(context, seconds);
  const answer = await context.call("UpdateConfig", { ...scope, sandbox, policy: message }, wait.call);
  const note = kept.length > 0 ? `kept as they were: ${kept.join(", ")}` : undefined;
  return policyStored(context, sandbox, before, answer, wait, note);
}

async function setGlobal(context: Context, args: Args, policy: Json): Promise<number> {
  const [sandbox] = args.positionals;
  if (sandbox !== undefined)
    throw usageError(`--global and the sandbox ${quote(sandbox)} exclude each other`, "Keep one of them");
  if (!(await confirmed(context, "Replace the network rules of every sandbox?"))) return EXIT.failure;
  const answer = await context.call("UpdateConfig", { global: true, policy });
  const hash = cell(text(answer["policyHash"]).slice(0, 12));
  await context.success(
    `Global policy version ${Number(answer["version"] ?? 0)} stored for every sandbox (hash ${hash}).`,
  );
  return EXIT.ok;
}

/** Sections that a sandbox takes up when it starts, by their names on the wire and in files. */
const START_SECTIONS = { filesystem: "filesystem_policy", landlock: "landlock", process: "process" } as const;

/**
 * The policy with the sections of `current` that it does not have itself. A running sandbox cannot lose them, and whoever
 * writes network rules for one should not have to copy them.
 */
function withStartSections(message: Json, current: Json): { readonly message: Json; readonly kept: readonly string[] } {
  const missing = Object.keys(START_SECTIONS).filter((key) => message[key] === undefined && current[key] !== undefined);
  return {
    message: { ...message, ...Object.fromEntries(missing.map((key) => [key, current[key]])) },
    kept: missing.map((key) => START_SECTIONS[key as keyof typeof START_SECTIONS]),
  };
}
