/**
 * Two endpoints that can cover the same connection or request must agree on everything but their rules; otherwise it
 * would depend on their order which one counts. A more specific `path` may differ from a wider one.
 */
import { endpointPath } from "./decode-endpoint.ts";
import { hostPatternsOverlap, pathPatternsOverlap } from "./glob-overlap.ts";
import { HostTrie, isHostPattern } from "./host-pattern.ts";
import { canonicalHost } from "./ip.ts";
import { DEFAULT_L7_BODY_BYTES, PolicyLimit } from "./limits.ts";
import type { Endpoint, Policy } from "./model.ts";
import { normalisePathSelector, pathSpecificity } from "./path-selector.ts";

export interface Ambiguity {
  readonly path: string;
  readonly message: string;
  readonly next: string;
}

type Facts = Readonly<Record<string, string>>;

interface Item {
  readonly id: number;
  readonly rule: string;
  readonly index: number;
  readonly endpoint: Endpoint;
  readonly host: string;
  readonly path: string;
  readonly specificity: number;
  readonly connection: Facts;
  /** Undefined when the endpoint has no say about requests. */
  readonly request: Facts | undefined;
  /** Equal classes cannot contradict each other. A number: pairs are very many, and equal texts are slow to tell apart. */
  readonly class: number;
}

export function findAmbiguities(policy: Policy): Ambiguity[] {
  const items = collect(policy);
  const found: Ambiguity[] = [];
  const reported = new Set<string>();
  let pairs = 0;
  const compare = (a: Item, b: Item, overlap: boolean): boolean => {
    pairs += 1;
    if (pairs > PolicyLimit.ambiguityPairs || found.length >= PolicyLimit.ambiguities) return false;
    if (a.class === b.class) return true;
    const key = a.id < b.id ? `${a.id} ${b.id}` : `${b.id} ${a.id}`;
    if (reported.has(key) || (!overlap && !hostPatternsOverlap(a.host, b.host))) return true;
    const fields = conflicts(a, b);
    if (fields.length === 0) return true;
    reported.add(key);
    found.push(a.id < b.id ? describe(a, b, fields) : describe(b, a, fields));
    return true;
  };
  for (const group of byPort(items).values()) if (!comparePort(group, compare)) break;
  if (pairs > PolicyLimit.ambiguityPairs) {
    found.push({
      path: "network_policies",
      message: "too many overlapping endpoints to check them against each other",
      next: "Merge endpoints of the same host and port",
    });
  }
  return found;
}

/** Calls `compare` for pairs that may overlap, until it says that it has seen enough. False: it did. */
function comparePort(group: readonly Item[], compare: (a: Item, b: Item, overlap: boolean) => boolean): boolean {
  const exact = new Map<string, Item[]>();
  const patterns: Item[] = [];
  const hostless: Item[] = [];
  const trie = new HostTrie();
  const byId = new Map<number, Item>();
  for (const item of group) {
    if (item.host === "") hostless.push(item);
    else if (isHostPattern(item.host)) {
      patterns.push(item);
      byId.set(item.id, item);
      trie.add(item.host, item.id);
    } else {
      const same = exact.get(item.host);
      if (same === undefined) exact.set(item.host, [item]);
      else same.push(item);
    }
  }
  for (const [host, same] of exact) {
    const others = patterns.length === 0 ? [] : trie.find(host);
    for (const [at, item] of same.entries()) {
      for (let next = at + 1; next < same.length; next += 1) if (!compare(item, same[next] as Item, true)) return false;
      for (const id of others) if (!compare(item, byId.get(id) as Item, true)) return false;
    }
  }
  for (const [at, item] of patterns.entries()) {
    for (let next = at + 1; next < patterns.length; next += 1)
      if (!compare(item, patterns[next] as Item, false)) return false;
  }
  for (const [at, item] of hostless.entries()) {
    for (const other of group) if (other.host !== "" && !compare(item, other, true)) return false;
    for (let next = at + 1; next < hostless.length; next += 1)
      if (!compare(item, hostless[next] as Item, true)) return false;
  }
  return true;
}

