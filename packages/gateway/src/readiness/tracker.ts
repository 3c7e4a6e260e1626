import type { ProviderDesiredIdentity, ProviderMutationReceipt } from "@openshell/api";
import { type Clock, LogField } from "@openshell/base";
import type { Logger } from "pino";
import { wantsToRun } from "../compute/status.ts";
import { buildSnapshot, type Snapshot, type SnapshotDeps } from "../delivery/snapshot.ts";
import { bindings } from "../providers/environment.ts";
import type { SessionRegistry } from "../sessions/registry.ts";
import type { OperationRecord, ProviderRecord, SandboxRecord, Store } from "../store/types.ts";
import { evaluate, type Facts, type Readiness } from "./evaluate.ts";
import type { Observations } from "./observations.ts";
import { ending } from "./operations.ts";
import { desiredIdentity } from "./receipts.ts";

export interface TrackerDeps extends SnapshotDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Logger;
  readonly sessions: SessionRegistry;
  readonly observations: Observations;
}

/** What has to be in force for a provider of a sandbox now. */
interface Wanted {
  readonly desired: ProviderDesiredIdentity;
  /** Undefined when it shall be gone. */
  readonly provider: ProviderRecord | undefined;
  /** The policy says where its credentials may be used. */
  readonly bound: boolean;
}

/** Holds what is wanted against what supervisors show, and ends the operations that this decides. */
export class ReadinessTracker {
  readonly #deps: TrackerDeps;
  /** Sandboxes whose operations are being looked at, and whether to look again afterwards. */
  readonly #looking = new Map<string, boolean>();

  constructor(deps: TrackerDeps) {
    this.#deps = deps;
  }

  /** The identity that has to be in force for a provider now; `provider` undefined when it shall be gone. */
  async wanted(record: SandboxRecord, name: string): Promise<Wanted> {
    return wantedFrom(this.#deps, record, await buildSnapshot(this.#deps, record), name);
  }

  /** How far the change of this receipt is in force. */
  async status(record: SandboxRecord, receipt: ProviderMutationReceipt): Promise<Readiness> {
    return evaluate(this.#facts(record, receipt, await this.wanted(record, receipt.provider)));
  }

  /** New evidence of a sandbox: what it decides becomes final. Never rejects. */
  async observed(sandboxId: string): Promise<void> {
    if (this.#looking.has(sandboxId)) {
      this.#looking.set(sandboxId, true);
      return;
    }
    this.#looking.set(sandboxId, false);
    try {
      do {
        this.#looking.set(sandboxId, false);
        await this.#settle(sandboxId);
      } while (this.#looking.get(sandboxId) === true);
    } catch (error) {
      // The next evidence, or whoever asks, decides it.
      this.#deps.log.warn({ [LogField.sandboxId]: sandboxId, err: error }, "cannot settle changes of providers");
    } finally {
      this.#looking.delete(sandboxId);
    }
  }

  async #settle(sandboxId: string): Promise<void> {
    const { store, clock } = this.#deps;
    const pending = (await store.operations.pending(sandboxId)).filter(({ receipt }) => receipt !== undefined);
    if (pending.length === 0) return;
    const record = await store.sandboxes.byId(sandboxId);
    if (record === undefined) return;
    const snapshot = await buildSnapshot(this.#deps, record);
    const at = clock.now();
    const commands = [];
    for (const operation of pending) {
      const command = await this.#ending(record, operation, snapshot, at);
      if (command !== undefined) commands.push(command);
    }
    if (commands.length > 0) await store.write(...commands);
  }

  async #ending(record: SandboxRecord, operation: OperationRecord, snapshot: Snapshot, at: number) {
    const receipt = operation.receipt!;
    const wanted = await wantedFrom(this.#deps, record, snapshot, receipt.provider);
    return ending(this.#deps.store, operation, evaluate(this.#facts(record, receipt, wanted)), at);
  }

  #facts(
    record: SandboxRecord,
    receipt: ProviderMutationReceipt,
    { desired: current, provider, bound }: Wanted,
  ): Facts {
    const { clock, sessions, observations } = this.#deps;
    const session = sessions.get(record.id);
    const speaking = session !== undefined && (session.state === "accepted" || session.state === "ready");
    const now = clock.now();
    const credentials = [...(provider?.credentials.values() ?? [])];
    const expired = credentials.some(({ expiresAt }) => expiresAt !== undefined && expiresAt <= now);
    // One that polls is given no credential that nothing confines (polling/messages.ts).
    const kept = speaking && session.polls && credentials.length > 0 && !bound;
    return {
      desired: receipt.desired,
      current,
      withheld: kept ? "credentials" : expired ? "expired" : undefined,
      running: wantsToRun(record.status.phase),
      session: speaking ? session : undefined,
      evidence: observations.of(record.id),
    };
  }
}

async function wantedFrom(
  { store }: Pick<TrackerDeps, "store">,
  record: SandboxRecord,
  snapshot: Snapshot,
  name: string,
): Promise<Wanted> {
  const attached = record.spec.providers.includes(name);
  const provider = attached ? await store.providers.byName(record.workspace, name) : undefined;
  const { policy } = snapshot.config;
  const bound = policy !== undefined && bindings(policy).has(name);
  return { desired: desiredIdentity(record, snapshot, provider), provider, bound };
}
