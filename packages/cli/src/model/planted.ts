import { escapeUntrusted } from "@openshell/base/escape.ts";
import type { Context } from "../context.ts";
import { sandboxView } from "./sandbox.ts";
import type { Volume } from "./workload.ts";

const CONDITION = "VolumeStartupFiles";
/** The gateway looks through the volumes for at most 3 s. Milliseconds. */
const LIMIT_MS = 5_000;

/**
 * What a sandbox left in its volumes that the owner's programs would run, for whoever ran it: in a terminal or not, since it
 * concerns the next command outside. Says nothing when there is nothing, or when it cannot be told.
 */
export async function sayPlanted(context: Context, name: string, volumes: readonly Volume[]): Promise<void> {
  if (volumes.length === 0) return;
  try {
    const request = { workspaceScope: context.scope, name };
    const { sandbox } = await context.call("GetSandbox", request, { timeoutMs: LIMIT_MS });
    const condition = sandboxView(sandbox).conditions.find(({ type }) => type === CONDITION);
    if (condition?.["status"] !== "False") return;
    await context.say(context.err.yellow(`openshell: ${escapeUntrusted(String(condition["message"] ?? ""), 1_200)}`));
  } catch {
    // The command's own result is what counts.
  }
}
