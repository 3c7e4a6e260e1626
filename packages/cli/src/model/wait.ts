import type { Context } from "../context.ts";
import { CliError } from "../errors.ts";
import { Progress } from "../output/progress.ts";
import { cell } from "../output/terminal.ts";
import { streamJson } from "../transport/json-stream.ts";
import { notReadyReason, object, type SandboxView, sandboxView } from "./sandbox.ts";

/** Limit of a wait from a variable, in seconds. */
function limitSeconds(context: Context, variable: string): number {
  const value = Number(context.env[variable] ?? "");
  return Number.isFinite(value) && value > 0 ? value : 300;
}

export interface WaitOptions {
  /** Phases that end the wait well. */
  readonly until: readonly string[];
  /** Phases that end it as a failure. */
  readonly failed: readonly string[];
  /** What is being waited for, for people. */
  readonly doing: string;
  readonly limitVariable: "OPENSHELL_PROVISION_TIMEOUT" | "OPENSHELL_LIFECYCLE_TIMEOUT";
}

/** Watches a sandbox until it is in one of the phases. Throws when it fails, vanishes, or the limit passes. */
export async function waitForPhase(context: Context, name: string, options: WaitOptions): Promise<SandboxView> {
  const target = await context.ensureGateway();
  const seconds = limitSeconds(context, options.limitVariable);
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), seconds * 1000);
  using progress = Progress.start(context.surroundings.stderr, context.err, `${options.doing} ${name}`);
  let last: SandboxView | undefined;
  try {
    const request = { workspaceScope: context.scope, sandbox: name, followStatus: true, followEvents: true };
    for await (const event of streamJson(target.endpoint, "WatchSandbox", request, stop.signal)) {
      const warning = object(event["warning"])["message"];
      if (warning !== undefined) await context.warn(cell(warning));
      if (event["sandbox"] === undefined) continue;
      last = sandboxView(event["sandbox"]);
      if (options.until.includes(last.phase)) return last;
      if (options.failed.includes(last.phase)) {
        throw new CliError(`sandbox ${name} is in phase ${last.phase}: ${notReadyReason(last) ?? "no reason given"}`, {
          next: `openshell logs ${name} shows what happened; openshell sandbox delete ${name} removes it`,
        });
      }
      progress.update(`${options.doing} ${name}: ${last.phase}`);
    }
  } catch (error) {
    if (!stop.signal.aborted) throw error;
    throw new CliError(`${options.doing.toLowerCase()} ${name} timed out after ${seconds} s`, {
      details: last === undefined ? [] : [`${last.phase}, ${notReadyReason(last) ?? "no reason given"}`],
      next: `Look at openshell sandbox get ${name}; ${options.limitVariable} sets a longer limit in seconds`,
    });
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
  throw new CliError(`sandbox ${name} was removed meanwhile`, { next: "Create it again" });
}
