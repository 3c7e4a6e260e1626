import type { Args, CommandSpec } from "../args.ts";
import { type Context, wholeNumber } from "../context.ts";
import { EXIT, usageError } from "../errors.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { policyStatus } from "../model/policy-revision.ts";
import { object, text } from "../model/sandbox.ts";
import { cell } from "../output/terminal.ts";
import { policyMessage, readPolicyFile } from "../policy/file.ts";
import type { Json } from "../transport/unary.ts";

export const spec: CommandSpec = {
  path: ["policy", "set"],
  summary: "replace the policy of a sandbox",
  positionals: [{ name: "SANDBOX" }],
  flags: [
    { long: "policy", value: "FILE", help: "policy file, YAML or JSON; - for standard input" },
    { long: "wait", help: "return when the sandbox has taken it up" },
    { long: "timeout", value: "SECONDS", help: "limit of --wait (default: 60)" },
  ],
  about: [
    "Connections that the new policy does not allow are cut; the others go on.",
    "filesystem_policy, landlock and process apply when a sandbox starts: those that FILE leaves out stay as they are.",
    "With --wait the exit status is 0 when it is in force or has been superseded, 1 when it was rejected, 124 when the limit passed.",
  ],
  examples: ["openshell policy set dev --policy policy.yaml --wait"],
};

const POLL_MS = 1000;
const DEFAULT_WAIT_SECONDS = 60;
const LONGEST_WAIT_SECONDS = 3600;

export async function run(context: Context, args: Args): Promise<number> {
  const file = args.value("policy");
  if (file === undefined) throw usageError("--policy is missing", "Write --policy FILE");
  const seconds = wholeNumber(args.value("timeout"), "timeout", 1, LONGEST_WAIT_SECONDS) ?? DEFAULT_WAIT_SECONDS;
  const { policy, warnings } = await readPolicyFile(file, context);
  for (const line of warnings) await context.warn(line);
  const sandbox = await sandboxName(context, args.positionals[0]);
  const scope = { workspaceScope: context.scope };
  const before = await context.call("GetSandboxConfig", { ...scope, name: sandbox });
  const { message, kept } = withStartSections(policyMessage(policy), object(before["policy"]));
  const answer = await context.call("UpdateConfig", { ...scope, sandbox, policy: message });
  const version = Number(answer["version"] ?? 0);
  const hash = text(answer["policyHash"]).slice(0, 12);
  if (version === Number(before["version"] ?? 0)) {
    await context.say(`· Policy unchanged (version ${version}, hash ${cell(hash)}).`);
    if (!args.has("wait")) return EXIT.ok;
  } else {
    await context.success(`Policy version ${version} stored (hash ${cell(hash)}).`);
  }
  if (kept.length > 0) await context.say(context.err.dim(`  kept as they were: ${kept.join(", ")}`));
  return args.has("wait") ? waitForLoad(context, sandbox, version, seconds) : EXIT.ok;
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

async function waitForLoad(context: Context, sandbox: string, version: number, seconds: number): Promise<number> {
  const deadline = performance.now() + seconds * 1000;
  for (;;) {
    const answer = await context.call("GetSandboxPolicyStatus", { workspaceScope: context.scope, sandbox, version });
    const revision = object(answer["revision"]);
    switch (policyStatus(revision["status"])) {
      case "loaded":
        await context.success(`Policy version ${version} is in force.`);
        return EXIT.ok;
      case "superseded":
        await context.warn(
          `Policy version ${version} was superseded by version ${Number(answer["activeVersion"] ?? 0)}.`,
        );
        return EXIT.ok;
      case "failed":
        await context.say(
          `${context.err.red("✗")} Policy version ${version} was rejected: ${cell(revision["loadError"])}`,
        );
        await context.say(
          `  ${context.err.bold("next:")} the version before stays in force; correct the policy and set it again`,
        );
        return EXIT.failure;
    }
    if (performance.now() + POLL_MS > deadline) {
      await context.say(`${context.err.red("✗")} Policy version ${version} was not taken up within ${seconds} s.`);
      await context.say(`  ${context.err.bold("next:")} openshell sandbox get ${sandbox} says whether it runs`);
      return EXIT.timeout;
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
