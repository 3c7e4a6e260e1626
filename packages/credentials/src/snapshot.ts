/** The provider environment as the gateway delivers it, checked. A single mistake refuses all of it: fail closed. */
import { hostProblem, isDnsName, isHostPattern } from "@openshell/policy/host-pattern.ts";
import { canonicalHost, parseIp } from "@openshell/policy/ip.ts";
import { CredentialLimit } from "./limits.ts";
import { isEnvironmentName, isReservedName } from "./placeholder.ts";
import type { Secret } from "./secret.ts";

export interface ProviderSnapshot {
  /** Opaque; equality only. */
  readonly revision: string;
  readonly values: readonly ProviderValue[];
}

export interface ProviderValue {
  /** Environment variable. */
  readonly name: string;
  readonly value: Secret;
  readonly classification: "non_secret" | "static_credential" | "unclassified";
  /** Where it may be used. Empty: where a policy endpoint binds `provider`. */
  readonly endpoints: readonly CredentialEndpoint[];
  /** Same identity, same placeholder, over all rotations. */
  readonly identity: string;
  /** Milliseconds since the epoch; undefined means no end. */
  readonly expiresAt: number | undefined;
  readonly provider: string;
  /** 64 hex digits: the placeholder takes the `s` form. */
  readonly handle?: string;
}

export interface CredentialEndpoint {
  /** Host name, address or pattern as in policies. */
  readonly host: string;
  readonly port: number;
  /** Path selector; empty means all. */
  readonly path: string;
}

export interface SnapshotProblem {
  /** `invalid_provider_environment`, always: no part of the environment is used. */
  readonly code: "invalid_provider_environment";
  /** Without names of keys or values. */
  readonly message: string;
  readonly next: string;
}

/** Undefined when the snapshot is sound. */
export function checkSnapshot(snapshot: ProviderSnapshot): SnapshotProblem | undefined {
  const problem = (message: string): SnapshotProblem => ({
    code: "invalid_provider_environment",
    message,
    next: "Update the provider; until then its credentials are unavailable",
  });
  if (snapshot.values.length > CredentialLimit.values) {
    return problem(`provider environment has more than ${CredentialLimit.values} values`);
  }
  const names = new Set<string>();
  for (const value of snapshot.values) {
    if (!isEnvironmentName(value.name)) return problem("provider environment contains an invalid variable name");
    if (names.has(value.name)) return problem("provider environment contains a duplicate key");
    names.add(value.name);
    if (value.value.length > CredentialLimit.valueBytes)
      return problem("provider environment contains an oversized value");
    if (value.classification === "unclassified") {
      return problem("provider environment contains an unclassified credential key");
    }
    if (value.classification === "non_secret") {
      if (value.endpoints.length > 0)
        return problem("provider environment classifies a key as both bound and non-secret");
      continue;
    }
    const binding = bindingProblem(value);
    if (binding !== undefined) return problem(binding);
  }
  return undefined;
}

function bindingProblem(value: ProviderValue): string | undefined {
  if (value.identity === "") return "credential binding has no identity";
  if (value.endpoints.length === 0 && value.provider === "")
    return "credential binding has neither endpoints nor a provider";
  if (value.endpoints.length > CredentialLimit.endpoints) return "credential binding has too many endpoints";
  if (value.handle !== undefined && !/^[0-9a-f]{64}$/.test(value.handle))
    return "credential binding has a malformed handle";
  for (const { host, port, path } of value.endpoints) {
    if (!Number.isInteger(port) || port < 1 || port > 65_535) return "credential binding has an invalid port";
    if (!isBindableHost(host)) return "credential binding has an invalid host";
    if (path !== "" && path !== "**" && !path.startsWith("/")) return "credential binding has an invalid path";
  }
  return undefined;
}

function isBindableHost(host: string): boolean {
  const name = canonicalHost(host);
  if (parseIp(name) !== undefined) return true;
  if (hostProblem(name) !== undefined) return false;
  return isDnsName(isHostPattern(name) ? name.replaceAll(/\*+/g, "a") : name);
}

/** Values that reach the sandbox at all: reserved names would be ambiguous placeholders, empty ones say nothing. */
export function isUsable(value: ProviderValue): boolean {
  return !isReservedName(value.name) && value.value.length > 0;
}
