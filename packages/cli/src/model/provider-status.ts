import { type Context, missingInAnswer, wholeNumber } from "../context.ts";
import { EXIT } from "../errors.ts";
import { cell } from "../output/terminal.ts";
import type { Json } from "../transport/unary.ts";
import { dormantPhase } from "./dormant.ts";
import { object, text } from "./sandbox.ts";

const POLL_FIRST_MS = 50;
const POLL_LAST_MS = 1_000;
const DEFAULT_WAIT_SECONDS = 30;
const LONGEST_WAIT_SECONDS = 3600;
/** Changes asked about at the same time. */
const AT_ONCE = 16;

/** Options of commands that change or look at the providers of sandboxes. */
export const PROVIDER_WAIT_FLAGS = [
  { long: "wait", help: "return when it is in force, or cannot be" },
  { long: "timeout", value: "SECONDS", help: `limit of --wait (default: ${DEFAULT_WAIT_SECONDS})` },
] as const;

export const PROVIDER_WAIT_ABOUT =
  "Without --wait the change is stored, and follows by itself. With --wait the exit status is 0 when it is in force and 1 otherwise.";

/** One change of one sandbox's provider, and how the wait for it ended. */
export interface Target {
  readonly sandbox: string;
  readonly provider: string;
  /** Empty: whatever is wanted now. */
  readonly receiptId: string;
}

type Outcome = "not_requested" | "complete" | "timed_out" | "terminal" | "observation_error";

interface Observed {
  readonly target: Target;
  readonly status: Json;
  readonly outcome: Outcome;
  /** Phase of a sandbox that does not run, where the wait ended for that. */
  readonly dormant?: string;
}

/** States that only another change ends. */
const TERMINAL = new Set(["failed", "superseded", "withheld"]);

/** The limit of `--wait`; throws usage errors, so it is asked for before anything is changed. */
export function providerWaitSeconds(context: Context): number {
  return wholeNumber(context.args.value("timeout"), "timeout", 1, LONGEST_WAIT_SECONDS) ?? DEFAULT_WAIT_SECONDS;
}

/** `PROVIDER_READINESS_STATE_READY` → `ready`. */
export function stateName(state: unknown): string {
  return text(state)
    .replace(/^PROVIDER_READINESS_STATE_/, "")
    .toLowerCase();
}

/** `PROVIDER_READINESS_REASON_X_Y` → `x y`; empty when there is none. */
function reasonText(reason: unknown): string {
  const name = text(reason).replace(/^PROVIDER_READINESS_REASON_/, "");
  return name === "UNSPECIFIED" ? "" : name.toLowerCase().replaceAll("_", " ");
}

/** Receipts of an answer as targets. */
export function targetOf(receipt: unknown): Target {
  const { receiptId, provider, desired } = object(receipt);
  const sandbox = object(desired)["sandbox"];
  if (typeof receiptId !== "string" || typeof sandbox !== "string") throw missingInAnswer("receipt");
  return { sandbox, provider: text(provider), receiptId };
}

/**
 * Shows how far changes are in force, waiting for them where that was asked for: one deadline for all, counted from here.
 * Gives the exit status.
 */
export async function showTargets(
  context: Context,
  targets: readonly Target[],
  seconds: number,
  mutationId = "",
): Promise<number> {
  const wait = context.args.has("wait");
  const deadline = performance.now() + seconds * 1000;
  const observed: Observed[] = [];
  for (let index = 0; index < targets.length; index += AT_ONCE) {
    const some = targets.slice(index, index + AT_ONCE);
    observed.push(...(await Promise.all(some.map((target) => observe(context, target, wait, deadline)))));
  }
  const format = context.outputFormat;
  if (format !== "table") {
    const shown = observed.map(({ status, outcome }) => ({ ...snake(status), wait_outcome: outcome }));
    await context.printStructured({ mutation_id: mutationId, targets: shown }, format);
  } else for (const one of observed) await say(context, one, seconds);
  return observed.every(({ outcome }) => outcome === "complete" || outcome === "not_requested")
    ? EXIT.ok
    : EXIT.failure;
}

