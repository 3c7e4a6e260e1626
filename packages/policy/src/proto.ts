/**
 * The one mapping between policies and the wire message `openshell.sandbox.v1.SandboxPolicy`. What arrives is validated
 * like a file; fields and values that this release does not know are refused, since dropping them could widen a policy.
 */
import { create, type Message } from "@bufbuild/protobuf";
import {
  type L7Allow,
  type L7DenyRule,
  type L7QueryMatcher,
  NetworkAccessPreset,
  type NetworkEndpoint,
  NetworkEnforcementMode,
  type NetworkMiddlewareConfig,
  type NetworkPolicyRule,
  NetworkTlsMode,
  type SandboxPolicy,
  SandboxPolicySchema,
} from "@openshell/api/generated/sandbox_pb.js";
import { normalisePath } from "./decode.ts";
import { Report } from "./fields.ts";
import {
  type AccessPreset,
  EMPTY_ENDPOINT,
  type Endpoint,
  type JsonValue,
  type Matcher,
  type Middleware,
  type NetworkRule,
  type Policy,
  type RequestRule,
  sortedMap,
} from "./model.ts";
import type { ParseResult } from "./parse.ts";
import { type ValidateOptions, validatePolicy } from "./validate.ts";
import { indexPath, keyPath } from "./violation.ts";

/** Reads a policy from the wire. Violations carry paths as in a file, without positions. */
export function policyFromProto(message: SandboxPolicy, options: ValidateOptions = {}): ParseResult {
  const report = new Report();
  const policy = convert(message, report);
  const { violations, warnings } = validatePolicy(policy, options);
  const all = [...report.violations, ...violations];
  return all.length > 0 ? { ok: false, violations: all, warnings } : { ok: true, policy, warnings };
}

function convert(message: SandboxPolicy, report: Report): Policy {
  refuseUnknown(message, "", report);
  // Clients that predate the field send 0; files must say 1.
  if (message.version > 1) {
    report.add("version", "unsupported_version", `version must be 1, got ${message.version}`, "Send version 1");
  }
  const { filesystem, landlock, process } = message;
  if (filesystem !== undefined) refuseUnknown(filesystem, "filesystem_policy", report);
  if (process !== undefined) refuseUnknown(process, "process", report);
  const hasProcess = process !== undefined && (process.runAsUser !== "" || process.runAsGroup !== "");
  return {
    version: 1,
    ...(filesystem === undefined
      ? {}
      : {
          filesystem: {
            includeWorkdir: filesystem.includeWorkdir,
            readOnly: filesystem.readOnly.map(normalisePath),
            readWrite: filesystem.readWrite.map(normalisePath),
          },
        }),
    ...(landlock === undefined ? {} : { landlock: { compatibility: compatibility(landlock.compatibility, report) } }),
    ...(hasProcess ? { process: { runAsUser: process.runAsUser, runAsGroup: process.runAsGroup } } : {}),
    networkPolicies: sortedMap(
      Object.entries(message.networkPolicies).map(([key, rule]) => [key, ruleFrom(key, rule, report)] as const),
    ),
    networkMiddlewares: sortedMap(
      Object.entries(message.networkMiddlewares).map(
        ([key, entry]) => [key, middlewareFrom(key, entry, report)] as const,
      ),
    ),
  };
}

/** Numbers that were given up on the wire; peers may still send them, and they say nothing. */
const RETIRED: Readonly<Record<string, readonly number[]>> = {
  "openshell.sandbox.v1.NetworkBinary": [2],
  "openshell.sandbox.v1.L7Allow": [8],
  "openshell.sandbox.v1.L7DenyRule": [8],
};

export function refuseUnknown(message: Message, path: string, report: Report): void {
  for (const field of message.$unknown ?? []) {
    if (RETIRED[message.$typeName]?.includes(field.no)) continue;
    report.add(
      path,
      "unknown_key",
      `${message.$typeName} carries field ${field.no}, which this release does not know`,
      "Use a client of this release, or leave the feature out",
    );
  }
}

function compatibility(value: string, report: Report): "best_effort" | "hard_requirement" {
  if (value === "hard_requirement") return value;
  if (value !== "" && value !== "best_effort") {
    report.add(
      "landlock.compatibility",
      "invalid_value",
      `'${value}' is no valid value of compatibility`,
      "Use best_effort or hard_requirement",
    );
  }
  return "best_effort";
}

