import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import type { SandboxPolicy } from "@openshell/api";
import {
  type ProviderEnvironment,
  type SandboxConfig,
  SandboxConfigSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { Clock } from "@openshell/base";
import { defaultPolicy } from "../policies/default-policy.ts";
import { policyHash } from "../policies/rules.ts";
import { buildEnvironment, providerRevision, readAttached } from "../providers/environment.ts";
import type { SandboxRecord, Store } from "../store/types.ts";
import type { Vault } from "../store/vault.ts";

export interface SnapshotDeps {
  readonly store: Store;
  readonly vault: Vault;
  readonly clock: Clock;
}

/** The policy in force for a sandbox: the newest revision, else the restrictive default as version 0. */
export async function effectivePolicy(
  store: Store,
  sandboxId: string,
): Promise<{
  readonly policy: SandboxPolicy;
  readonly version: number;
  readonly hash: string;
  readonly stored: boolean;
}> {
  const latest = await store.policies.latest(sandboxId);
  if (latest !== undefined) return { policy: latest.policy, version: latest.version, hash: latest.hash, stored: true };
  const policy = defaultPolicy();
  return { policy, version: 0, hash: policyHash(policy), stored: false };
}

/** Both components of a sandbox's configuration from one read, naming each other's revision. */
export interface Snapshot {
  readonly config: SandboxConfig;
  readonly providerRevision: string;
  /** Opens the credentials: only when they are about to be sent. */
  readonly environment: () => ProviderEnvironment;
}

export async function buildSnapshot(deps: SnapshotDeps, record: SandboxRecord): Promise<Snapshot> {
  const { store, vault, clock } = deps;
  const [{ policy, version, hash }, attached] = await Promise.all([
    effectivePolicy(store, record.id),
    readAttached(store, record.workspace, record.spec.providers),
  ]);
  const now = clock.now();
  const revision = providerRevision(attached, policy, now);
  const config = create(SandboxConfigSchema, {
    configRevision: configRevision(hash, version, revision),
    policyVersion: version,
    policyHash: hash,
    policy,
    providerRevision: revision,
    settings: {},
  });
  const environment = () => buildEnvironment(vault, record.workspace, attached, policy, now, revision);
  return { config, providerRevision: revision, environment };
}

/** Identity of a sandbox configuration; equality only. */
function configRevision(hash: string, version: number, providerRevision: string): string {
  const facts = JSON.stringify([hash, version, providerRevision]);
  return createHash("sha256").update("openshell sandbox config v1\0").update(facts).digest("hex");
}

/** What the public API shows of an opaque revision: its first eight bytes as a number. */
export function revisionNumber(revision: SandboxConfig["configRevision"]): bigint {
  return revision === "" ? 0n : BigInt(`0x${revision.slice(0, 16)}`);
}