function collect(policy: Policy): Item[] {
  const items: Item[] = [];
  const classes = new Map<string, number>();
  for (const [rule, { endpoints }] of policy.networkPolicies) {
    for (const [index, endpoint] of endpoints.entries()) {
      const connection = connectionFacts(endpoint);
      const request = requestFacts(endpoint);
      const path = normalisePathSelector(endpoint.path);
      const facts = JSON.stringify([connection, request ?? null]);
      const known = classes.get(facts) ?? classes.size;
      classes.set(facts, known);
      items.push({
        id: items.length,
        rule,
        index,
        endpoint,
        host: canonicalHost(endpoint.host),
        path,
        specificity: pathSpecificity(endpoint.path),
        connection,
        request,
        class: known,
      });
    }
  }
  return items;
}

function byPort(items: readonly Item[]): Map<number, Item[]> {
  const groups = new Map<number, Item[]>();
  for (const item of items) {
    for (const port of new Set(item.endpoint.ports)) {
      const group = groups.get(port);
      if (group === undefined) groups.set(port, [item]);
      else group.push(item);
    }
  }
  return groups;
}

function connectionFacts(endpoint: Endpoint): Facts {
  const ips = [...new Set(endpoint.allowedIps.map((entry) => entry.trim().toLowerCase()))].sort();
  return {
    transparent_tcp_eligible: String(endpoint.protocol === "tcp"),
    tls: endpoint.tls,
    allowed_ips: `[${ips.join(", ")}]`,
    advisor_proposed: String(endpoint.advisorProposed),
  };
}

function requestFacts(endpoint: Endpoint): Facts | undefined {
  const contributes =
    (endpoint.protocol !== "" && endpoint.protocol !== "tcp") ||
    endpoint.allowedIps.length > 0 ||
    endpoint.tls === "skip" ||
    endpoint.credentialProvider !== "" ||
    normalisePathSelector(endpoint.path) !== "";
  if (!contributes) return undefined;
  const { protocol } = endpoint;
  const graphqlRules = [...endpoint.rules, ...endpoint.denyRules].some((rule) => rule.operationType !== "");
  return {
    protocol,
    enforcement: endpoint.enforcement || "audit",
    allow_encoded_slash: String(endpoint.allowEncodedSlash),
    websocket_credential_rewrite: String(endpoint.websocketCredentialRewrite),
    request_body_credential_rewrite: String(endpoint.requestBodyCredentialRewrite),
    websocket_graphql_policy: String(protocol === "websocket" && graphqlRules),
    credential_signing: endpoint.credentialSigning,
    signing_service: endpoint.signingService,
    signing_region: endpoint.signingRegion,
    "credential_binding.provider": endpoint.credentialProvider,
    graphql_max_body_bytes:
      protocol === "graphql" || protocol === "websocket" ? limit(endpoint.graphqlMaxBodyBytes) : "",
    json_rpc_max_body_bytes: protocol === "json-rpc" || protocol === "mcp" ? limit(endpoint.jsonRpcMaxBodyBytes) : "",
    "mcp.strict_tool_names": protocol === "mcp" ? String(endpoint.mcp?.strictToolNames ?? true) : "",
  };
}

const limit = (bytes: number): string => String(bytes === 0 ? DEFAULT_L7_BODY_BYTES : bytes);

function conflicts(a: Item, b: Item): string[] {
  const found = differences(a.connection, b.connection);
  if (
    a.request !== undefined &&
    b.request !== undefined &&
    a.specificity === b.specificity &&
    pathPatternsOverlap(a.path, b.path)
  ) {
    found.push(...differences(a.request, b.request));
  }
  return found;
}

function differences(a: Facts, b: Facts): string[] {
  return Object.keys(a)
    .filter((field) => a[field] !== b[field])
    .map((field) => `${field}=${a[field] || "-"} vs ${b[field] || "-"}`);
}

function describe(a: Item, b: Item, fields: readonly string[]): Ambiguity {
  const ports = a.endpoint.ports.filter((port) => b.endpoint.ports.includes(port));
  const name = (item: Item): string => `'${item.rule}' endpoint ${item.index} (${item.host || "any host"}${item.path})`;
  return {
    path: endpointPath(b.rule, b.index),
    message: `network endpoint ambiguity validation failed: ${name(a)} and ${name(b)} overlap on ports [${ports.join(", ")}] but differ: ${fields.join(", ")}`,
    next: "Make the two agree, or give one of them a more specific path",
  };
}
