import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import {
  ConfigSnapshotRevisionSchema,
  type ProviderDesiredIdentity,
  ProviderDesiredIdentitySchema,
  type ProviderMutationKind,
  type ProviderMutationReceipt,
  ProviderMutationReceiptSchema,
} from "@openshell/api";
import { toTimestamp } from "@openshell/api/times.ts";
import { revisionNumber, type Snapshot } from "../delivery/snapshot.ts";
import type { NewOperation, ProviderRecord, SandboxRecord } from "../store/types.ts";

/**
 * The identity that has to be in force for one provider of a sandbox. `provider` is undefined when it shall be gone. Made of
 * revisions, never of values.
 */
export function desiredIdentity(
  record: SandboxRecord,
  { config, providerRevision }: Snapshot,
  provider: ProviderRecord | undefined,
): ProviderDesiredIdentity {
  return create(ProviderDesiredIdentitySchema, {
    sandboxId: record.id,
    sandbox: record.name,
    attachmentEpoch: record.spec.providerAttachmentEpoch,
    providerId: provider?.id ?? "",
    providerResourceVersion: provider?.resourceVersion ?? 0n,
    providerEnvRevision: revisionNumber(providerRevision),
    configRevision: revisionNumber(config.configRevision),
    policyHash: config.policyHash,
  });
}

export interface ReceiptFacts {
  readonly kind: ProviderMutationKind;
  readonly provider: string;
  readonly workspace: string;
  readonly mutationId: string;
  readonly desired: ProviderDesiredIdentity | undefined;
  readonly at: number;
}

/** What a caller gets to follow a change by. Never altered afterwards. */
export function newReceipt({ desired, at, ...facts }: ReceiptFacts): ProviderMutationReceipt {
  const receipt = create(ProviderMutationReceiptSchema, {
    ...facts,
    receiptId: randomUUID(),
    persistedTime: toTimestamp(at),
  });
  if (desired !== undefined) receipt.desired = desired;
  return receipt;
}

/** The durable operation of a receipt, to be stored in the transaction of the change. Without a desired state it has failed already. */
export function operationOf(receipt: ProviderMutationReceipt, sandboxId: string): NewOperation {
  const { desired } = receipt;
  const value = desired ?? create(ProviderDesiredIdentitySchema, { sandboxId });
  return {
    operationId: receipt.receiptId,
    sandboxId,
    component: "environment",
    target: create(ConfigSnapshotRevisionSchema, { component: { case: "providerTarget", value } }),
    receipt,
    state: desired === undefined ? "failed" : "pending",
    ...(desired === undefined ? { error: "the wanted state could not be read" } : {}),
  };
}
