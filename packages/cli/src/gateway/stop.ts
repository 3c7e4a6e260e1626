import type { GatewayRecord } from "@openshell/base/gateway-record.ts";
import type { GatewayPaths } from "@openshell/base/paths.ts";
import { isAlive } from "@openshell/base/process-identity.ts";
import { CliError } from "../errors.ts";

/** A gateway that keeps its sandboxes running ends well within a second; one that ends them has 30 s for that. Milliseconds. */
export const STOP_TIMEOUT_MS = 15_000;
export const STOP_WITH_SANDBOXES_TIMEOUT_MS = 45_000;
const POLL_MS = 10;

/** Waits until exactly this process is gone. */
export async function waitForEnd(paths: GatewayPaths, record: GatewayRecord, limitMs: number): Promise<void> {
  const deadline = performance.now() + limitMs;
  while (isAlive(record)) {
    if (performance.now() > deadline) {
      throw new CliError(`the gateway (pid ${record.pid}) does not end`, {
        code: "gateway_stop_failed",
        next: `See ${paths.logs}; then end it by hand: kill -9 ${record.pid} (sandboxes keep running)`,
      });
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Ends a gateway that another one replaces; its sandboxes stay with their hosts. */
export async function stopForReplacement(paths: GatewayPaths, record: GatewayRecord): Promise<void> {
  if (!isAlive(record)) return;
  try {
    process.kill(record.pid, "SIGTERM");
  } catch {
    // It ended by itself between the look and the call.
  }
  await waitForEnd(paths, record, STOP_TIMEOUT_MS);
}
