import { randomUUID } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  ConfigApplyOutcome,
  ConfigSnapshotRevisionSchema,
  PolicySource,
  type SandboxConfigRevision,
  type SandboxConfigRevisionSchema,
  SandboxPhase,
} from "@openshell/api";
import type { Clock } from "@openshell/base";
import { DONE } from "../sessions/reader.ts";
import type { Command } from "../store/command.ts";
import type { OperationRecord, SandboxRecord, Store } from "../store/types.ts";
import type { DeliveredFacts } from "./delivery.ts";
import { MAX_OUTCOME_WAITERS } from "./limits.ts";

/** How a wait for an operation ended. `unknown`: nothing was decided in time. */
export type ApplyResult = "applied" | "refused" | "superseded" | "unknown";

/** What a supervisor made of a configuration. */
export interface Delivered {
  readonly facts: DeliveredFacts;
  /** In force as it was sent. */
  readonly applied: boolean;
  readonly outcome: number;
  /** Why not: one line, without secrets. */
  readonly error: string;
}

/** The operations that an outcome decides: commands for its transaction, and whom to tell once that is durable. */
export interface Decision {
  readonly commands: readonly Command<void>[];
  readonly results: ReadonlyMap<string, ApplyResult>;
}

const NOTHING: Decision = { commands: [], results: new Map() };

/** Why an operation is superseded, in the words of the public API. */
const STATE_CHANGED = "DESIRED_STATE_CHANGED";

/** Where a delivered configuration stands to what an operation wants. */
type Position = "before" | "there" | "beyond";

/**
 * Changes of policy and settings as durable operations. One is recorded in the transaction of its change and becomes final
 * in the transaction that stores the outcome; whoever waits for it is told after that, over reconnects too.
 */
export class ConfigOperations {
  readonly #operations: Store["operations"];
  readonly #waiters = new Map<string, Set<(result: ApplyResult) => void>>();
  #waiting = 0;

  constructor(store: Pick<Store, "operations">) {
    this.#operations = store.operations;
  }

  /**
   * A change of this sandbox: the decision's commands go into its transaction, and `tell` follows that. Of a sandbox that does not run nothing is awaited: its
   * next start takes the change up. Earlier changes of the same kind are superseded.
   */
  async begin(
    record: SandboxRecord,
    target: MessageInitShape<typeof SandboxConfigRevisionSchema>,
    at: number,
  ): Promise<{ readonly operationId: string; readonly decision: Decision }> {
    const operationId = randomUUID();
    const revision = create(ConfigSnapshotRevisionSchema, { component: { case: "sandboxConfig", value: target } });
    const kind = kindOf(revision.component.value as SandboxConfigRevision);
    const earlier = (await this.#operations.pending(record.id)).filter(
      (operation) => configTarget(operation) !== undefined && kindOf(configTarget(operation)!) === kind,
    );
    const superseded = { outcome: ConfigApplyOutcome.IGNORED_STALE, error: STATE_CHANGED };
    const operation = {
      operationId,
      sandboxId: record.id,
      component: "config" as const,
      target: revision,
      state: stateFor(record.status.phase),
    };
    return {
      operationId,
      decision: {
        commands: [
          this.#operations.finish(idsOf(earlier), "superseded", superseded, at),
          this.#operations.record([operation], at),
        ],
        results: new Map(idsOf(earlier).map((id) => [id, "superseded"])),
      },
    };
  }

  /** What an outcome decides of a sandbox's operations. */
  async decide(sandboxId: string, delivered: Delivered, at: number): Promise<Decision> {
    const pending = await this.#operations.pending(sandboxId);
    const groups: Record<Position, OperationRecord[]> = { before: [], there: [], beyond: [] };
    for (const operation of pending) {
      const target = configTarget(operation);
      if (target !== undefined) groups[positionOf(delivered.facts, target)].push(operation);
    }
    const { there, beyond } = groups;
    if (there.length + beyond.length === 0) return NOTHING;
    const { applied, outcome, error } = delivered;
    const superseded = { outcome: ConfigApplyOutcome.IGNORED_STALE, error: STATE_CHANGED };
    return {
      commands: [
        this.#operations.finish(idsOf(beyond), "superseded", superseded, at),
        // A refusal is not the end: the same is tried again, and may succeed.
        applied
          ? this.#operations.finish(idsOf(there), "applied", { outcome, error: "" }, at)
          : this.#operations.note(idsOf(there), { outcome, error }, at),
      ],
      results: new Map([
        ...beyond.map(({ operationId }) => [operationId, "superseded"] as const),
        ...there.map(({ operationId }) => [operationId, applied ? "applied" : "refused"] as const),
      ]),
    };
  }

