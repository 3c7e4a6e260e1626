import { create } from "@bufbuild/protobuf";
import {
  type ObjectMeta,
  ObjectMetaSchema,
  PolicyStatus,
  type Provider,
  ProviderSchema,
  type Sandbox,
  type SandboxPolicyRevision,
  SandboxPolicyRevisionSchema,
  SandboxSchema,
  type Workspace,
  WorkspacePhase,
  WorkspaceSchema,
} from "@openshell/api";
import { toTimestamp } from "@openshell/api/times.ts";
import { publicAnnotations } from "../compute/isolation.ts";
import { runtimeFacts } from "../compute/runtime-record.ts";
import { REDACTED_VALUE } from "../providers/validate.ts";
import type {
  ListCursor,
  ObjectFields,
  PolicyRevision,
  PolicyStatusName,
  ProviderRecord,
  SandboxRecord,
  WorkspaceRecord,
} from "../store/types.ts";

export function metadata(record: ObjectFields, workspace: string): ObjectMeta {
  return create(ObjectMetaSchema, {
    id: record.id,
    name: record.name,
    workspace,
    labels: { ...record.labels },
    annotations: { ...record.annotations },
    resourceVersion: record.resourceVersion,
    createdTime: toTimestamp(record.createdAt),
    ...(record.deletionAt === undefined ? {} : { deletionTime: toTimestamp(record.deletionAt) }),
  });
}

export function sandboxMessage(record: SandboxRecord): Sandbox {
  return create(SandboxSchema, {
    metadata: metadata({ ...record, annotations: publicAnnotations(record, runtimeFacts(record)) }, record.workspace),
    spec: record.spec,
    status: record.status,
    hostKeyFingerprint: record.hostKeyFingerprint,
    ...(record.workloadTemplate === undefined ? {} : { createdFromWorkloadTemplate: record.workloadTemplate }),
  });
}

/** A provider without any credential value: names and expiries only. */
export function providerMessage(record: ProviderRecord): Provider {
  const keys = [...record.credentials.keys()].toSorted();
  const expiring = keys.flatMap((key) => {
    const at = record.credentials.get(key)?.expiresAt;
    return at === undefined ? [] : [[key, toTimestamp(at)] as const];
  });
  return create(ProviderSchema, {
    metadata: metadata(record, record.workspace),
    type: record.type,
    credentials: Object.fromEntries(keys.map((key) => [key, REDACTED_VALUE])),
    config: { ...record.config },
    credentialExpirationTimes: Object.fromEntries(expiring),
    profileWorkspace: record.profileWorkspace,
  });
}

export function workspaceMessage(record: WorkspaceRecord): Workspace {
  const phase = record.phase === "active" ? WorkspacePhase.ACTIVE : WorkspacePhase.TERMINATING;
  return create(WorkspaceSchema, { metadata: metadata(record, ""), status: { phase } });
}

const STATUS: Readonly<Record<PolicyStatusName, PolicyStatus>> = {
  pending: PolicyStatus.PENDING,
  loaded: PolicyStatus.LOADED,
  failed: PolicyStatus.FAILED,
  superseded: PolicyStatus.SUPERSEDED,
};

export function revisionMessage(revision: PolicyRevision, withPolicy: boolean): SandboxPolicyRevision {
  return create(SandboxPolicyRevisionSchema, {
    version: revision.version,
    policyHash: revision.hash,
    status: STATUS[revision.status],
    loadError: revision.loadError,
    createdTime: toTimestamp(revision.createdAt),
    ...(revision.loadedAt === undefined ? {} : { loadedTime: toTimestamp(revision.loadedAt) }),
    ...(withPolicy ? { policy: revision.policy } : {}),
    provenance: { ...revision.provenance },
  });
}

/** The cursor of object lists as the strings of a page token, and back. */
export const objectCursor = {
  length: 4,
  encode: (row: ListCursor): readonly string[] => [String(row.createdAt), row.name, row.workspace, row.id],
  decode: (cursor: readonly string[]): ListCursor => ({
    createdAt: Number(cursor[0]),
    name: cursor[1]!,
    workspace: cursor[2]!,
    id: cursor[3]!,
  }),
} as const;
