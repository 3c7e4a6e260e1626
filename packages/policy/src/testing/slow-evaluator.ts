/**
 * The meaning of a policy, written for reading: every rule is asked, globs are regular expressions, nothing is indexed or
 * remembered. Tests hold the compiled policy against it. Shares no code with the compiler but the data model.
 */
import type { ConnectionQuery, RequestQuery } from "../decision.ts";
import type { Endpoint, Matcher, NetworkRule, Policy, RequestRule } from "../model.ts";

interface Match {
  readonly key: string;
  readonly index: number;
  readonly endpoint: Endpoint;
}

export interface SlowConnection {
  readonly allowed: boolean;
  readonly code: string;
  readonly policy: string;
  readonly tls?: string;
  readonly allowedIps?: readonly string[] | undefined;
  readonly exactHost?: boolean;
  readonly inspected?: boolean;
  readonly allowUninspectedCredentials?: boolean;
  readonly skippedMiddlewares?: readonly string[];
  readonly matches: readonly Match[];
}

export function slowConnect(policy: Policy, query: ConnectionQuery): SlowConnection {
  const none = (code: string, key = ""): SlowConnection => ({ allowed: false, code, policy: key, matches: [] });
  const all = allEndpoints(policy);
  if (all.length === 0) return none("no_policy");
  const covering = all.filter(
    ({ endpoint }) => coversHost(endpoint, query.host) && endpoint.ports.includes(query.port),
  );
  if (covering.length === 0) return none("endpoint_not_allowed");
  const matches = covering.filter(({ key }) =>
    binaryAllowed(policy.networkPolicies.get(key) as NetworkRule, [query.process.exe, ...query.process.ancestors]),
  );
  const first = matches[0];
  if (first === undefined) return none("binary_not_allowed", covering[0]?.key);
  const raw = matches.find(({ endpoint }) => endpoint.protocol === "tcp");
  if (raw !== undefined) return none("unsupported_protocol", raw.key);
  const skippedMiddlewares: string[] = [];
  for (const middleware of policy.networkMiddlewares.values()) {
    const covers = (pattern: string): boolean => pattern === query.host || glob(pattern, ".", query.host);
    if (!middleware.include.some(covers) || middleware.exclude.some(covers)) continue;
    if (middleware.onError !== "fail_open") return none("unsupported_middleware", first.key);
    skippedMiddlewares.push(middleware.middleware);
  }
  return {
    allowed: true,
    code: "",
    policy: first.key,
    tls: matches.every(({ endpoint }) => endpoint.tls === "skip") ? "skip" : "auto",
    allowedIps: matches.find(({ endpoint }) => endpoint.allowedIps.length > 0)?.endpoint.allowedIps,
    exactHost: matches.some(({ endpoint }) => endpoint.host.toLowerCase() === query.host && !endpoint.advisorProposed),
    inspected: matches.some(({ endpoint }) => judgesRequests(endpoint)),
    allowUninspectedCredentials: matches.every(({ endpoint }) => endpoint.allowUninspectedCredentials),
    skippedMiddlewares,
    matches,
  };
}

export interface SlowRequest {
  readonly allowed: boolean;
  readonly code: string;
  readonly policy: string;
  readonly endpoint: number;
  readonly audited: boolean;
}

export function slowRequest(connection: SlowConnection, query: RequestQuery): SlowRequest {
  const first = connection.matches[0] as Match;
  if (!connection.inspected) return allow(first, false);
  const judging = connection.matches.filter(({ endpoint }) => judgesRequests(endpoint));
  const selected = judging.filter(({ endpoint }) => selects(endpoint.path, query.path));
  if (selected.length === 0) {
    return { allowed: false, code: "path_not_matched", policy: first.key, endpoint: -1, audited: false };
  }
  const weight = ({ endpoint }: Match): number =>
    endpoint.path === "**" || endpoint.path === "/**" ? 0 : endpoint.path.replace(/\*/g, "").length;
  const heaviest = Math.max(...selected.map(weight));
  const governing = selected.filter((match) => weight(match) === heaviest);
  const governor = governing[0] as Match;
  const unsupported = governing.find(
    ({ endpoint }) => !["", "rest"].includes(endpoint.protocol) || endpoint.credentialSigning !== "",
  );
  if (unsupported !== undefined) return deny(unsupported, "unsupported_protocol");
  if (query.encodedSlash && governing.some(({ endpoint }) => !endpoint.allowEncodedSlash)) {
    return deny(governor, "encoded_slash");
  }
  // Among several rules that match, the one of the smallest key is named.
  const ordered = [...selected].sort(ruleOrder);
  const denying = ordered.find(({ endpoint }) => endpoint.denyRules.some((rule) => matches(rule, query, "any")));
  const enforced = governing.some(({ endpoint }) => endpoint.enforcement === "enforce");
  if (denying !== undefined) return enforced ? deny(denying, "deny_rule") : allow(governor, true);
  const allowing = ordered.find(({ endpoint }) => allowRules(endpoint).some((rule) => matches(rule, query, "all")));
  if (allowing !== undefined) return allow(allowing, false);
  return enforced ? deny(governor, "not_permitted") : allow(governor, true);
}

