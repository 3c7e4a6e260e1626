import type { ProviderRecord, SealedCredential, Store } from "../store/types.ts";

/** A change of a provider's credentials, as `store.providers.update` takes it. */
export interface CredentialChange {
  readonly set: readonly SealedCredential[];
  readonly remove: readonly string[];
  readonly expirations: ReadonlyMap<string, number | undefined>;
}

/**
 * The store as it will read once `record` has been changed: what is wanted then is stored together with the change, and not
 * after it, when the gateway might be gone.
 */
export async function storeAfter(
  store: Store,
  record: ProviderRecord,
  change: CredentialChange,
): Promise<Pick<Store, "providers" | "policies">> {
  const byKey = new Map((await store.providers.credentials(record.id)).map((sealed) => [sealed.key, sealed]));
  for (const key of change.remove) byKey.delete(key);
  for (const sealed of change.set) byKey.set(sealed.key, sealed);
  for (const [key, expiresAt] of change.expirations) {
    const sealed = byKey.get(key);
    if (sealed !== undefined) byKey.set(key, { ...sealed, expiresAt });
  }
  const changed: ProviderRecord = { ...record, resourceVersion: record.resourceVersion + 1n, credentials: byKey };
  const { providers } = store;
  return {
    policies: store.policies,
    providers: {
      ...providers,
      byName: async (workspace, name) =>
        workspace === record.workspace && name === record.name ? changed : await providers.byName(workspace, name),
      credentials: async (id) => (id === record.id ? [...byKey.values()] : await providers.credentials(id)),
    },
  };
}
