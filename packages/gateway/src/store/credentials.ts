import { Secret } from "../auth/secret.ts";
import type { SealedCredential } from "./types.ts";
import type { SecretContext, Vault } from "./vault.ts";

/** Where a provider credential belongs. */
export interface CredentialOwner {
  readonly workspace: string;
  readonly providerId: string;
}

/**
 * Encrypts one credential for `ProviderRepository.create` (version 1n) or `update` (the version that the update will
 * store: expected + 1n). The version is part of what the ciphertext is bound to, so an old value put back is refused.
 */
export function sealCredential(
  vault: Vault,
  owner: CredentialOwner,
  credential: {
    readonly key: string;
    readonly value: Secret;
    readonly version: bigint;
    readonly expiresAt: number | undefined;
  },
): SealedCredential {
  const { key, value, version, expiresAt } = credential;
  return { key, version, expiresAt, sealed: vault.seal(contextOf(owner, key, version), value.reveal()) };
}

/** Decrypts one credential. @throws RuntimeError secret_unreadable */
export function openCredential(vault: Vault, owner: CredentialOwner, sealed: SealedCredential): Secret {
  return new Secret(vault.open(contextOf(owner, sealed.key, sealed.version), sealed.sealed).toString("utf8"));
}

function contextOf(owner: CredentialOwner, key: string, version: bigint): SecretContext {
  return { purpose: "credential", workspace: owner.workspace, owner: owner.providerId, key, version };
}