export function ruleFrom(
  key: string,
  rule: NetworkPolicyRule,
  report: Report,
  path = keyPath("network_policies", key),
): NetworkRule {
  refuseUnknown(rule, path, report);
  for (const binary of rule.binaries) refuseUnknown(binary, path, report);
  return {
    name: rule.name === key ? "" : rule.name,
    endpoints: rule.endpoints.map((endpoint, index) =>
      endpointFrom(endpoint, indexPath(`${path}.endpoints`, index), report),
    ),
    binaries: rule.binaries.map((binary) => binary.path),
  };
}

function endpointFrom(message: NetworkEndpoint, path: string, report: Report): Endpoint {
  refuseUnknown(message, path, report);
  const { mcp } = message;
  if (mcp !== undefined) refuseUnknown(mcp, keyPath(path, "mcp"), report);
  if (message.credentialBinding !== undefined && message.credentialBinding.provider.trim() === "") {
    report.add(
      keyPath(path, "credential_binding"),
      "missing_key",
      "credential_binding names no provider",
      "Add provider: <name>",
    );
  }
  return {
    ...EMPTY_ENDPOINT,
    host: message.host,
    ports: message.ports.length > 0 ? message.ports : message.port === 0 ? [] : [message.port],
    path: message.path,
    // Validation refuses what is no known name.
    protocol: message.protocol.toLowerCase() as Endpoint["protocol"],
    tls: tlsFrom(message, path, report),
    enforcement: enforcementFrom(message, path, report),
    access: accessFrom(message, path, report),
    rules: message.rules.map((rule, index) => {
      const at = indexPath(keyPath(path, "rules"), index);
      refuseUnknown(rule, at, report);
      if (rule.allow !== undefined) return requestRuleFrom(rule.allow, at, report);
      report.add(at, "missing_key", "missing field 'allow'", "Set allow");
      return requestRuleFrom(undefined, at, report);
    }),
    denyRules: message.denyRules.map((rule, index) =>
      requestRuleFrom(rule, indexPath(keyPath(path, "deny_rules"), index), report),
    ),
    allowedIps: message.allowedIps,
    allowEncodedSlash: message.allowEncodedSlash,
    websocketCredentialRewrite: message.websocketCredentialRewrite,
    requestBodyCredentialRewrite: message.requestBodyCredentialRewrite,
    allowUninspectedCredentials: message.allowUninspectedCredentials,
    persistedQueries: oneOf(message.persistedQueries, ["deny", "allow_registered"], path, "persisted_queries", report),
    graphqlPersistedQueries: sortedMap(
      Object.entries(message.graphqlPersistedQueries).map(
        ([key, { operationType, operationName, fields }]) => [key, { operationType, operationName, fields }] as const,
      ),
    ),
    graphqlMaxBodyBytes: message.graphqlMaxBodyBytes,
    jsonRpcMaxBodyBytes: message.jsonRpcMaxBodyBytes,
    ...(mcp === undefined
      ? {}
      : {
          mcp: {
            ...(mcp.strictToolNames === undefined ? {} : { strictToolNames: mcp.strictToolNames }),
            ...(mcp.allowAllKnownMcpMethods === undefined
              ? {}
              : { allowAllKnownMcpMethods: mcp.allowAllKnownMcpMethods }),
            versions: mcp.versions,
          },
        }),
    credentialSigning: oneOf(
      message.credentialSigning,
      ["sigv4", "sigv4:body", "sigv4:no_body"],
      path,
      "credential_signing",
      report,
    ),
    signingService: message.signingService,
    signingRegion: message.signingRegion,
    credentialProvider: message.credentialBinding?.provider ?? "",
    advisorProposed: message.advisorProposed,
    providerCredentialed: message.providerCredentialed,
    tokenGrantOwner: message.tokenGrantOwner,
  };
}

function tlsFrom(message: NetworkEndpoint, path: string, report: Report): Endpoint["tls"] {
  if (message.tls === NetworkTlsMode.SKIP) return "skip";
  if (message.tls !== NetworkTlsMode.UNSPECIFIED) {
    report.add(
      keyPath(path, "tls"),
      "invalid_value",
      `tls mode ${message.tls} is not accepted`,
      "Use skip, or leave it out",
    );
  }
  return "auto";
}

