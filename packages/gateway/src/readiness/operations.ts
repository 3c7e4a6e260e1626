import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  ConfigApplyOutcome,
  ConfigComponent,
  type ConfigUpdateOperation,
  ConfigUpdateOperationSchema,
  ConfigUpdateOperationState as OperationState,
  ProviderReadinessState as State,
} from "@openshell/api";
import { toTimestamp } from "@openshell/api/times.ts";
import type { Command } from "../store/command.ts";
import type { OperationRecord, Store } from "../store/types.ts";
import type { Readiness } from "./evaluate.ts";

const STATES: Readonly<Record<OperationRecord["state"], OperationState>> = {
  pending: OperationState.PENDING,
  applied: OperationState.APPLIED,
  inactive: OperationState.INACTIVE,
  failed: OperationState.FAILED,
  superseded: OperationState.SUPERSEDED,
  cancelled: OperationState.CANCELLED,
};

/** An operation as callers see it. */
export function operationMessage(record: OperationRecord): ConfigUpdateOperation {
  const init: MessageInitShape<typeof ConfigUpdateOperationSchema> = {
    operationId: record.operationId,
    sandboxId: record.sandboxId,
    component: record.component === "config" ? ConfigComponent.SANDBOX_CONFIG : ConfigComponent.PROVIDER_ENVIRONMENT,
    targetRevision: record.target,
    state: STATES[record.state],
    outcome: record.outcome,
    sanitizedError: record.error,
    createdTime: toTimestamp(record.createdAt),
    updatedTime: toTimestamp(record.updatedAt),
    ...(record.completedAt === undefined ? {} : { completedTime: toTimestamp(record.completedAt) }),
  };
  return create(ConfigUpdateOperationSchema, init);
}

/** How a pending operation ends with this readiness; undefined: it does not end yet. A live failure ends nothing: it may pass. */
export function ending(
  store: Pick<Store, "operations">,
  record: OperationRecord,
  { state }: Readiness,
  at: number,
): Command<void> | undefined {
  if (record.state !== "pending") return undefined;
  const { operations } = store;
  if (state === State.READY || state === State.REVOKED) {
    const result = { outcome: ConfigApplyOutcome.APPLIED, error: "" };
    return operations.finish([record.operationId], "applied", result, at);
  }
  if (state === State.SUPERSEDED) {
    const result = { outcome: ConfigApplyOutcome.IGNORED_STALE, error: "DESIRED_STATE_CHANGED" };
    return operations.finish([record.operationId], "superseded", result, at);
  }
  return undefined;
}
