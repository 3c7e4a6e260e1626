import type { PolicyProblem } from "@openshell/base/catalogue/policies.ts";
/** The meaning of one endpoint: which keys go together, for which protocol. */
import { unknownProtocol } from "./decode-endpoint.ts";
import type { Report } from "./fields.ts";
import { parseGlob } from "./globs.ts";
import { hostProblem, isDnsName, isHostPattern } from "./host-pattern.ts";
import { ALWAYS_BLOCKED, canonicalHost, cidrContains, cidrsOverlap, parseCidr, parseIp } from "./ip.ts";
import { PolicyLimit } from "./limits.ts";
import { type Endpoint, MCP_VERSIONS, PROTOCOLS } from "./model.ts";
import { normalisePathSelector } from "./path-selector.ts";
import { validateRules } from "./validate-rules.ts";
import { indexPath, keyPath } from "./violation.ts";

export interface EndpointContext {
  readonly rule: string;
  readonly index: number;
  readonly path: string;
  readonly endpoint: Endpoint;
  readonly report: Report;
  readonly warnings: Report;
}

export function validateEndpoint(context: EndpointContext): void {
  validateHost(context);
  validatePorts(context);
  validateAllowedIps(context);
  if (context.endpoint.protocol === "tcp") validateTcp(context);
  else validateProtocol(context);
  warnAuditOnly(context);
  validateSigning(context);
}

/** Whether requests that the endpoint's rules forbid are let through and only logged, without anybody having said so. */
export function isAuditOnly(
  endpoint: Pick<Endpoint, "protocol" | "access" | "enforcement" | "rules" | "denyRules">,
): boolean {
  const { protocol, access, enforcement, rules, denyRules } = endpoint;
  const inspected = protocol !== "" && protocol !== "tcp";
  const restricts = (access !== "" && access !== "full") || rules.length > 0 || denyRules.length > 0;
  return inspected && restricts && enforcement === "";
}

function warnAuditOnly(context: EndpointContext): void {
  if (!isAuditOnly(context.endpoint)) return;
  warn(
    context,
    "",
    "audit_only",
    "requests that its rules forbid are let through and only logged",
    "Write enforcement: enforce, or enforcement: audit where that is meant",
  );
}

/** Adds a violation of the endpoint semantics; `key` is the field that a reader would change. */
export function l7(context: EndpointContext, key: string, message: string, next: string): void {
  const at = key === "" ? context.path : keyPath(context.path, key);
  context.report.add(at, "invalid_l7_endpoint", sentence(context, message), next);
}

export function warn(context: EndpointContext, key: string, code: PolicyProblem, message: string, next: string): void {
  const at = key === "" ? context.path : keyPath(context.path, key);
  context.warnings.add(at, code, sentence(context, message), next);
}

function sentence(context: EndpointContext, message: string): string {
  return `network policy '${context.rule}': endpoint ${context.index}: ${message}`;
}

function validateHost(context: EndpointContext): void {
  const { endpoint, report, path } = context;
  const { host } = endpoint;
  const at = keyPath(path, "host");
  const add = (code: PolicyProblem, message: string, next: string): void => {
    report.add(at, code, `network policy '${context.rule}': ${message}`, next);
  };
  if (host.trim() === "") {
    if (endpoint.protocol === "tcp")
      add("missing_tcp_endpoint_host", "a tcp endpoint needs a host", "Add host: <name>");
    else if (endpoint.protocol === "mcp")
      add("missing_endpoint_host", "an mcp endpoint needs a host", "Add host: <name>");
    else if (endpoint.allowedIps.length === 0) {
      add("missing_endpoint_host", "endpoint has neither host nor allowed_ips", "Add host: <name>");
    } else if (host !== "") add("invalid_endpoint_host", "host is blank", "Leave the key out");
    return;
  }
  const problem = hostProblem(host);
  if (problem !== undefined) {
    add(problem.code, problem.message, "Use *.example.com, **.example.com or an exact name");
    return;
  }
  if (endpoint.protocol === "tcp") {
    if (parseIp(canonicalHost(host)) !== undefined) {
      add("tcp_endpoint_ip_literal", `tcp host '${host}' is an address`, "Use a name, or leave the protocol out");
      return;
    }
    if (host.endsWith(".")) {
      add("invalid_tcp_endpoint_host", `tcp host '${host}' ends with a dot`, "Remove the dot");
      return;
    }
  }
  if (!isSelector(host)) {
    add(
      endpoint.protocol === "tcp" ? "invalid_tcp_endpoint_host" : "invalid_endpoint_host",
      `'${host}' is no host name, address or pattern`,
      host.includes("://")
        ? "Leave the scheme out: a host name alone"
        : host.includes("/")
          ? "Put address blocks into allowed_ips and paths into path"
          : "Use a host name such as api.example.com",
    );
    return;
  }
  const address = parseIp(canonicalHost(host));
  if (
    canonicalHost(host) === "localhost" ||
    (address && ALWAYS_BLOCKED.some((block) => cidrContains(block, address)))
  ) {
    warn(
      context,
      "host",
      "blocked_destination",
      `'${host}' is blocked whatever the policy says`,
      "Remove the endpoint",
    );
  }
}

