import { randomBytes } from "node:crypto";
import { notFound } from "@openshell/api/errors.ts";
import { NONCE_BYTES, NONCE_SECRET, nonceContext } from "../compute/launch.ts";
import type { Command } from "../store/command.ts";
import { isStoreError } from "../store/errors.ts";
import type { SandboxChange, SandboxRecord } from "../store/types.ts";
import { admissionError } from "./admission.ts";
import type { ApiDeps } from "./context.ts";

/** A conditional change on behalf of a caller; watchers are told. */
export async function modify(
  deps: ApiDeps,
  record: SandboxRecord,
  change: (current: SandboxRecord) => SandboxChange | undefined,
): Promise<SandboxRecord> {
  try {
    const changed = await deps.store.modifySandbox(record.id, change);
    deps.feeds.of(record.id).changed();
    deps.sessions.notify(record.id);
    return changed;
  } catch (error) {
    if (isStoreError(error, "store_not_found")) throw notFound("sandbox", record.name);
    throw admissionError(error) ?? error;
  }
}

export async function write(deps: ApiDeps, commands: readonly Command<unknown>[]): Promise<void> {
  if (commands.length === 0) return;
  try {
    await deps.store.write(...commands);
  } catch (error) {
    throw admissionError(error) ?? error;
  }
}

/** A fresh nonce for one generation, sealed. */
export function storeNonce(
  deps: Pick<ApiDeps, "store" | "vault">,
  workspace: string,
  sandboxId: string,
  generation: bigint,
): Command<void> {
  const sealed = deps.vault.seal(nonceContext(workspace, sandboxId, generation), randomBytes(NONCE_BYTES));
  return deps.store.secrets.put(sandboxId, NONCE_SECRET, generation, sealed);
}