function allow(match: Match, audited: boolean): SlowRequest {
  return { allowed: true, code: "", policy: match.key, endpoint: match.index, audited };
}

function deny(match: Match, code: string): SlowRequest {
  return { allowed: false, code, policy: match.key, endpoint: match.index, audited: false };
}

/** Rule keys ascending, then position. */
function ruleOrder(a: Match, b: Match): number {
  return a.key < b.key ? -1 : a.key > b.key ? 1 : a.index - b.index;
}

function allEndpoints(policy: Policy): Match[] {
  const keys = [...policy.networkPolicies.keys()].sort();
  return keys.flatMap((key) =>
    (policy.networkPolicies.get(key) as NetworkRule).endpoints.map((endpoint, index) => ({ key, index, endpoint })),
  );
}

function coversHost(endpoint: Endpoint, host: string): boolean {
  const pattern = endpoint.host.toLowerCase();
  if (pattern === "") return endpoint.allowedIps.length > 0;
  if (!pattern.includes("*")) return pattern === host;
  if (/^[0-9.]+$/.test(host) || host.includes(":")) return false;
  return glob(pattern, ".", host);
}

function binaryAllowed(rule: NetworkRule, paths: readonly string[]): boolean {
  return rule.binaries.some((binary) => paths.some((path) => path === binary || glob(binary, "/", path)));
}

function judgesRequests(endpoint: Endpoint): boolean {
  const everyPath = ["", "**", "/**"].includes(endpoint.path);
  return (endpoint.protocol !== "" && endpoint.protocol !== "tcp") || !everyPath || endpoint.credentialSigning !== "";
}

function selects(selector: string, path: string): boolean {
  if (["", "**", "/**"].includes(selector)) return true;
  if (glob(selector, "", path)) return true;
  return selector.endsWith("/**") && glob(selector.slice(0, -3), "", path);
}

function allowRules(endpoint: Endpoint): Pick<RequestRule, "method" | "path" | "query">[] {
  const preset = (methods: string[]) => methods.map((method) => ({ method, path: "**", query: new Map() }));
  if (endpoint.protocol === "") return preset(["*"]);
  if (endpoint.protocol !== "rest") return [];
  if (endpoint.access === "full") return preset(["*"]);
  const reading = ["GET", "HEAD", "OPTIONS"];
  if (endpoint.access === "read-only") return preset(reading);
  if (endpoint.access === "read-write") return preset([...reading, "POST", "PUT", "PATCH"]);
  return [...endpoint.rules];
}

function matches(
  rule: Pick<RequestRule, "method" | "path" | "query">,
  query: RequestQuery,
  mode: "all" | "any",
): boolean {
  if (rule.method === "" || rule.path === "") return false;
  const wanted = rule.method.toUpperCase();
  const method = query.method.toUpperCase();
  if (wanted !== "*" && wanted !== method && !(method === "HEAD" && wanted === "GET")) return false;
  if (!glob(rule.path, "/", query.path)) return false;
  return [...rule.query].every(([key, matcher]) => {
    const values = query.query.filter(([name]) => name === key).map(([, value]) => value);
    if (values.length === 0) return false;
    const fits = (value: string): boolean => anyGlob(matcher, value);
    return mode === "all" ? values.every(fits) : values.some(fits);
  });
}

function anyGlob(matcher: Matcher, value: string): boolean {
  return matcher.globs.some((pattern) => glob(pattern, ".", value));
}

/** Translation to a regular expression, without escapes and braces inside classes. */
export function glob(pattern: string, separator: string, text: string): boolean {
  return alternatives(pattern).some((plain) => {
    const segments = separator === "" ? [plain] : plain.split(separator);
    const other = separator === "" ? "[^]" : `[^${separator === "." ? "." : "/"}]`;
    const translated = segments.map((segment) => {
      if (segment === "**" && separator !== "") return "[^]*";
      return segment.replace(/\[(!?)([^\]]+)\]|[\s\S]/g, (token, negated: string | undefined, members: string) => {
        if (token === "*") return `${other}*`;
        if (token === "?") return other;
        if (token.length > 1 && members !== undefined) {
          const guard = separator === "" ? "" : `(?!\\${separator})`;
          return `${guard}[${negated === "!" ? "^" : ""}${members.replace(/[\\\]^]/g, "\\$&")}]`;
        }
        return token.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&");
      });
    });
    const joined = translated.join(separator === "" ? "" : `\\${separator}`);
    return new RegExp(`^${joined}$`).test(text);
  });
}

function alternatives(pattern: string): string[] {
  const brace = /^([^{}]*)\{([^{}]*)\}(.*)$/.exec(pattern);
  if (brace === null) return [pattern];
  return (brace[2] as string).split(",").flatMap((option) => alternatives(`${brace[1]}${option}${brace[3]}`));
}
