/** Allow and deny rules of an endpoint, by protocol. One diagnostic for each wrong combination. */
import { hasWildcard, parseGlob } from "./globs.ts";
import type { Matcher, RequestRule } from "./model.ts";
import { type EndpointContext, l7, warn } from "./validate-endpoint.ts";
import { indexPath } from "./violation.ts";

const HTTP_METHODS = new Set(
  "GET HEAD OPTIONS POST PUT PATCH DELETE TRACE CONNECT PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK REPORT SEARCH QUERY PURGE LINK UNLINK".split(
    " ",
  ),
);
const OPERATION_TYPES = new Set(["query", "mutation", "subscription"]);

interface RuleContext extends EndpointContext {
  readonly kind: "rules" | "deny_rules";
  readonly at: string;
  readonly item: RequestRule;
}

export function validateRules(context: EndpointContext): void {
  const { endpoint } = context;
  if (!hasBase(context)) return;
  for (const [kind, rules] of [
    ["rules", endpoint.rules],
    ["deny_rules", endpoint.denyRules],
  ] as const) {
    for (const [index, item] of rules.entries()) {
      validateRule({ ...context, kind, at: indexPath(kind, index), item });
    }
  }
  if (endpoint.protocol === "mcp") validateMcpScopes(context);
  if (endpoint.protocol === "websocket") {
    const text = endpoint.rules.some((rule) => rule.method.toUpperCase() === "WEBSOCKET_TEXT");
    if (text && endpoint.rules.some(isGraphqlRule)) {
      l7(context, "rules", "WEBSOCKET_TEXT and GraphQL rules exclude each other", "Keep one kind");
    }
  }
}

/** Checks that something can be allowed at all; false when the rest would only repeat the complaint. */
function hasBase(context: EndpointContext): boolean {
  const { endpoint } = context;
  const { protocol } = endpoint;
  const allowAll = endpoint.mcp?.allowAllKnownMcpMethods === true;
  if (endpoint.rules.length > 0 && endpoint.access !== "") {
    l7(context, "access", "rules and access are mutually exclusive", "Keep one of the two");
    return false;
  }
  if (protocol === "mcp" || protocol === "json-rpc") {
    if (endpoint.access !== "") {
      const hint =
        protocol === "mcp"
          ? "Use mcp.allow_all_known_mcp_methods or rules"
          : 'Use rules with allow.method, "*" for all';
      l7(context, "access", `protocol ${protocol} does not take access presets`, hint);
      return false;
    }
    if (endpoint.rules.length === 0 && !(protocol === "mcp" && allowAll)) {
      const next =
        protocol === "mcp"
          ? "Add rules, or set mcp.allow_all_known_mcp_methods: true"
          : 'Add rules: - allow: {method: "*"}';
      l7(context, "protocol", `protocol ${protocol} requires explicit rules`, next);
      return false;
    }
  } else if (endpoint.rules.length === 0 && endpoint.access === "") {
    const message =
      endpoint.denyRules.length > 0
        ? `protocol ${protocol} with deny_rules needs a base allow set: rules or access`
        : `protocol ${protocol} requires rules or access`;
    l7(context, "protocol", message, "Add access: read-only, or rules");
    return false;
  }
  if (endpoint.rules.length > 0 && endpoint.rules.every(isEmptyRule) && !(protocol === "mcp" && allowAll)) {
    l7(
      context,
      "rules",
      "no rule allows anything: the endpoint would deny all traffic",
      "Give each allow a method and a path",
    );
    return false;
  }
  return true;
}

function isEmptyRule(rule: RequestRule): boolean {
  return (
    rule.method === "" &&
    rule.path === "" &&
    rule.query.size === 0 &&
    rule.operationType === "" &&
    rule.operationName === "" &&
    rule.fields.length === 0 &&
    rule.params.size === 0
  );
}

function isGraphqlRule(rule: RequestRule): boolean {
  return rule.operationType !== "" || rule.operationName !== "" || rule.fields.length > 0;
}

function validateRule(context: RuleContext): void {
  switch (context.endpoint.protocol) {
    case "rest":
      validateHttpRule(context);
      break;
    case "websocket":
      if (isGraphqlRule(context.item)) {
        const { method, path, query } = context.item;
        if (method !== "" || path !== "" || query.size > 0) {
          l7(context, context.at, "a rule cannot mix method, path or query with GraphQL fields", "Split the rule");
        } else validateGraphqlRule(context);
      } else validateHttpRule(context);
      break;
    case "graphql":
      validateGraphqlRule(context);
      break;
    case "json-rpc":
      validateJsonRpcRule(context);
      break;
    case "mcp":
      validateMcpRule(context);
      break;
    default:
      break;
  }
  for (const [key, matcher] of context.item.query) validateMatcher(context, `query '${key}'`, matcher);
  for (const [key, matcher] of context.item.params) validateMatcher(context, `params '${key}'`, matcher);
}

