import type { Context } from "../context.ts";
import { object, phaseName } from "./sandbox.ts";

/** Phases without a supervisor: what is changed meanwhile is taken up by the next start, and by nothing before. */
const DORMANT: ReadonlySet<string> = new Set(["Stopped", "Completed", "Error"]);

/** A sandbox in this phase takes up no change. */
export function isDormant(phase: string): boolean {
  return DORMANT.has(phase);
}

/** The phase of a sandbox in which nobody takes up a change, in lower case; undefined while somebody may, or nobody can say. */
export async function dormantPhase(context: Context, sandbox: string): Promise<string | undefined> {
  try {
    const answer = await context.call("GetSandbox", { workspaceScope: context.scope, name: sandbox });
    const phase = phaseName(object(object(answer["sandbox"])["status"])["phase"]);
    return isDormant(phase) ? phase.toLowerCase() : undefined;
  } catch {
    // The change is stored, and the wait for it has an end of its own.
    return undefined;
  }
}