async function observe(context: Context, target: Target, wait: boolean, deadline: number): Promise<Observed> {
  let pause = POLL_FIRST_MS;
  let status: Json = {};
  for (;;) {
    try {
      const { sandbox, provider, receiptId } = target;
      const request = { workspaceScope: context.scope, sandbox, provider, ...(receiptId === "" ? {} : { receiptId }) };
      status = object((await context.call("GetSandboxProviderStatus", request))["status"]);
    } catch (error) {
      // What is stored stays stored, whatever the look at it comes to.
      if (!wait || receiptless(target)) throw error;
      return { target, status, outcome: "observation_error" };
    }
    const state = stateName(status["state"]);
    if (!wait) return { target, status, outcome: "not_requested" };
    if (state === "ready" || state === "revoked") return { target, status, outcome: "complete" };
    if (TERMINAL.has(state)) return { target, status, outcome: "terminal" };
    const dormant = await dormantPhase(context, target.sandbox);
    if (dormant !== undefined) return { target, status, outcome: "terminal", dormant };
    const left = deadline - performance.now();
    if (left <= 0) return { target, status, outcome: "timed_out" };
    await new Promise((resolve) => setTimeout(resolve, Math.min(pause, left)));
    pause = Math.min(pause * 2, POLL_LAST_MS);
  }
}

const receiptless = ({ receiptId }: Target): boolean => receiptId === "";

async function say(context: Context, { target, status, outcome, dormant }: Observed, seconds: number): Promise<void> {
  const { err } = context;
  const state = stateName(status["state"]);
  const reason = reasonText(status["reason"]);
  const what = `Provider ${cell(target.provider)} of sandbox ${cell(target.sandbox)}`;
  const why = reason === "" ? "" : ` (${cell(reason)})`;
  const next = async (text: string) => await context.say(`  ${err.bold("next:")} ${text}`);
  const look = `openshell sandbox provider status ${cell(target.sandbox)} ${cell(target.provider)}`;
  switch (outcome) {
    case "complete":
      await context.success(
        state === "revoked" ? `${what} is detached and no longer resolves.` : `${what} is in force.`,
      );
      return;
    case "not_requested":
      await context.say(`· ${what}: ${cell(state)}${why}`);
      return;
    case "terminal":
      if (dormant !== undefined) {
        await context.say(
          `· ${what}: the change is stored and takes effect at the next start: the sandbox is ${cell(dormant)}.`,
        );
        await next(`openshell sandbox start ${cell(target.sandbox)}`);
        return;
      }
      await context.say(`${err.red("✗")} ${what} is not in force: ${cell(state)}${why}.`);
      await next(
        state === "superseded"
          ? `a later change is wanted now; ${look} says how far it is`
          : reason === "credential expired"
            ? `openshell provider update ${cell(target.provider)} with a new --credential, or another --credential-expires-at`
            : `${look}; see also openshell logs ${cell(target.sandbox)}`,
      );
      return;
    case "timed_out":
      await context.say(`${err.red("✗")} ${what} was not in force within ${seconds} s: ${cell(state)}${why}.`);
      await next(`the change is stored and follows by itself; ${look}`);
      return;
    case "observation_error":
      await context.say(`${err.red("✗")} ${what}: the change is stored, but its state cannot be read.`);
      await next(look);
  }
}

/** Names as in the protocol; 64-bit numbers are text there already. */
function snake(value: unknown): Json {
  const convert = (item: unknown): unknown => {
    if (Array.isArray(item)) return item.map(convert);
    if (typeof item !== "object" || item === null) return item;
    return Object.fromEntries(
      Object.entries(item).map(([key, inner]) => [
        key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
        convert(inner),
      ]),
    );
  };
  return convert(object(value)) as Json;
}