function validateHttpRule(context: RuleContext): void {
  const { item, at, endpoint } = context;
  if (item.method === "") l7(context, at, "the rule has no method", 'Add method, "*" for any');
  if (item.path === "") l7(context, at, "the rule has no path", 'Add path, "**" for any');
  const method = item.method.toUpperCase();
  const allowed = endpoint.protocol === "websocket" ? new Set(["GET", "WEBSOCKET_TEXT"]) : HTTP_METHODS;
  if (method !== "" && method !== "*" && !allowed.has(method)) {
    if (endpoint.protocol === "websocket") {
      l7(context, at, `method '${item.method}' is no websocket method`, 'Use GET, WEBSOCKET_TEXT or "*"');
    } else warn(context, at, "unknown_method", `unknown HTTP method '${item.method}'`, "Check the spelling");
  }
  if (item.path !== "") validateGlob(context, "path", item.path, "/");
  if (endpoint.protocol === "rest" && (isGraphqlRule(item) || item.params.size > 0)) {
    warn(context, at, "ignored_key", "graphql, tool and params matchers have no effect here", "Remove them");
  }
}

function validateGraphqlRule(context: RuleContext): void {
  const { item, at } = context;
  if (!OPERATION_TYPES.has(item.operationType.toLowerCase())) {
    l7(context, at, "a graphql rule needs operation_type query, mutation or subscription", "Add operation_type");
  }
  if (item.operationName !== "") validateGlob(context, "operation_name", item.operationName, ".");
  for (const field of item.fields) validateGlob(context, "fields", field, ".");
}

function validateJsonRpcRule(context: RuleContext): void {
  const { item, at } = context;
  if (item.method === "") l7(context, at, "a json-rpc rule needs a method", 'Add method, "*" for all');
  else if (item.method !== "*" && hasWildcard(item.method)) {
    l7(context, at, "json-rpc methods are exact names", 'Write the full name, or "*" for all');
  }
  if (item.params.size > 0) l7(context, at, "json-rpc rules do not take tool or params", "Remove them");
  if (item.path !== "" || item.query.size > 0) {
    l7(context, at, "json-rpc rules do not take path or query", "Use the endpoint's path");
  }
}

function validateMcpRule(context: RuleContext): void {
  const { item, at, endpoint } = context;
  const allowAll = endpoint.mcp?.allowAllKnownMcpMethods === true;
  const tool = item.params.get("name");
  if (item.method === "" && !allowAll) {
    l7(context, at, "an mcp rule needs a method", "Add method, for example tools/call");
  }
  if (item.method === "*") l7(context, at, 'method "*" is refused', "Set mcp.allow_all_known_mcp_methods: true");
  else if (hasWildcard(item.method) && !item.method.startsWith("tools/")) {
    l7(context, at, "method globs are possible below tools/ only", "Write the full method name");
  }
  if ([...item.params.keys()].some((key) => key !== "name")) {
    l7(context, at, "mcp rules see the tool name only, not its arguments", "Keep params.name or tool");
  }
  if (tool !== undefined && item.method !== "" && item.method !== "tools/call") {
    l7(context, at, "tool rules need method: tools/call", "Set method: tools/call");
  }
  if (tool?.globs.some(hasWildcard) && endpoint.mcp?.strictToolNames === false) {
    l7(context, at, "a wildcard tool needs strict_tool_names", "Set mcp.strict_tool_names: true");
  }
  if (item.path !== "" || item.query.size > 0) {
    l7(context, at, "mcp rules do not take path or query", "Use the endpoint's path");
  }
}

/** Tool rules narrow `tools/call`; a catch-all beside them would make them mean nothing. */
function validateMcpScopes(context: EndpointContext): void {
  const { endpoint } = context;
  if (!endpoint.rules.some((rule) => rule.params.has("name"))) return;
  for (const [key, rules] of [
    ["rules", endpoint.rules],
    ["deny_rules", endpoint.denyRules],
  ] as const) {
    const broad = rules.some((rule) => !rule.params.has("name") && coversToolsCall(rule.method));
    if (broad) l7(context, key, "a catch-all for tools/call and tool rules exclude each other", "Keep one kind");
  }
}

function coversToolsCall(method: string): boolean {
  if (method === "*" || method === "tools/call") return true;
  const parsed = parseGlob(method, "/");
  return hasWildcard(method) && parsed.ok && /^tools\/[*{?[]/.test(method);
}

function validateMatcher(context: RuleContext, what: string, matcher: Matcher): void {
  if (matcher.globs.length === 0) l7(context, context.at, `${what} has no pattern`, "Write a glob, or any: [glob, …]");
  for (const glob of matcher.globs) validateGlob(context, what, glob, ".");
}

/** A malformed glob matches nothing. That is safe where it would allow, and refused where it would deny. */
function validateGlob(context: RuleContext, what: string, glob: string, separator: "." | "/"): void {
  const parsed = parseGlob(glob, separator);
  if (parsed.ok) return;
  if (context.kind === "deny_rules") {
    l7(context, context.at, `${what}: '${glob}' is malformed: ${parsed.error}`, "Correct the pattern");
  } else {
    const message = `${what}: '${glob}' matches nothing: ${parsed.error}`;
    warn(context, context.at, "malformed_glob", message, "Correct the pattern");
  }
}
