import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import {
  type ProviderEnvironment,
  ProviderEnvironmentSchema,
  type SandboxConfig,
  SandboxConfigSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, RuntimeError } from "@openshell/base";
import type { GatewayConfig } from "../config/config.ts";
import { effectivePolicy } from "../policies/effective.ts";
import { deliveredService, namedServices, type Registrations } from "../policies/middleware.ts";
import { buildEnvironment, providerRevision, readAttached } from "../providers/environment.ts";
import { deliveredSettings, type EffectiveSettings, effectiveSettings } from "../settings/effective.ts";
import type { SandboxRecord, Store } from "../store/types.ts";
import type { Vault } from "../store/vault.ts";
import { redactSecrets } from "./redaction.ts";

export interface SnapshotDeps {
  readonly store: Store;
  readonly vault: Vault;
  readonly clock: Clock;
  readonly config: Pick<GatewayConfig, "policyValidationFailureMode"> & Registrations;
}

/** Both components of a sandbox's configuration from one read, naming each other's identity. */
export interface Snapshot {
  readonly config: SandboxConfig;
  readonly providerRevision: string;
  /** Names of the providers that were read, and their workspace: what a change must name to concern this snapshot. */
  readonly workspace: string;
  readonly providers: readonly string[];
  /** Revision of the sandbox's own settings. */
  readonly settingsRevision: bigint;
  readonly settings: EffectiveSettings;
  /** Opens the credentials: only when they are about to be sent. */
  readonly environment: () => ProviderEnvironment;
}

export async function buildSnapshot(deps: SnapshotDeps, record: SandboxRecord): Promise<Snapshot> {
  const { store, vault, clock } = deps;
  const { workspace } = record;
  const { providers, providerAttachmentEpoch: attachmentEpoch } = record.spec;
  const [{ policy, version, hash, globalVersion }, attached, settings] = await Promise.all([
    effectivePolicy(store, record.id),
    readAttached(store, workspace, providers),
    effectiveSettings(store, record.id),
  ]);
  const { revision: settingsRevision } = settings;
  const now = clock.now();
  const revision = providerRevision(attached, policy, now);
  const facts = {
    policyVersion: version,
    policyHash: hash,
    providerRevision: revision,
    attachmentEpoch,
    settings: deliveredSettings(settings),
    validationFailureMode: deps.config.policyValidationFailureMode,
    policySource: globalVersion > 0 ? "global" : "sandbox",
    globalPolicyVersion: globalVersion,
    middleware: namedServices(policy, deps.config),
  };
  const config = create(SandboxConfigSchema, {
    ...facts,
    middleware: facts.middleware.map(deliveredService),
    policy,
    configRevision: configRevision({ ...facts, settingsRevision: String(settingsRevision) }),
  });
  const environment = () => {
    const made = buildEnvironment(vault, workspace, attached, policy, now, revision);
    const complete = create(ProviderEnvironmentSchema, { ...made, attachmentEpoch });
    return redactSecrets(ProviderEnvironmentSchema, complete);
  };
  return { config, providerRevision: revision, workspace, providers, settingsRevision, settings, environment };
}

/** Reads before a capture is given up for now: the configuration changes faster than it can be read. */
const CAPTURE_ATTEMPTS = 3;

/**
 * The snapshot of a sandbox as it was at one moment: nothing that it is made of was committed while it was read, or two
 * reads in a row gave the same. Undefined: the sandbox is gone.
 *
 * @throws RuntimeError snapshot_unsettled when {@link CAPTURE_ATTEMPTS} reads were each overtaken by a change of it.
 */
export async function captureSnapshot(
  deps: SnapshotDeps,
  sandboxId: string,
): Promise<{ readonly record: SandboxRecord; readonly snapshot: Snapshot } | undefined> {
  const { store } = deps;
  let before: string | undefined;
  for (let attempt = 1; attempt <= CAPTURE_ATTEMPTS; attempt++) {
    const version = store.contentsVersion();
    const record = await store.sandboxes.byId(sandboxId);
    if (record === undefined) return undefined;
    const snapshot = await buildSnapshot(deps, record);
    const { configRevision: revision } = snapshot.config;
    if (revision === before || (await isOfOneMoment(store, record, version))) return { record, snapshot };
    before = revision;
  }
  throw new RuntimeError("snapshot_unsettled", "the configuration changed each time that it was read");
}

/** Whether nothing was committed of the sandbox, nor of what its configuration is made of, since both were read. */
async function isOfOneMoment(store: Store, record: SandboxRecord, version: number | undefined): Promise<boolean> {
  if (version === undefined) return false;
  const now = await store.sandboxes.byId(record.id);
  return now?.resourceVersion === record.resourceVersion && store.contentsVersion() === version;
}

/** Identity of a sandbox configuration; equality only. */
function configRevision(facts: Readonly<Record<string, unknown>>): string {
  return createHash("sha256").update("openshell sandbox config v2\0").update(JSON.stringify(facts)).digest("hex");
}

/**
 * Identity of a provider environment, which both components name. What it takes of a policy, where a credential may be used,
 * is part of the provider revision: another policy that binds the same needs no other environment.
 */
export function pairing({
  attachmentEpoch,
  providerRevision,
}: Pick<SandboxConfig, "attachmentEpoch" | "providerRevision">): string {
  return `${attachmentEpoch}|${providerRevision}`;
}

/** What the public API shows of an opaque revision: its first eight bytes as a number. */
export function revisionNumber(revision: SandboxConfig["configRevision"]): bigint {
  return revision === "" ? 0n : BigInt(`0x${revision.slice(0, 16)}`);
}
