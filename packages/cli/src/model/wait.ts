import type { Context } from "../context.ts";
import { CliError, quote, usageError } from "../errors.ts";
import { Progress } from "../output/progress.ts";
import { cell, formatTime } from "../output/terminal.ts";
import { streamJson } from "../transport/json-stream.ts";
import { hasRun, notReadyReason, object, type SandboxView, sandboxView, text } from "./sandbox.ts";

const DEFAULT_SECONDS = 300;
/** A week; Node's timers end before a month does. */
const MOST_SECONDS = 7 * 86_400;

export type LimitVariable = "OPENSHELL_PROVISION_TIMEOUT" | "OPENSHELL_LIFECYCLE_TIMEOUT";

/** Limit of a wait from a variable, in seconds. Throws usage errors, so that it is asked for before anything is changed. */
export function limitSeconds(context: Context, variable: LimitVariable): number {
  const given = context.env[variable]?.trim() ?? "";
  if (given === "") return DEFAULT_SECONDS;
  const value = Number(given);
  if (/^\d+(?:\.\d+)?$/.test(given) && value > 0 && value <= MOST_SECONDS) return value;
  throw usageError(`$${variable}: ${quote(given)} is no limit`, `Use seconds, more than 0 and at most ${MOST_SECONDS}`);
}

export interface WaitOptions {
  /** Phases that end the wait well. */
  readonly until: readonly string[];
  /** Phases that end it as a failure. */
  readonly failed: readonly string[];
  /** What is being waited for, for people; without it nothing is shown. */
  readonly doing?: string;
  readonly limitVariable?: LimitVariable;
  /** The sandbox goes by itself when its main process has ended: gone after it ran is as good as ready. */
  readonly goes?: boolean;
  /** Hears what a long preparation does. */
  readonly onPreparing?: (what: string) => void;
  /** Ends the wait early, as its limit would. */
  readonly signal?: AbortSignal;
}

/** Events of the gateway which say that the main process ran. */
const RAN: readonly unknown[] = ["Ready", "MainProcessCompleted", "MainProcessFailed"];
const MAX_EVENTS = 50;

/**
 * Watches a sandbox until it is in one of the phases. A main process that has ended already counts as one that completed,
 * whatever its status: it was started. Throws when the sandbox fails, vanishes, or the limit passes.
 */
export async function waitForPhase(context: Context, name: string, options: WaitOptions): Promise<SandboxView> {
  const target = await context.ensureGateway();
  const limitVariable = options.limitVariable ?? "OPENSHELL_LIFECYCLE_TIMEOUT";
  const seconds = limitSeconds(context, limitVariable);
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), seconds * 1000);
  options.signal?.addEventListener("abort", () => stop.abort(), { once: true });
  if (options.signal?.aborted) stop.abort();
  const doing = options.doing ?? "Waiting for";
  const { stderr } = context.surroundings;
  using progress = options.doing === undefined ? undefined : Progress.start(stderr, context.err, `${doing} ${name}`);
  let last: SandboxView | undefined;
  let ran = false;
  let held: string | undefined;
  try {
    const follow = { followStatus: true, followEvents: true, eventTail: MAX_EVENTS };
    const request = { workspaceScope: context.scope, sandbox: name, ...follow };
    for await (const event of streamJson(target.endpoint, "WatchSandbox", request, stop.signal)) {
      const warning = object(event["warning"])["message"];
      if (warning !== undefined && progress !== undefined) await context.warn(cell(warning));
      ran ||= RAN.includes(object(event["event"])["reason"]);
      if (event["sandbox"] === undefined) continue;
      last = sandboxView(event["sandbox"]);
      if (options.until.includes(last.phase)) return last;
      if (options.until.includes("Completed") && hasRun(last)) return last;
      if (options.failed.includes(last.phase)) {
        throw new CliError(`sandbox ${name} is in phase ${last.phase}: ${notReadyReason(last) ?? "no reason given"}`, {
          code: "sandbox_failed",
          next: `openshell logs ${name} shows what happened; openshell sandbox delete ${name} removes it`,
        });
      }
      const why = heldReason(last);
      if (why !== undefined && why !== held) {
        held = why;
        Progress.clear();
        await sayHeld(context, last, why);
      }
      const preparing = preparation(last);
      if (preparing !== undefined) options.onPreparing?.(preparing);
      progress?.update(`${doing} ${name}: ${preparing ?? last.phase}`);
    }
  } catch (error) {
    if (!stop.signal.aborted) throw error;
    throw new CliError(`${doing} ${name} timed out after ${seconds} s`, {
      code: "wait_timeout",
      details: last === undefined ? [] : [`${last.phase}, ${notReadyReason(last) ?? "no reason given"}`],
      next: `Look at openshell sandbox get ${name}; ${limitVariable} sets a longer limit in seconds`,
    });
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
  if (options.goes === true && ran && last !== undefined) return last;
  throw new CliError(`sandbox ${name} was removed meanwhile`, { code: "sandbox_removed", next: "Create it again" });
}

/** A start that takes so long is looked at closer. Milliseconds. */
const SLOW_START_MS = 1_000;

/** Says why a start is held, where it takes long; until it is disposed of. */
export function watchSlowStart(context: Context, name: string): Disposable {
  const stop = new AbortController();
  const until = ["Ready", "Completed", "Stopped", "Deleting"];
  const timer = setTimeout(() => {
    waitForPhase(context, name, { until, failed: ["Error"], signal: stop.signal }).catch(() => {});
  }, SLOW_START_MS);
  timer.unref();
  return {
    [Symbol.dispose]() {
      clearTimeout(timer);
      stop.abort();
    },
  };
}

/** Why the gateway waits for a correction of the configuration before anything runs. */
function heldReason({ phase, conditions }: SandboxView): string | undefined {
  if (phase !== "Provisioning" && phase !== "Starting") return undefined;
  const held = conditions.find(({ type, reason }) => type === "Ready" && reason === "ConfigurationInvalid");
  return held === undefined ? undefined : cell(held["message"]);
}

async function sayHeld(context: Context, { name, status }: SandboxView, why: string): Promise<void> {
  const deadline = text(object(status["provisioning"])["deadline"]);
  const until = deadline === "" ? "" : ` until ${formatTime(deadline)}`;
  await context.warn(`sandbox ${cell(name)} is held, and nothing in it runs: ${why}`);
  const next = `openshell policy set ${cell(name)} --policy FILE, or a correction of its providers, lets it start${until}`;
  await context.say(`  ${context.err.bold("next:")} ${next}`);
}

/** What the gateway says of a start that takes long, such as how much of an image is unpacked. */
function preparation(view: SandboxView): string | undefined {
  const ready = view.conditions.find(({ type }) => type === "Ready");
  return ready?.["reason"] === "DependenciesNotReady" ? cell(ready["message"]) : undefined;
}