  /** The transaction of a decision is durable: whoever waits is told. */
  tell({ results }: Decision): void {
    for (const [operationId, result] of results) {
      for (const resolve of this.#waiters.get(operationId) ?? []) resolve(result);
    }
  }

  /**
   * Resolves when an outcome of this operation is durable, at the latest after the limit. A change that a stopped sandbox
   * takes up later is `unknown` at once.
   */
  async wait(
    operationId: string,
    limitMs: number,
    { clock, signal }: { readonly clock: Clock; readonly signal?: AbortSignal },
  ): Promise<ApplyResult> {
    if (limitMs <= 0 || this.#waiting >= MAX_OUTCOME_WAITERS || signal?.aborted) return "unknown";
    const { promise, resolve } = Promise.withResolvers<ApplyResult>();
    // Listening begins before the look, so that nothing between the two is missed.
    const listeners = this.#waiters.get(operationId) ?? new Set();
    this.#waiters.set(operationId, listeners.add(resolve));
    this.#waiting += 1;
    const timer = new AbortController();
    const left = (): void => resolve("unknown");
    signal?.addEventListener("abort", left, { once: true });
    try {
      const result = resultOf(await this.#operations.get(operationId));
      if (result !== undefined) return result;
      clock.sleep(limitMs, { signal: timer.signal, unref: true }).then(left, () => {});
      return await promise;
    } finally {
      timer.abort(DONE);
      signal?.removeEventListener("abort", left);
      this.#waiting -= 1;
      listeners.delete(resolve);
      if (listeners.size === 0) this.#waiters.delete(operationId);
    }
  }
}

/** The final result of an operation, or of its last attempt; undefined while it is open. */
function resultOf(record: OperationRecord | undefined): ApplyResult | undefined {
  if (record === undefined) return "unknown";
  switch (record.state) {
    case "pending":
      return record.error === "" ? undefined : "refused";
    case "applied":
      return "applied";
    case "superseded":
      return "superseded";
    case "failed":
      return "refused";
    default:
      return "unknown";
  }
}

/** Changes of policy and of settings supersede their own kind only. */
function kindOf({ policyVersion, policySource }: SandboxConfigRevision): string {
  if (policySource === PolicySource.GLOBAL) return "global policy";
  return policyVersion > 0 ? "policy" : "settings";
}

function configTarget({ target, receipt }: OperationRecord): SandboxConfigRevision | undefined {
  if (receipt !== undefined || target.component.case !== "sandboxConfig") return undefined;
  return target.component.value;
}

function positionOf(facts: DeliveredFacts, target: SandboxConfigRevision): Position {
  const kind = kindOf(target);
  if (kind === "settings") return compare(facts.settingsRevision, target.settingsRevision);
  if (kind === "global policy") return compare(facts.globalPolicyVersion, target.globalPolicyVersion);
  // Something else than a policy of the sandbox is wanted now.
  if (facts.policySource === "global") return "beyond";
  return compare(facts.policyVersion, target.policyVersion);
}

function compare(have: number | bigint, want: number | bigint): Position {
  if (have < want) return "before";
  return have > want ? "beyond" : "there";
}

function stateFor(phase: SandboxPhase): OperationRecord["state"] {
  switch (phase) {
    case SandboxPhase.STOPPED:
    case SandboxPhase.COMPLETED:
    case SandboxPhase.ERROR:
      return "inactive";
    case SandboxPhase.DELETING:
      return "cancelled";
    default:
      return "pending";
  }
}

function idsOf(operations: readonly OperationRecord[]): string[] {
  return operations.map(({ operationId }) => operationId);
}