function enforcementFrom(message: NetworkEndpoint, path: string, report: Report): Endpoint["enforcement"] {
  switch (message.enforcement) {
    case NetworkEnforcementMode.UNSPECIFIED:
      return "";
    case NetworkEnforcementMode.ENFORCE:
      return "enforce";
    case NetworkEnforcementMode.AUDIT:
      return "audit";
    default:
      report.add(
        keyPath(path, "enforcement"),
        "invalid_value",
        `enforcement mode ${message.enforcement} is unknown`,
        "Use enforce or audit",
      );
      return "enforce";
  }
}

const ACCESS: ReadonlyMap<NetworkAccessPreset, AccessPreset | ""> = new Map([
  [NetworkAccessPreset.UNSPECIFIED, ""],
  [NetworkAccessPreset.READ_ONLY, "read-only"],
  [NetworkAccessPreset.READ_WRITE, "read-write"],
  [NetworkAccessPreset.FULL, "full"],
]);

function accessFrom(message: NetworkEndpoint, path: string, report: Report): Endpoint["access"] {
  const preset = ACCESS.get(message.access);
  if (preset !== undefined) return preset;
  const text = `access preset ${message.access} is unknown`;
  report.add(keyPath(path, "access"), "invalid_value", text, "Use read-only, read-write or full");
  return "";
}

function oneOf<T extends string>(
  value: string,
  values: readonly T[],
  path: string,
  key: string,
  report: Report,
): T | "" {
  if (value === "" || (values as readonly string[]).includes(value)) return value as T | "";
  report.add(
    keyPath(path, key),
    "invalid_value",
    `'${value}' is no valid value of ${key}`,
    `Use ${values.join(" or ")}`,
  );
  return "";
}

export function requestRuleFrom(message: L7Allow | L7DenyRule | undefined, path: string, report: Report): RequestRule {
  if (message === undefined) {
    return {
      method: "",
      path: "",
      query: new Map(),
      operationType: "",
      operationName: "",
      fields: [],
      params: new Map(),
    };
  }
  refuseUnknown(message, path, report);
  if (message.command !== "") {
    report.add(path, "unsupported_key", "'command' cannot be set: SQL is not a protocol of this release", "Remove it");
  }
  const matchers = (entries: { [key: string]: L7QueryMatcher }, key: string): ReadonlyMap<string, Matcher> =>
    sortedMap(
      Object.entries(entries).map(
        ([name, matcher]) => [name, matcherFrom(matcher, keyPath(keyPath(path, key), name), report)] as const,
      ),
    );
  return {
    method: message.method,
    path: message.path,
    query: matchers(message.query, "query"),
    operationType: message.operationType,
    operationName: message.operationName,
    fields: message.fields,
    params: matchers(message.params, "params"),
  };
}

function matcherFrom(message: L7QueryMatcher, path: string, report: Report): Matcher {
  refuseUnknown(message, path, report);
  if (message.glob !== "" && message.any.length > 0) {
    report.add(path, "invalid_l7_endpoint", "a matcher has either glob or any", "Keep one of the two");
  }
  // An empty glob is a pattern of its own: it matches the empty value.
  return message.any.length > 0 ? { any: true, globs: message.any } : { any: false, globs: [message.glob] };
}

function middlewareFrom(key: string, message: NetworkMiddlewareConfig, report: Report): Middleware {
  const path = keyPath("network_middlewares", key);
  refuseUnknown(message, path, report);
  if (message.endpoints !== undefined) refuseUnknown(message.endpoints, keyPath(path, "endpoints"), report);
  return {
    name: message.name === key ? "" : message.name,
    middleware: message.middleware,
    order: message.order,
    config: message.config as { readonly [name: string]: JsonValue } | undefined,
    onError: oneOf(message.onError, ["fail_closed", "fail_open"], path, "on_error", report),
    include: message.endpoints?.include ?? [],
    exclude: message.endpoints?.exclude ?? [],
  };
}

