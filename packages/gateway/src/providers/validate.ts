import type { Provider } from "@openshell/api";
import { environmentKeyProblem, nameProblem, violation } from "@openshell/api/names.ts";
import { timestampProblem } from "@openshell/api/times.ts";
import type { Violations } from "@openshell/api/violations.ts";
import { checkAnnotations, checkLabels } from "../api/validate-sandbox.ts";

export const ProviderLimit = {
  type: 64,
  credentials: 32,
  config: 64,
  key: 256,
  value: 8_192,
} as const;

/** Names that would look like the revisions and handles inside placeholders. */
const PLACEHOLDER_PREFIX = /^(?:v\d+_|s[0-9a-f]{64}_)/;

/** What a credential's value looks like in every answer; no credential can have this value. */
export const REDACTED_VALUE = "REDACTED";

/** Everything wrong with a provider of a request. Values are never quoted. `update` allows empty values, which delete. */
export function validateProvider(provider: Provider, update: boolean, workspace: string, found: Violations): void {
  const { metadata } = provider;
  found.add(violation("provider.metadata.name", nameProblem(metadata?.name ?? "")));
  const elsewhere = metadata !== undefined && metadata.workspace !== "" && metadata.workspace !== workspace;
  found.require(!elsewhere, "provider.metadata.workspace", "must be empty or the workspace of workspace_scope");
  checkLabels(metadata?.labels ?? {}, "provider.metadata.labels", found);
  checkAnnotations(metadata?.annotations ?? {}, "provider.metadata.annotations", found);
  if (!update || provider.type !== "") {
    const { type } = provider;
    found.require(
      /^[a-z0-9][a-z0-9._-]*$/i.test(type),
      "provider.type",
      'must begin with a letter or digit and contain only letters, digits, ".", "_" and "-"',
    );
    found.require(
      type.length <= ProviderLimit.type,
      "provider.type",
      `must have at most ${ProviderLimit.type} characters`,
    );
  }
  const handles = Object.keys(provider.credentialHandles);
  found.require(handles.length === 0, "provider.credential_handles", "is set by the gateway");
  checkPairs(provider.credentials, "provider.credentials", ProviderLimit.credentials, update, found);
  for (const key of Object.keys(provider.credentials).slice(0, ProviderLimit.credentials)) {
    const field = `provider.credentials[${key}]`;
    found.add(violation(field, environmentKeyProblem(key)));
    const redacted = provider.credentials[key] === REDACTED_VALUE;
    found.require(!redacted, field, "holds what answers show in place of a value; leave it out to keep the stored one");
    found.require(!PLACEHOLDER_PREFIX.test(key), field, "begins like the inside of a placeholder; choose another name");
  }
  checkPairs(provider.config, "provider.config", ProviderLimit.config, update, found);
  for (const [key, time] of Object.entries(provider.credentialExpirationTimes).slice(0, ProviderLimit.credentials)) {
    const field = `provider.credential_expiration_times[${key}]`;
    found.add(violation(field, timestampProblem(time)));
    if (!update) found.require(Object.hasOwn(provider.credentials, key), field, "names no credential of this provider");
  }
}

function checkPairs(
  pairs: Readonly<Record<string, string>>,
  field: string,
  limit: number,
  emptyAllowed: boolean,
  found: Violations,
): void {
  const entries = Object.entries(pairs);
  found.require(entries.length <= limit, field, `must have at most ${limit} entries`);
  for (const [key, value] of entries.slice(0, limit)) {
    const at = `${field}[${key}]`;
    found.require(
      key !== "" && key.length <= ProviderLimit.key,
      at,
      `must have a key of 1-${ProviderLimit.key} characters`,
    );
    found.require(emptyAllowed || value !== "", at, "must not be empty");
    found.require(
      Buffer.byteLength(value) <= ProviderLimit.value,
      at,
      `must have at most ${ProviderLimit.value} bytes`,
    );
    found.require(!/[\0\r\n]/.test(value), at, "must not contain NUL or line ends");
  }
}
