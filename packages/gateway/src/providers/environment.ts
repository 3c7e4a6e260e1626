import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import type { SandboxPolicy } from "@openshell/api";
import {
  type CredentialEndpoint,
  CredentialEndpointSchema,
  type ProviderEnvironment,
  ProviderEnvironmentSchema,
  ProviderValue_Classification,
  ProviderValueSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { environmentKeyProblem } from "@openshell/api/names.ts";
import { toTimestamp } from "@openshell/api/times.ts";
import { openCredential } from "../store/credentials.ts";
import type { ProviderRecord, SealedCredential, Store } from "../store/types.ts";
import type { Vault } from "../store/vault.ts";

/** One attached provider as it is stored. Missing: its row is gone, although the sandbox names it. */
export interface AttachedProvider {
  readonly name: string;
  readonly record: ProviderRecord | undefined;
  readonly credentials: readonly SealedCredential[];
}

/** The providers that a sandbox names, with their sealed credentials. */
export async function readAttached(
  store: Store,
  workspace: string,
  names: readonly string[],
): Promise<AttachedProvider[]> {
  return await Promise.all(
    names.map(async (name) => {
      const record = await store.providers.byName(workspace, name);
      const credentials = record === undefined ? [] : await store.providers.credentials(record.id);
      return { name, record, credentials };
    }),
  );
}

/**
 * Where the credentials of each provider may be used: the endpoints of the policy whose `credential_binding` names it. A
 * provider that no endpoint names has none, so that its placeholders resolve nowhere.
 */
export function bindings(policy: SandboxPolicy): Bindings {
  const known = boundBy.get(policy);
  if (known !== undefined) return known;
  const found = findBindings(policy);
  // Only what nobody can change any more has the same for ever.
  if (Object.isFrozen(policy)) boundBy.set(policy, found);
  return found;
}

type Bindings = ReadonlyMap<string, readonly CredentialEndpoint[]>;

/** Policies that the store gives again and again, and many sandboxes share. */
const boundBy = new WeakMap<SandboxPolicy, Bindings>();

function findBindings(policy: SandboxPolicy): Bindings {
  const byProvider = new Map<string, Map<string, CredentialEndpoint>>();
  for (const rule of Object.values(policy.networkPolicies)) {
    for (const bound of rule.endpoints) {
      const provider = bound.credentialBinding?.provider ?? "";
      if (provider === "" || bound.host === "") continue;
      const found = byProvider.get(provider) ?? new Map<string, CredentialEndpoint>();
      byProvider.set(provider, found);
      const host = bound.host.toLowerCase().replace(/\.$/, "");
      const path = ["", "**", "/**"].includes(bound.path) ? "" : bound.path;
      for (const port of bound.ports.length > 0 ? bound.ports : [bound.port]) {
        const endpoint = Object.freeze(create(CredentialEndpointSchema, { host, port, path }));
        found.set(JSON.stringify([host, port, path]), endpoint);
      }
    }
  }
  const sorted = (endpoints: Map<string, CredentialEndpoint>) =>
    [...endpoints].toSorted(([a], [b]) => (a < b ? -1 : 1)).map(([, endpoint]) => endpoint);
  return new Map([...byProvider].map(([provider, endpoints]) => [provider, sorted(endpoints)]));
}

/** Providers that are attached without any endpoint where they could be used. */
export function unboundProviders(policy: SandboxPolicy, attached: readonly string[]): readonly string[] {
  const bound = bindings(policy);
  return attached.filter((name) => !bound.has(name));
}

/**
 * Identity of a provider environment: changes exactly when a value, an expiry, a binding or the set of providers does. It
 * is made of versions, never of values.
 */
export function providerRevision(attached: readonly AttachedProvider[], policy: SandboxPolicy, nowMs: number): string {
  const bound = bindings(policy);
  const facts = attached.map(({ name, record, credentials }) => [
    name,
    record?.id ?? "missing",
    record?.type ?? "",
    credentials
      .toSorted((a, b) => (a.key < b.key ? -1 : 1))
      .map(({ key, version, expiresAt }) => [key, version.toString(), expiresAt ?? null, isExpired(expiresAt, nowMs)]),
    (bound.get(name) ?? []).map(({ host, port, path }) => [host, port, path]),
  ]);
  return createHash("sha256").update("openshell provider environment v1\0").update(JSON.stringify(facts)).digest("hex");
}

/**
 * The complete environment that a supervisor gets, under the `revision` that {@link providerRevision} gave for the same facts. Values are opened here and nowhere else on the way to it; expired ones
 * are left out. Every credential keeps its name in the sandbox even while nothing is bound, so that a later policy can bind
 * it without a restart.
 */
export function buildEnvironment(
  vault: Vault,
  workspace: string,
  attached: readonly AttachedProvider[],
  policy: SandboxPolicy,
  nowMs: number,
  revision: string,
): ProviderEnvironment {
  const bound = bindings(policy);
  const values = attached.flatMap(({ name, record, credentials }) => {
    if (record === undefined) return [];
    const owner = { workspace, providerId: record.id };
    return credentials
      .filter(({ key, expiresAt }) => environmentKeyProblem(key) === undefined && !isExpired(expiresAt, nowMs))
      .map((sealed) =>
        create(ProviderValueSchema, {
          name: sealed.key,
          value: openCredential(vault, owner, sealed).reveal(),
          classification: ProviderValue_Classification.STATIC_CREDENTIAL,
          endpoints: [...(bound.get(name) ?? [])],
          credentialIdentity: `${record.id}:${sealed.key}`,
          ...(sealed.expiresAt === undefined ? {} : { expirationTime: toTimestamp(sealed.expiresAt) }),
          provider: name,
        }),
      );
  });
  values.sort((a, b) => (a.name < b.name ? -1 : 1));
  return create(ProviderEnvironmentSchema, { providerRevision: revision, values });
}

function isExpired(expiresAt: number | undefined, nowMs: number): boolean {
  return expiresAt !== undefined && expiresAt <= nowMs;
}
