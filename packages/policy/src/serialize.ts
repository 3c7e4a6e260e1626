/** A policy as YAML or as a plain object: defaults left out, keys in a fixed order, the same text every time. */
import { stringify } from "yaml";
import type { Endpoint, Matcher, Middleware, NetworkRule, Policy, RequestRule } from "./model.ts";

export type PlainPolicy = { readonly [key: string]: unknown };

export function serializePolicy(policy: Policy): string {
  // No folding: a path stays on one line. No aliases: equal lists are written out.
  return stringify(policyToPlain(policy), { lineWidth: 0, aliasDuplicateObjects: false, version: "1.2" });
}

/** The same as plain data, for JSON output. Field names are those of the YAML. */
export function policyToPlain(policy: Policy): PlainPolicy {
  const { filesystem, landlock, process } = policy;
  return compact({
    version: policy.version,
    filesystem_policy:
      filesystem === undefined
        ? undefined
        : {
            include_workdir: filesystem.includeWorkdir,
            ...compact({ read_only: list(filesystem.readOnly), read_write: list(filesystem.readWrite) }),
          },
    landlock: landlock === undefined ? undefined : { compatibility: landlock.compatibility },
    process:
      process === undefined ? undefined : object({ run_as_user: process.runAsUser, run_as_group: process.runAsGroup }),
    network_policies: mapOf(policy.networkPolicies, plainRule),
    network_middlewares: mapOf(policy.networkMiddlewares, plainMiddleware),
  });
}

function plainRule(rule: NetworkRule): PlainPolicy {
  return compact({
    name: rule.name,
    endpoints: list(rule.endpoints.map(plainEndpoint)),
    binaries: list(rule.binaries.map((path) => ({ path }))),
  });
}

function plainEndpoint(endpoint: Endpoint): PlainPolicy {
  const { ports, mcp } = endpoint;
  const body = endpoint.jsonRpcMaxBodyBytes || undefined;
  const isMcp = endpoint.protocol === "mcp";
  const mcpPlain = compact({
    max_body_bytes: isMcp ? body : undefined,
    strict_tool_names: mcp?.strictToolNames,
    allow_all_known_mcp_methods: mcp?.allowAllKnownMcpMethods,
    versions: list(mcp?.versions ?? []),
  });
  return compact({
    host: endpoint.host,
    port: ports.length === 1 ? ports[0] : undefined,
    ports: ports.length > 1 ? ports : undefined,
    path: endpoint.path,
    protocol: endpoint.protocol,
    tls: endpoint.tls === "skip" ? "skip" : undefined,
    enforcement: endpoint.enforcement,
    access: endpoint.access,
    rules: list(endpoint.rules.map((rule) => ({ allow: plainRequestRule(rule, isMcp) }))),
    deny_rules: list(endpoint.denyRules.map((rule) => plainRequestRule(rule, isMcp))),
    allowed_ips: list(endpoint.allowedIps),
    allow_encoded_slash: endpoint.allowEncodedSlash || undefined,
    websocket_credential_rewrite: endpoint.websocketCredentialRewrite || undefined,
    request_body_credential_rewrite: endpoint.requestBodyCredentialRewrite || undefined,
    allow_uninspected_credentials: endpoint.allowUninspectedCredentials || undefined,
    persisted_queries: endpoint.persistedQueries,
    graphql_persisted_queries: mapOf(endpoint.graphqlPersistedQueries, (operation) =>
      compact({
        operation_type: operation.operationType,
        operation_name: operation.operationName,
        fields: list(operation.fields),
      }),
    ),
    graphql_max_body_bytes: endpoint.graphqlMaxBodyBytes || undefined,
    json_rpc: !isMcp && body !== undefined ? { max_body_bytes: body } : undefined,
    // An empty stanza is kept only when the policy has one: it says nothing, but it was written.
    mcp: mcp === undefined && Object.keys(mcpPlain).length === 0 ? undefined : mcpPlain,
    credential_signing: endpoint.credentialSigning,
    signing_service: endpoint.signingService,
    signing_region: endpoint.signingRegion,
    credential_binding: endpoint.credentialProvider === "" ? undefined : { provider: endpoint.credentialProvider },
  });
}

function plainRequestRule(rule: RequestRule, mcp: boolean): PlainPolicy {
  const params = new Map(rule.params);
  const tool = mcp ? params.get("name") : undefined;
  if (tool !== undefined) params.delete("name");
  return compact({
    method: rule.method,
    path: rule.path,
    query: mapOf(rule.query, plainMatcher),
    operation_type: rule.operationType,
    operation_name: rule.operationName,
    fields: list(rule.fields),
    tool: tool === undefined ? undefined : plainMatcher(tool),
    params: mapOf(params, plainMatcher),
  });
}

function plainMatcher(matcher: Matcher): unknown {
  return matcher.any || matcher.globs.length !== 1 ? { any: matcher.globs } : matcher.globs[0];
}

function plainMiddleware(entry: Middleware): PlainPolicy {
  return compact({
    name: entry.name,
    middleware: entry.middleware,
    order: entry.order || undefined,
    config: entry.config === undefined || Object.keys(entry.config).length === 0 ? undefined : entry.config,
    on_error: entry.onError,
    endpoints: compact({ include: list(entry.include), exclude: list(entry.exclude) }),
  });
}

/** Without undefined and empty text. */
function compact(fields: Record<string, unknown>): PlainPolicy {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== ""));
}

function object(fields: Record<string, unknown>): PlainPolicy | undefined {
  const result = compact(fields);
  return Object.keys(result).length === 0 ? undefined : result;
}

function list<T>(items: readonly T[]): readonly T[] | undefined {
  return items.length === 0 ? undefined : items;
}

function mapOf<T>(map: ReadonlyMap<string, T>, plain: (value: T) => unknown): object | undefined {
  if (map.size === 0) return undefined;
  const keys = [...map.keys()].sort();
  // A null prototype, so that a key called __proto__ is a key; entries keep the sorted order unless they look like numbers.
  const result: Record<string, unknown> = Object.create(null);
  for (const key of keys) result[key] = plain(map.get(key) as T);
  return result;
}
