import { type Context, wholeNumber } from "../context.ts";
import { EXIT } from "../errors.ts";
import { cell } from "../output/terminal.ts";
import type { Json } from "../transport/unary.ts";
import { dormantPhase } from "./dormant.ts";
import { policyStatus } from "./policy-revision.ts";
import { object, text } from "./sandbox.ts";

const POLL_MS = 1000;
const DEFAULT_WAIT_SECONDS = 60;
const LONGEST_WAIT_SECONDS = 3600;

/** Options of commands that change a policy. */
export const WAIT_FLAGS = [
  { long: "wait", help: "return when the sandbox has taken it up" },
  {
    long: "no-wait",
    conflicts: ["wait", "timeout"],
    help: "return when it is stored (default: up to 5 s for a running sandbox)",
  },
  { long: "timeout", value: "SECONDS", help: `limit of --wait (default: ${DEFAULT_WAIT_SECONDS})` },
] as const;

export const WAIT_ABOUT =
  "With --wait the exit status is 0 when it is in force, has been superseded or waits for the start of a sandbox that does not run, 1 when it was rejected, 124 when the limit passed.";

/** The limit of `--wait`; throws usage errors, so it is asked for before anything is changed. */
export function waitSeconds(context: Context): number {
  return wholeNumber(context.args.value("timeout"), "timeout", 1, LONGEST_WAIT_SECONDS) ?? DEFAULT_WAIT_SECONDS;
}

/** Longest wait that the gateway takes upon itself; beyond it the command asks. */
const GATEWAY_WAIT_SECONDS = 20;

/** What tells the gateway how long `UpdateConfig` may wait for the sandbox. */
export function waitMetadata(context: Context, seconds: number): { readonly metadata?: Record<string, string> } {
  if (context.args.has("no-wait")) return { metadata: { "openshell-config-wait": "0" } };
  if (!context.args.has("wait")) return {};
  return { metadata: { "openshell-config-wait": String(Math.min(seconds, GATEWAY_WAIT_SECONDS)) } };
}

/** Says what `UpdateConfig` did, and waits for the sandbox where that was asked for. Gives the exit status. */
export async function policyStored(
  context: Context,
  sandbox: string,
  before: Json,
  answer: Json,
  seconds: number,
  note?: string,
): Promise<number> {
  const version = Number(answer["version"] ?? 0);
  const hash = text(answer["policyHash"]).slice(0, 12);
  const wait = context.args.has("wait");
  if (version === Number(before["version"] ?? 0)) {
    await context.say(`· Policy unchanged (version ${version}, hash ${cell(hash)}).`);
    if (!wait) return EXIT.ok;
  } else {
    await context.success(`Policy version ${version} stored (hash ${cell(hash)}).`);
  }
  if (note !== undefined) await context.say(context.err.dim(`  ${note}`));
  return wait ? waitForLoad(context, sandbox, version, seconds) : EXIT.ok;
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
    const dormant = await dormantPhase(context, sandbox);
    if (dormant !== undefined) {
      await context.say(`· Policy version ${version} takes effect at the next start: the sandbox is ${dormant}.`);
      return EXIT.ok;
    }
    if (performance.now() + POLL_MS > deadline) {
      await context.say(`${context.err.red("✗")} Policy version ${version} was not taken up within ${seconds} s.`);
      await context.say(`  ${context.err.bold("next:")} openshell sandbox get ${sandbox} says whether it runs`);
      return EXIT.timeout;
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
