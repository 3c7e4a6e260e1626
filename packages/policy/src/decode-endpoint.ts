/** Endpoints and their request rules, from the document tree. */

import type { Tree } from "./document.ts";
import { asInteger, asString, Fields, type Report, wrongType } from "./fields.ts";
import {
  ACCESS_PRESETS,
  EMPTY_ENDPOINT,
  EMPTY_RULE,
  type Endpoint,
  type GraphqlOperation,
  type Matcher,
  type McpOptions,
  PROTOCOLS,
  type Protocol,
  type RequestRule,
  sortedMap,
} from "./model.ts";
import { indexPath, keyPath } from "./violation.ts";

const ENDPOINT = [
  "host",
  "port",
  "ports",
  "path",
  "protocol",
  "tls",
  "enforcement",
  "access",
  "rules",
  "deny_rules",
  "allowed_ips",
  "allow_encoded_slash",
  "websocket_credential_rewrite",
  "request_body_credential_rewrite",
  "allow_uninspected_credentials",
  "persisted_queries",
  "graphql_persisted_queries",
  "graphql_max_body_bytes",
  "json_rpc",
  "mcp",
  "credential_signing",
  "signing_service",
  "signing_region",
  "credential_binding",
] as const;

const ENDPOINT_REFUSED = {
  advisor_proposed: "the gateway stamps it",
  provider_credentialed: "the gateway stamps it",
  token_grant_owner: "the gateway stamps it",
};

const RULE = ["method", "path", "query", "operation_type", "operation_name", "fields", "tool", "params"] as const;
const RULE_REFUSED = { command: "SQL is not a protocol of this release" };

/** Largest body limit an endpoint may ask for (uint32 on the wire). */
const MAX_BODY = 4_294_967_295;

export function decodeEndpoint(tree: Tree, path: string, report: Report): Endpoint | undefined {
  const fields = Fields.of(tree, path, ENDPOINT, report, ENDPOINT_REFUSED);
  if (fields === undefined) return undefined;
  const mcp = Fields.of(
    fields.tree("mcp"),
    fields.at("mcp"),
    ["max_body_bytes", "strict_tool_names", "allow_all_known_mcp_methods", "versions"],
    report,
  );
  const jsonRpc = Fields.of(fields.tree("json_rpc"), fields.at("json_rpc"), ["max_body_bytes"], report);
  const binding = Fields.of(fields.tree("credential_binding"), fields.at("credential_binding"), ["provider"], report);
  if (binding !== undefined && binding.string("provider").trim() === "") {
    report.add(binding.path, "missing_key", "credential_binding names no provider", "Add provider: <name>");
  }
  const rule = (item: Tree, at: string): RequestRule | undefined => decodeAllow(item, at, report);
  return {
    ...EMPTY_ENDPOINT,
    host: fields.string("host"),
    ports: decodePorts(fields, report),
    path: fields.string("path"),
    protocol: decodeProtocol(fields, report),
    tls: fields.choice("tls", ["skip"]) === "skip" ? "skip" : "auto",
    enforcement: fields.choice("enforcement", ["enforce", "audit"]),
    access: fields.choice("access", ACCESS_PRESETS),
    rules: notEmptyList(fields, "rules", rule, report),
    denyRules: notEmptyList(fields, "deny_rules", (item, at) => decodeRequestRule(item, at, report), report),
    allowedIps: fields.strings("allowed_ips"),
    allowEncodedSlash: fields.boolean("allow_encoded_slash") ?? false,
    websocketCredentialRewrite: fields.boolean("websocket_credential_rewrite") ?? false,
    requestBodyCredentialRewrite: fields.boolean("request_body_credential_rewrite") ?? false,
    allowUninspectedCredentials: fields.boolean("allow_uninspected_credentials") ?? false,
    persistedQueries: fields.choice("persisted_queries", ["deny", "allow_registered"]),
    graphqlPersistedQueries: sortedMap(
      fields.map("graphql_persisted_queries", (item, at) => decodeOperation(item, at, report)),
    ),
    graphqlMaxBodyBytes: fields.integer("graphql_max_body_bytes", 1, MAX_BODY) ?? 0,
    jsonRpcMaxBodyBytes:
      mcp?.integer("max_body_bytes", 1, MAX_BODY) ?? jsonRpc?.integer("max_body_bytes", 1, MAX_BODY) ?? 0,
    ...(mcp === undefined ? {} : { mcp: decodeMcp(mcp, report) }),
    credentialSigning: fields.choice("credential_signing", ["sigv4", "sigv4:body", "sigv4:no_body"]),
    signingService: fields.string("signing_service"),
    signingRegion: fields.string("signing_region"),
    credentialProvider: binding?.string("provider") ?? "",
  };
}

function decodePorts(fields: Fields, report: Report): number[] {
  if (fields.has("port") && fields.has("ports")) {
    report.add(
      fields.at("ports"),
      "invalid_l7_endpoint",
      "port and ports are mutually exclusive",
      "Keep one of the two",
    );
  }
  const ports = fields.list("ports", (item, at) => asInteger(item, at, 0, 65_535, report));
  const port = fields.integer("port", 0, 65_535);
  return ports.length > 0 || port === undefined ? ports : [port];
}

