import { SandboxPhase } from "@openshell/api";
import type { SandboxRecord } from "../store/types.ts";
import type { ApiDeps } from "./context.ts";

/** CreateSandbox waits so long for the outcome of the start. Milliseconds. */
export const START_WAIT_MS = 300;
const LOOK_EVERY_MS = 10;

/**
 * The record once its start has an outcome, or as it is after {@link START_WAIT_MS}. Clients poll once a second (the Python
 * package, for one): a sandbox that starts in a tenth of that is READY in the first answer already.
 */
export async function startedSoon(
  deps: Pick<ApiDeps, "clock" | "store" | "startWaitMs">,
  created: SandboxRecord,
  signal: AbortSignal,
): Promise<SandboxRecord> {
  const { clock, store, startWaitMs = START_WAIT_MS } = deps;
  const until = clock.monotonic() + startWaitMs;
  for (let latest = created; ; ) {
    if (latest.status.phase !== SandboxPhase.PROVISIONING || clock.monotonic() >= until) return latest;
    await clock.sleep(LOOK_EVERY_MS, { signal }).catch(() => {});
    // A caller who left gets nothing; a sandbox that is gone was made all the same.
    const now = signal.aborted ? undefined : await store.sandboxes.byId(created.id);
    if (now === undefined) return latest;
    latest = now;
  }
}
