import type { Provider, UpdateProviderRequest } from "@openshell/api";
import { invalidField, throwIfInvalid } from "@openshell/api/errors.ts";
import { violation } from "@openshell/api/names.ts";
import { shown } from "@openshell/api/text.ts";
import { readTimestamp, timestampProblem } from "@openshell/api/times.ts";
import { Violations } from "@openshell/api/violations.ts";
import { Secret } from "../auth/secret.ts";
import { ProviderLimit } from "../providers/validate.ts";
import { sealCredential } from "../store/credentials.ts";
import type { ProviderRecord, SandboxRecord, SealedCredential } from "../store/types.ts";
import type { ApiDeps } from "./context.ts";
import { claimKeys } from "./sandbox-providers.ts";
import { checkAnnotations, checkLabels } from "./validate-sandbox.ts";

/** Each expiry is given in one way. */
export function checkExpirations(request: UpdateProviderRequest, found: Violations): void {
  const { credentialExpirationTimes: times, clearCredentialExpirationKeys: cleared } = request;
  for (const [index, key] of cleared.entries()) {
    const twice = Object.hasOwn(times, key) || Object.hasOwn(request.provider!.credentialExpirationTimes, key);
    found.require(!twice, `clear_credential_expiration_keys[${index}]`, "names a key that is also given an expiry");
  }
  for (const key of Object.keys(request.provider!.credentialExpirationTimes)) {
    const field = `provider.credential_expiration_times[${key}]`;
    found.require(!Object.hasOwn(times, key), field, "is given in credential_expiration_times too");
  }
  for (const [key, time] of Object.entries(times))
    found.add(violation(`credential_expiration_times[${key}]`, timestampProblem(time)));
}

/** Type and profile are what the provider was made with. */
export function checkFixed(provider: Provider, record: ProviderRecord): void {
  const found = new Violations();
  const { type, profileWorkspace } = provider;
  found.require(type === "" || type.toLowerCase() === record.type, "provider.type", "cannot be changed");
  const same = profileWorkspace === "" || profileWorkspace === record.profileWorkspace;
  found.require(same, "provider.profile_workspace", "cannot be changed");
  throwIfInvalid(found);
}

/** The stored provider with the request merged in: given keys replace, an empty value deletes its key. */
export function mergedChange(deps: ApiDeps, record: ProviderRecord, request: UpdateProviderRequest) {
  const provider = request.provider!;
  const merged = new Map(Object.entries(record.config));
  for (const [key, value] of Object.entries(provider.config)) {
    if (value === "") merged.delete(key);
    else merged.set(key, value);
  }
  const config = Object.fromEntries(merged);
  const version = record.resourceVersion + 1n;
  const owner = { workspace: record.workspace, providerId: record.id };
  const cleared = new Set(request.clearCredentialExpirationKeys);
  const times = { ...provider.credentialExpirationTimes, ...request.credentialExpirationTimes };
  const expiryOf = (key: string): number | undefined => {
    if (cleared.has(key)) return undefined;
    const given = readTimestamp(times[key], `credential_expiration_times[${key}]`);
    return given ?? record.credentials.get(key)?.expiresAt;
  };
  const set: SealedCredential[] = [];
  const remove: string[] = [];
  const keys = new Set(record.credentials.keys());
  for (const [key, value] of Object.entries(provider.credentials)) {
    if (value === "") {
      if (keys.delete(key)) remove.push(key);
      continue;
    }
    keys.add(key);
    set.push(sealCredential(deps.vault, owner, { key, value: new Secret(value), version, expiresAt: expiryOf(key) }));
  }
  const replaced = new Set(set.map(({ key }) => key));
  const expirations = new Map<string, number | undefined>();
  for (const key of [...Object.keys(times), ...cleared]) {
    if (!keys.has(key)) {
      const own = Object.hasOwn(request.credentialExpirationTimes, key) ? "" : "provider.";
      const times = `${own}credential_expiration_times[${key}]`;
      const field = cleared.has(key) ? "clear_credential_expiration_keys" : times;
      throw invalidField(field, `names no credential of this provider: ${shown(key, ProviderLimit.key)}`);
    }
    if (!replaced.has(key)) expirations.set(key, expiryOf(key));
  }
  if (keys.size === 0)
    throw invalidField("provider.credentials", "must keep at least one entry; delete the provider instead");
  if (keys.size > ProviderLimit.credentials)
    throw invalidField("provider.credentials", `must have at most ${ProviderLimit.credentials} entries`);
  if (Object.keys(config).length > ProviderLimit.config)
    throw invalidField("provider.config", `must have at most ${ProviderLimit.config} entries`);
  const labels = { ...record.labels, ...provider.metadata?.labels };
  const annotations = { ...record.annotations, ...provider.metadata?.annotations };
  const found = new Violations();
  checkLabels(labels, "provider.metadata.labels", found);
  checkAnnotations(annotations, "provider.metadata.annotations", found);
  throwIfInvalid(found);
  return { config, labels, annotations, keys, credentials: { set, remove, expirations } };
}

/** A new key must not collide in any sandbox that has the provider. */
export async function checkConflicts(
  deps: ApiDeps,
  record: ProviderRecord,
  keys: ReadonlySet<string>,
  attached: readonly SandboxRecord[],
): Promise<void> {
  const others = new Set(attached.flatMap((sandbox) => sandbox.spec.providers));
  others.delete(record.name);
  const rows = new Map<string, ProviderRecord | undefined>();
  for (const name of others) rows.set(name, await deps.store.providers.byName(record.workspace, name));
  for (const sandbox of attached) {
    const owners = new Map<string, string>([...keys].map((key) => [key, record.name]));
    for (const name of sandbox.spec.providers) {
      const row = rows.get(name);
      if (row !== undefined) claimKeys(owners, row);
    }
  }
}