function isSelector(host: string): boolean {
  const bare = canonicalHost(host);
  if (parseIp(bare) !== undefined) return true;
  // A wildcard stands for a label or a part of one; with a letter in its place the name has to be a name.
  return isDnsName(isHostPattern(bare) ? bare.replaceAll(/\*+/g, "a") : bare);
}

function validatePorts(context: EndpointContext): void {
  const { endpoint, report, path, rule } = context;
  if (endpoint.ports.length === 0) {
    const at = keyPath(path, "port");
    report.add(at, "missing_endpoint_port", `network policy '${rule}': endpoint has no port`, "Add port: 443");
  }
  for (const port of endpoint.ports) {
    if (Number.isInteger(port) && port >= 1 && port <= 65_535) continue;
    const at = keyPath(path, endpoint.ports.length > 1 ? "ports" : "port");
    const message = `network policy '${rule}': port ${port} is outside 1..=65535`;
    report.add(at, "invalid_endpoint_port", message, "Use a port from 1 to 65535");
  }
}

function validateAllowedIps(context: EndpointContext): void {
  const at = keyPath(context.path, "allowed_ips");
  for (const [index, entry] of context.endpoint.allowedIps.entries()) {
    const block = parseCidr(entry.trim());
    if (block === undefined) {
      context.report.add(
        indexPath(at, index),
        "invalid_allowed_ips",
        `network policy '${context.rule}': '${entry}' is no address or CIDR block`,
        "Write 10.20.0.0/16 or 10.20.0.7",
      );
    } else if (ALWAYS_BLOCKED.some((blocked) => cidrsOverlap(blocked, block))) {
      context.warnings.add(
        indexPath(at, index),
        "blocked_destination",
        `network policy '${context.rule}': allowed_ips entry '${entry}' overlaps loopback, link-local or unspecified addresses; the endpoint refuses every connection`,
        "Name blocks without those ranges",
      );
    }
  }
}

function validateTcp(context: EndpointContext): void {
  const { endpoint } = context;
  const set: readonly (readonly [string, boolean])[] = [
    ["access", endpoint.access !== ""],
    ["rules", endpoint.rules.length > 0],
    ["deny_rules", endpoint.denyRules.length > 0],
    ["enforcement", endpoint.enforcement !== ""],
    ["path", endpoint.path !== ""],
    ["tls", endpoint.tls === "skip"],
    ["allow_encoded_slash", endpoint.allowEncodedSlash],
    ["websocket_credential_rewrite", endpoint.websocketCredentialRewrite],
    ["request_body_credential_rewrite", endpoint.requestBodyCredentialRewrite],
    ["persisted_queries", endpoint.persistedQueries !== ""],
    ["graphql_persisted_queries", endpoint.graphqlPersistedQueries.size > 0],
    ["graphql_max_body_bytes", endpoint.graphqlMaxBodyBytes > 0],
    ["json_rpc", endpoint.jsonRpcMaxBodyBytes > 0],
    ["mcp", endpoint.mcp !== undefined],
    ["credential_signing", endpoint.credentialSigning !== ""],
    ["signing_service", endpoint.signingService !== ""],
    ["signing_region", endpoint.signingRegion !== ""],
    ["credential_binding", endpoint.credentialProvider !== ""],
  ];
  for (const [key, present] of set) {
    if (present) l7(context, key, `protocol tcp does not take '${key}'`, "Remove the key, or leave the protocol out");
  }
}

function validateProtocol(context: EndpointContext): void {
  const { endpoint } = context;
  const { protocol } = endpoint;
  if (protocol !== "" && !(PROTOCOLS as readonly string[]).includes(protocol)) {
    l7(context, "protocol", unknownProtocol(protocol), "Use one of these, or leave the key out");
    return;
  }
  validateEndpointPath(context);
  validateOptions(context);
  if (protocol === "") {
    for (const [key, present] of [
      ["access", endpoint.access !== ""],
      ["rules", endpoint.rules.length > 0],
      ["deny_rules", endpoint.denyRules.length > 0],
    ] as const) {
      if (present) l7(context, key, `${key} needs a protocol`, "Add protocol: rest, or remove the key");
    }
    return;
  }
  if (endpoint.tls === "skip") {
    warn(
      context,
      "tls",
      "uninspectable",
      "tls: skip leaves nothing to judge requests by; TLS connections are refused",
      "Remove tls: skip, or remove the protocol to pass the bytes on unseen",
    );
  }
  if (endpoint.protocol !== "rest") {
    warn(
      context,
      "protocol",
      "unsupported_protocol",
      `protocol '${protocol}' is not supported by this release: every request is denied`,
      "Use protocol: rest where the requests are plain HTTP",
    );
  }
  validateRules(context);
}

