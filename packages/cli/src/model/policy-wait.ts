import { type Context, wholeNumber } from "../context.ts";
import { EXIT } from "../errors.ts";
import { cell } from "../output/terminal.ts";
import type { Json } from "../transport/unary.ts";
import { dormantPhase } from "./dormant.ts";
import { policyStatus } from "./policy-revision.ts";
import { missingPart, object, sandboxView, text } from "./sandbox.ts";

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

/** How long a change may be waited for, counted from the request. */
export interface PolicyWait {
  readonly seconds: number;
  /** What tells the gateway how long `UpdateConfig` may wait for the sandbox. */
  readonly call: { readonly metadata?: Record<string, string> };
  readonly deadline: number;
}

/** To be called right before the request. */
export function beginWait({ args }: Context, seconds: number): PolicyWait {
  const told = args.has("no-wait") ? 0 : args.has("wait") ? Math.min(seconds, GATEWAY_WAIT_SECONDS) : undefined;
  const call = told === undefined ? {} : { metadata: { "openshell-config-wait": String(told) } };
  return { seconds, call, deadline: performance.now() + seconds * 1000 };
}

/** Says what `UpdateConfig` did, and waits for the sandbox where that was asked for. Gives the exit status. */
export async function policyStored(
  context: Context,
  sandbox: string,
  before: Json,
  answer: Json,
  wait: PolicyWait,
  note?: string,
): Promise<number> {
  const version = Number(answer["version"] ?? 0);
  const hash = text(answer["policyHash"]).slice(0, 12);
  const unchanged = version === Number(before["version"] ?? 0);
  await (unchanged
    ? context.say(`· Policy unchanged (version ${version}, hash ${cell(hash)}).`)
    : context.success(`Policy version ${version} stored (hash ${cell(hash)}).`));
  if (note !== undefined) await context.say(context.err.dim(`  ${note}`));
  if (context.args.has("wait")) return waitForLoad(context, sandbox, version, wait);
  // The answer came when the sandbox had taken it up, or after a while without: only the latter is worth a word.
  if (!unchanged && !context.args.has("no-wait")) await sayUnlessLoaded(context, sandbox, version).catch(() => {});
  return EXIT.ok;
}

async function sayUnlessLoaded(context: Context, sandbox: string, version: number): Promise<void> {
  const { status, answer } = await look(context, sandbox, version);
  if (status === "failed") return sayRejected(context, version, answer);
  if (status !== "pending") return;
  const dormant = await dormantPhase(context, sandbox);
  if (dormant !== undefined) return sayDormant(context, version, dormant);
  await context.say(`· Policy version ${version} is not in force yet; it follows by itself.`);
  await context.say(`  ${context.err.bold("next:")} openshell policy list ${cell(sandbox)} says when it is`);
}

async function look(context: Context, sandbox: string, version: number) {
  const answer = await context.call("GetSandboxPolicyStatus", { workspaceScope: context.scope, sandbox, version });
  return { answer, status: policyStatus(object(answer["revision"])["status"]) };
}

/** A part that a policy needs may be missing while the policy itself is in force. */
async function sayLoaded(context: Context, sandbox: string, version: number): Promise<void> {
  const missing = await context.call("GetSandbox", { workspaceScope: context.scope, name: sandbox }).then(
    (answer) => missingPart(sandboxView(answer["sandbox"])),
    () => undefined,
  );
  if (missing === undefined) return context.success(`Policy version ${version} is in force.`);
  await context.warn(`Policy version ${version} is ${cell(missing)}`);
}

async function sayRejected(context: Context, version: number, answer: Json): Promise<void> {
  const why = cell(object(answer["revision"])["loadError"]);
  await context.say(`${context.err.red("✗")} Policy version ${version} was rejected: ${why}`);
  await context.say(
    `  ${context.err.bold("next:")} openshell sandbox get says what holds now; correct the policy and set it again`,
  );
}

function sayDormant(context: Context, version: number, phase: string): Promise<void> {
  return context.say(`· Policy version ${version} takes effect at the next start: the sandbox is ${phase}.`);
}

async function waitForLoad(context: Context, sandbox: string, version: number, wait: PolicyWait): Promise<number> {
  for (;;) {
    const { status, answer } = await look(context, sandbox, version);
    switch (status) {
      case "loaded":
        await sayLoaded(context, sandbox, version);
        return EXIT.ok;
      case "superseded":
        await context.warn(
          `Policy version ${version} was superseded by version ${Number(answer["activeVersion"] ?? 0)}.`,
        );
        return EXIT.ok;
      case "failed":
        await sayRejected(context, version, answer);
        return EXIT.failure;
    }
    const dormant = await dormantPhase(context, sandbox);
    if (dormant !== undefined) {
      await sayDormant(context, version, dormant);
      return EXIT.ok;
    }
    const left = wait.deadline - performance.now();
    if (left <= 0) {
      await context.say(`${context.err.red("✗")} Policy version ${version} was not taken up within ${wait.seconds} s.`);
      await context.say(`  ${context.err.bold("next:")} openshell sandbox get ${sandbox} says whether it runs`);
      return EXIT.timeout;
    }
    await new Promise((resolve) => setTimeout(resolve, Math.min(POLL_MS, left)));
  }
}