/** The wire form. `policyFromProto` of it gives an equal policy. */
export function policyToProto(policy: Policy): SandboxPolicy {
  const { filesystem, landlock, process } = policy;
  return create(SandboxPolicySchema, {
    version: policy.version,
    ...(filesystem === undefined
      ? {}
      : {
          filesystem: {
            includeWorkdir: filesystem.includeWorkdir,
            readOnly: [...filesystem.readOnly],
            readWrite: [...filesystem.readWrite],
          },
        }),
    ...(landlock === undefined ? {} : { landlock }),
    ...(process === undefined ? {} : { process }),
    networkPolicies: Object.fromEntries(
      [...policy.networkPolicies].map(([key, rule]) => [
        key,
        {
          // Clients show the name; the key is what it defaults to.
          name: rule.name === "" ? key : rule.name,
          endpoints: rule.endpoints.map(endpointTo),
          binaries: rule.binaries.map((path) => ({ path })),
        },
      ]),
    ),
    networkMiddlewares: Object.fromEntries(
      [...policy.networkMiddlewares].map(([key, entry]) => [
        key,
        {
          name: entry.name === "" ? key : entry.name,
          middleware: entry.middleware,
          order: entry.order,
          onError: entry.onError,
          endpoints: { include: [...entry.include], exclude: [...entry.exclude] },
          ...(entry.config === undefined ? {} : { config: structuredJson(entry.config) }),
        },
      ]),
    ),
  });
}

type Mutable<T> = T extends readonly (infer U)[]
  ? Mutable<U>[]
  : T extends object
    ? { -readonly [K in keyof T]: Mutable<T[K]> }
    : T;

function structuredJson(config: { readonly [key: string]: JsonValue }): { [key: string]: Mutable<JsonValue> } {
  return config as { [key: string]: Mutable<JsonValue> };
}

const TO_ENFORCEMENT = {
  "": NetworkEnforcementMode.UNSPECIFIED,
  enforce: NetworkEnforcementMode.ENFORCE,
  audit: NetworkEnforcementMode.AUDIT,
} as const;

const TO_ACCESS = {
  "": NetworkAccessPreset.UNSPECIFIED,
  "read-only": NetworkAccessPreset.READ_ONLY,
  "read-write": NetworkAccessPreset.READ_WRITE,
  full: NetworkAccessPreset.FULL,
} as const;

function endpointTo(endpoint: Endpoint) {
  const { mcp } = endpoint;
  return {
    host: endpoint.host,
    // Both forms are filled, as readers of either exist.
    port: endpoint.ports[0] ?? 0,
    ports: [...endpoint.ports],
    path: endpoint.path,
    protocol: endpoint.protocol,
    tls: endpoint.tls === "skip" ? NetworkTlsMode.SKIP : NetworkTlsMode.UNSPECIFIED,
    enforcement: TO_ENFORCEMENT[endpoint.enforcement],
    access: TO_ACCESS[endpoint.access],
    rules: endpoint.rules.map((rule) => ({ allow: requestRuleTo(rule) })),
    denyRules: endpoint.denyRules.map(requestRuleTo),
    allowedIps: [...endpoint.allowedIps],
    allowEncodedSlash: endpoint.allowEncodedSlash,
    websocketCredentialRewrite: endpoint.websocketCredentialRewrite,
    requestBodyCredentialRewrite: endpoint.requestBodyCredentialRewrite,
    allowUninspectedCredentials: endpoint.allowUninspectedCredentials,
    persistedQueries: endpoint.persistedQueries,
    graphqlPersistedQueries: Object.fromEntries(
      [...endpoint.graphqlPersistedQueries].map(([key, operation]) => [
        key,
        { ...operation, fields: [...operation.fields] },
      ]),
    ),
    graphqlMaxBodyBytes: endpoint.graphqlMaxBodyBytes,
    jsonRpcMaxBodyBytes: endpoint.jsonRpcMaxBodyBytes,
    ...(mcp === undefined ? {} : { mcp: { ...mcp, versions: [...mcp.versions] } }),
    credentialSigning: endpoint.credentialSigning,
    signingService: endpoint.signingService,
    signingRegion: endpoint.signingRegion,
    ...(endpoint.credentialProvider === "" ? {} : { credentialBinding: { provider: endpoint.credentialProvider } }),
    advisorProposed: endpoint.advisorProposed,
    providerCredentialed: endpoint.providerCredentialed,
    tokenGrantOwner: endpoint.tokenGrantOwner,
  };
}

function requestRuleTo(rule: RequestRule) {
  const matchers = (map: ReadonlyMap<string, Matcher>) =>
    Object.fromEntries(
      [...map].map(([key, matcher]) => [
        key,
        matcher.any ? { any: [...matcher.globs] } : { glob: matcher.globs[0] ?? "" },
      ]),
    );
  return {
    method: rule.method,
    path: rule.path,
    query: matchers(rule.query),
    operationType: rule.operationType,
    operationName: rule.operationName,
    fields: [...rule.fields],
    params: matchers(rule.params),
  };
}