function validateEndpointPath(context: EndpointContext): void {
  const { path, protocol } = context.endpoint;
  if (path === "") return;
  if (!path.startsWith("/") && path !== "**") {
    l7(context, "path", `endpoint path '${path}' must start with '/' or be '**'`, "Start it with '/'");
    return;
  }
  if (path.length > PolicyLimit.patternBytes) {
    l7(context, "path", "endpoint path is too long", "Name a shorter path");
    return;
  }
  const parsed = parseGlob(path, "");
  if (!parsed.ok) {
    warn(
      context,
      "path",
      "malformed_glob",
      `path '${path}' is taken literally: ${parsed.error}`,
      "Correct the pattern",
    );
  }
  if (protocol === "" && normalisePathSelector(path) !== "") {
    warn(
      context,
      "path",
      "path_without_protocol",
      "a path without a protocol admits every HTTP request below the path and nothing that is not HTTP",
      "Add protocol: rest with access or rules",
    );
  }
}

/** Keys that only some protocols know. */
function validateOptions(context: EndpointContext): void {
  const { endpoint } = context;
  const { protocol } = endpoint;
  if (endpoint.mcp !== undefined && protocol !== "mcp") {
    l7(context, "mcp", "mcp options need protocol: mcp", "Set protocol: mcp, or remove mcp");
  }
  for (const version of endpoint.mcp?.versions ?? []) {
    if ((MCP_VERSIONS as readonly string[]).includes(version)) continue;
    l7(context, "mcp", `unknown MCP version '${version}'`, `Use some of ${MCP_VERSIONS.join(", ")}`);
  }
  if (endpoint.websocketCredentialRewrite && protocol !== "websocket") {
    const message = "websocket_credential_rewrite needs protocol: websocket";
    l7(context, "websocket_credential_rewrite", message, "Set protocol: websocket, or remove the key");
  }
  if (endpoint.requestBodyCredentialRewrite && protocol !== "rest") {
    const message = "request_body_credential_rewrite has no effect outside protocol: rest";
    warn(context, "request_body_credential_rewrite", "ignored_key", message, "Set protocol: rest, or remove the key");
  }
  const graphql =
    endpoint.graphqlMaxBodyBytes > 0 || endpoint.persistedQueries !== "" || endpoint.graphqlPersistedQueries.size > 0;
  if (graphql && protocol !== "graphql" && protocol !== "websocket") {
    warn(context, "", "ignored_key", "graphql options have no effect on this protocol", "Remove them");
  }
  for (const [key, operation] of endpoint.graphqlPersistedQueries) {
    if (["query", "mutation", "subscription"].includes(operation.operationType)) continue;
    const message = `persisted query '${key}' needs operation_type query, mutation or subscription`;
    l7(context, "graphql_persisted_queries", message, "Add operation_type");
  }
  if (endpoint.jsonRpcMaxBodyBytes > 0 && protocol !== "json-rpc" && protocol !== "mcp") {
    warn(context, "json_rpc", "ignored_key", "json_rpc options have no effect on this protocol", "Remove them");
  }
}

function validateSigning(context: EndpointContext): void {
  const { endpoint, path, report, rule } = context;
  if (endpoint.credentialSigning === "") {
    if (endpoint.signingService !== "" || endpoint.signingRegion !== "") {
      warn(context, "", "ignored_key", "signing_service and signing_region need credential_signing", "Remove them");
    }
    return;
  }
  warn(
    context,
    "credential_signing",
    "unsupported_signing",
    "credential_signing is not supported by this release: every request is denied",
    "Leave the endpoint out",
  );
  const at = keyPath(path, "credential_signing");
  if (endpoint.signingService.trim() === "") {
    const message = `network policy '${rule}': credential_signing needs signing_service`;
    report.add(at, "missing_signing_service", message, "Add signing_service, for example bedrock");
  }
  if (endpoint.requestBodyCredentialRewrite) {
    const message = `network policy '${rule}': credential_signing and request_body_credential_rewrite exclude each other`;
    report.add(at, "credential_signing_with_body_rewrite", message, "Keep one of the two");
  }
}
