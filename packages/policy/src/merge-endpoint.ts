/** How one endpoint takes up another of the same destination: what is in force stays, what is new is added. */

import { canonicalHost } from "./ip.ts";
import { DEFAULT_L7_BODY_BYTES } from "./limits.ts";
import { EMPTY_RULE, type Endpoint, type Matcher, type McpOptions, type RequestRule } from "./model.ts";
import { effectiveAllowRules } from "./presets.ts";

/** Why endpoints cannot become one. */
export class MergeConflict {
  /** `invalid`: wrong whatever the policy is. `conflict`: wrong with this policy. */
  readonly kind: "invalid" | "conflict";
  readonly message: string;
  readonly next: string;

  constructor(kind: "invalid" | "conflict", message: string, next: string) {
    this.kind = kind;
    this.message = message;
    this.next = next;
  }
}

export function sameHost(a: string, b: string): boolean {
  return canonicalHost(a) === canonicalHost(b);
}

export function placeOf({ host, ports, path }: Pick<Endpoint, "host" | "ports" | "path">): string {
  return `${host}:${ports.join(",")}${path}`;
}

/** The endpoint with sorted ports and without repetitions. */
export function normalised(endpoint: Endpoint): Endpoint {
  return {
    ...endpoint,
    ports: union(endpoint.ports, []).toSorted((a, b) => a - b),
    allowedIps: union(endpoint.allowedIps, []),
    rules: uniqueRules(endpoint.rules, []),
    denyRules: uniqueRules(endpoint.denyRules, []),
  };
}

/** The preset's rules in place of the preset, so that single rules can stand beside it. */
export function withoutPreset(endpoint: Endpoint): Endpoint {
  if (endpoint.access === "") return endpoint;
  return { ...endpoint, access: "", rules: uniqueRules(presetRules(endpoint), endpoint.rules) };
}

function presetRules(endpoint: Endpoint): readonly RequestRule[] {
  if (endpoint.protocol === "rest") return effectiveAllowRules(endpoint);
  if (endpoint.protocol === "websocket") {
    const methods = { "read-only": ["GET"], "read-write": ["GET", "WEBSOCKET_TEXT"], full: ["*"], "": [] };
    return methods[endpoint.access].map((method) => ({ ...EMPTY_RULE, method, path: "**" }));
  }
  throw new MergeConflict(
    "invalid",
    `${placeOf(endpoint)}: access ${endpoint.access} of protocol ${endpoint.protocol || "(none)"} cannot be written as rules`,
    "Replace the endpoint's access by rules with a complete policy",
  );
}

/** `a` with everything of `b` that it does not have; what both set stays as in `a`, which `warn` is told. */
export function mergeEndpoints(a: Endpoint, b: Endpoint, warn: (text: string) => void): Endpoint {
  const place = placeOf(a);
  const keep = <K extends "enforcement" | "protocol" | "credentialProvider">(key: K, name: string): Endpoint[K] => {
    if (a[key] !== "" && b[key] !== "" && a[key] !== b[key]) warn(`${place}: ${name} stays ${a[key]}, not ${b[key]}`);
    return a[key] === "" ? b[key] : a[key];
  };
  checkMcp(a, b);
  const protocol = keep("protocol", "protocol");
  if (a.tls !== b.tls) warn(`${place}: tls stays ${a.tls}, not ${b.tls}`);
  const dropped = DROPPED.filter(([, differs]) => differs(a, b)).map(([name]) => name);
  if (dropped.length > 0) warn(`${place}: ${dropped.join(", ")} cannot be merged, and stay as they are`);
  const promoted = protocol === "mcp" && a.protocol !== "mcp";
  const mcp = promoted ? b.mcp : a.mcp;
  return normalised({
    ...a,
    ...allowances({ ...a, protocol }, { ...b, protocol }, warn),
    ports: union(a.ports, b.ports),
    protocol,
    enforcement: keep("enforcement", "enforcement"),
    denyRules: uniqueRules(a.denyRules, b.denyRules),
    allowedIps: union(a.allowedIps, b.allowedIps),
    allowEncodedSlash: a.allowEncodedSlash || b.allowEncodedSlash,
    websocketCredentialRewrite: a.websocketCredentialRewrite || b.websocketCredentialRewrite,
    requestBodyCredentialRewrite: a.requestBodyCredentialRewrite || b.requestBodyCredentialRewrite,
    allowUninspectedCredentials: a.allowUninspectedCredentials || b.allowUninspectedCredentials,
    credentialProvider: keep("credentialProvider", "credential_binding"),
    jsonRpcMaxBodyBytes: promoted ? b.jsonRpcMaxBodyBytes : a.jsonRpcMaxBodyBytes,
    ...(mcp === undefined ? {} : { mcp }),
  });
}