function decodeProtocol(fields: Fields, report: Report): Protocol | "" {
  const text = fields.string("protocol");
  const lower = text.toLowerCase();
  if (lower === "" || (PROTOCOLS as readonly string[]).includes(lower)) return lower as Protocol | "";
  report.add(
    fields.at("protocol"),
    "invalid_l7_endpoint",
    unknownProtocol(text),
    "Use one of these, or leave the key out",
  );
  return "";
}

export function unknownProtocol(protocol: string): string {
  return `unknown protocol '${protocol}' (expected tcp, rest, websocket, graphql, json-rpc, or mcp)`;
}

/** An empty list where a list decides is a mistake, not "nothing": say so instead of guessing which way it was meant. */
function notEmptyList<T>(
  fields: Fields,
  key: string,
  read: (tree: Tree, path: string) => T | undefined,
  report: Report,
): T[] {
  const tree = fields.tree(key);
  if (tree?.kind === "list" && tree.items.length === 0) {
    report.add(fields.at(key), "invalid_l7_endpoint", `${key} is empty`, `Add an entry, or leave ${key} out`);
  }
  return fields.list(key, read);
}

function decodeAllow(tree: Tree, path: string, report: Report): RequestRule | undefined {
  if (tree.kind === "map" && !tree.entries.has("allow")) {
    report.add(path, "missing_key", "missing field 'allow'", "Wrap the rule: allow: {method: …, path: …}");
    return undefined;
  }
  const fields = Fields.of(tree, path, ["allow"], report);
  const allow = fields?.tree("allow");
  return allow === undefined ? undefined : decodeRequestRule(allow, keyPath(path, "allow"), report);
}

function decodeRequestRule(tree: Tree, path: string, report: Report): RequestRule | undefined {
  const fields = Fields.of(tree, path, RULE, report, RULE_REFUSED);
  if (fields === undefined) return undefined;
  const params = new Map<string, Matcher>();
  const paramsTree = fields.tree("params");
  if (paramsTree !== undefined) flattenParams(paramsTree, fields.at("params"), "", params, report);
  if (fields.has("tool")) {
    if (params.has("name")) {
      report.add(fields.at("tool"), "invalid_l7_endpoint", "tool and params.name say the same", "Keep one of the two");
    }
    const tool = decodeMatcher(fields.tree("tool") as Tree, fields.at("tool"), report);
    if (tool !== undefined && !params.has("name")) params.set("name", tool);
  }
  return {
    ...EMPTY_RULE,
    method: fields.string("method"),
    path: fields.string("path"),
    query: sortedMap(fields.map("query", (item, at) => decodeMatcher(item, at, report))),
    operationType: fields.string("operation_type"),
    operationName: fields.string("operation_name"),
    fields: notEmptyList(fields, "fields", (item, at) => asString(item, at, report), report),
    params: sortedMap(params),
  };
}

/** `{name: x, arguments: {path: y}}` becomes `name` and `arguments.path`. */
function flattenParams(tree: Tree, path: string, prefix: string, into: Map<string, Matcher>, report: Report): void {
  if (tree.kind !== "map") {
    wrongType(report, path, "a map", tree);
    return;
  }
  for (const [key, value] of tree.entries) {
    const name = prefix === "" ? key : `${prefix}.${key}`;
    const at = keyPath(path, key);
    const nested = value.kind === "map" && !value.entries.has("any");
    if (nested) flattenParams(value, at, name, into, report);
    else {
      const matcher = decodeMatcher(value, at, report);
      if (matcher !== undefined) into.set(name, matcher);
    }
  }
}

function decodeMatcher(tree: Tree, path: string, report: Report): Matcher | undefined {
  if (tree.kind === "scalar") {
    const glob = asString(tree, path, report);
    return glob === undefined ? undefined : { any: false, globs: [glob] };
  }
  const fields = Fields.of(tree, path, ["any"], report);
  if (fields === undefined) return undefined;
  const globs = fields.strings("any");
  const empty = tree.kind === "map" && (tree.entries.size === 0 || fields.tree("any")?.kind === "list");
  if (globs.length === 0 && empty) {
    report.add(path, "invalid_l7_endpoint", "the matcher has no pattern", "Write a glob, or any: [glob, …]");
  }
  return { any: true, globs };
}

function decodeOperation(tree: Tree, path: string, report: Report): GraphqlOperation | undefined {
  const fields = Fields.of(tree, path, ["operation_type", "operation_name", "fields"], report);
  if (fields === undefined) return undefined;
  return {
    operationType: fields.string("operation_type"),
    operationName: fields.string("operation_name"),
    fields: fields.strings("fields"),
  };
}

function decodeMcp(fields: Fields, report: Report): McpOptions {
  const strict = fields.boolean("strict_tool_names");
  const all = fields.boolean("allow_all_known_mcp_methods");
  const versions = fields.strings("versions");
  if (fields.has("versions") && versions.length === 0 && fields.tree("versions")?.kind === "list") {
    report.add(
      fields.at("versions"),
      "invalid_l7_endpoint",
      "versions is empty",
      "Name a revision, or leave the key out",
    );
  }
  return {
    ...(strict === undefined ? {} : { strictToolNames: strict }),
    ...(all === undefined ? {} : { allowAllKnownMcpMethods: all }),
    versions,
  };
}

/** Path of an endpoint, for positions. */
export function endpointPath(rule: string, index: number): string {
  return indexPath(keyPath(keyPath("network_policies", rule), "endpoints"), index);
}