/** Access and rules of both. A preset stays a word for as long as nothing else has to stand beside it. */
function allowances(a: Endpoint, b: Endpoint, warn: (text: string) => void): Pick<Endpoint, "access" | "rules"> {
  if (a.access !== "" && b.rules.length === 0) {
    if (b.access !== "" && b.access !== a.access) warn(`${placeOf(a)}: access stays ${a.access}, not ${b.access}`);
    return { access: a.access, rules: a.rules };
  }
  if (a.access === "" && a.rules.length === 0) return { access: b.access, rules: b.rules };
  return { access: "", rules: uniqueRules(withoutPreset(a).rules, withoutPreset(b).rules) };
}

/** Fields of which nothing is taken over, with whether there would have been something. */
const DROPPED: readonly (readonly [string, (a: Endpoint, b: Endpoint) => boolean])[] = [
  ["persisted_queries", (a, b) => b.persistedQueries !== "" && a.persistedQueries !== b.persistedQueries],
  ["graphql_persisted_queries", (a, b) => b.graphqlPersistedQueries.size > 0 && text(a) !== text(b)],
  ["graphql_max_body_bytes", (a, b) => b.graphqlMaxBodyBytes !== 0 && a.graphqlMaxBodyBytes !== b.graphqlMaxBodyBytes],
  ["credential_signing", (a, b) => b.credentialSigning !== "" && signing(a) !== signing(b)],
];

function text(endpoint: Endpoint): string {
  return JSON.stringify([...endpoint.graphqlPersistedQueries]);
}

function signing({ credentialSigning, signingService, signingRegion }: Endpoint): string {
  return [credentialSigning, signingService, signingRegion].join("\0");
}

/** An MCP contract is agreed on or refused: half of one and half of another would be neither. */
function checkMcp(a: Endpoint, b: Endpoint): void {
  const place = placeOf(a);
  const next = "Change the endpoint with a complete policy";
  if (b.protocol === "mcp" && a.protocol !== "" && a.protocol !== "mcp")
    throw new MergeConflict("conflict", `${place}: protocol ${a.protocol} cannot become mcp`, next);
  if (a.protocol === "mcp" && b.protocol !== "" && b.protocol !== "mcp")
    throw new MergeConflict("conflict", `${place}: protocol mcp cannot become ${b.protocol}`, next);
  if (a.protocol !== "mcp" || b.protocol !== "mcp") return;
  const contract = ({ mcp, jsonRpcMaxBodyBytes }: Endpoint): string =>
    JSON.stringify([...contractOf(mcp), jsonRpcMaxBodyBytes || DEFAULT_L7_BODY_BYTES]);
  if (contract(a) !== contract(b))
    throw new MergeConflict(
      "conflict",
      `${place}: the two MCP contracts differ`,
      "Declare the contract that is in force",
    );
}

function contractOf(mcp: McpOptions | undefined): readonly unknown[] {
  return [mcp?.strictToolNames ?? true, mcp?.allowAllKnownMcpMethods ?? false];
}

export function union<T>(a: readonly T[], b: readonly T[]): T[] {
  return [...new Set([...a, ...b])];
}

export function uniqueRules(a: readonly RequestRule[], b: readonly RequestRule[]): RequestRule[] {
  return [...new Map([...a, ...b].map((rule) => [ruleKey(rule), rule])).values()];
}

export function ruleKey(rule: RequestRule): string {
  const matchers = (map: ReadonlyMap<string, Matcher>) => [...map].map(([name, { any, globs }]) => [name, any, globs]);
  const { method, path, operationType, operationName, fields } = rule;
  return JSON.stringify([
    method,
    path,
    operationType,
    operationName,
    fields,
    matchers(rule.query),
    matchers(rule.params),
  ]);
}

/** Equal for endpoints that say the same. */
export function endpointKey(endpoint: Endpoint): string {
  const { rules, denyRules, graphqlPersistedQueries, ...plain } = normalised(endpoint);
  return JSON.stringify([plain, rules.map(ruleKey), denyRules.map(ruleKey), [...graphqlPersistedQueries]]);
}
