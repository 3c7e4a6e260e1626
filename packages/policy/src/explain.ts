/**
 * Why a policy decides as it does, for people: every rule with what of it fits and what does not, and what to add. Asks
 * each rule in turn; the data path never comes here.
 */
import { escapeUntrusted } from "@openshell/base/escape.ts";
import { stringify } from "yaml";
import { type CompileOptions, compilePolicy } from "./compile.ts";
import { type CompiledEndpoint, compileEndpoints, ruleAllowsBinary } from "./compiled-endpoint.ts";
import type { ConnectionDecision, ConnectionQuery, RequestDecision, RequestQuery } from "./decision.ts";
import { HostTrie } from "./host-pattern.ts";
import { canonicalHost } from "./ip.ts";
import type { Policy, RequestRule } from "./model.ts";
import { effectiveAllowRules } from "./presets.ts";
import { RequestIndex } from "./request-index.ts";

export interface Explanation {
  readonly connection: ConnectionDecision;
  /** Undefined when no request was asked about, or the connection is refused. */
  readonly request: RequestDecision | undefined;
  /** Endpoints by how near they come, nearest first. */
  readonly considered: readonly ConsideredEndpoint[];
  /** YAML that would allow it; empty when it is allowed already, or when nothing that can be added would. */
  readonly suggestion: string;
}

export interface ConsideredEndpoint {
  readonly policy: string;
  readonly endpoint: number;
  /** As in the policy; empty when the endpoint has none. */
  readonly host: string;
  readonly ports: readonly number[];
  readonly checks: readonly Check[];
  /** All checks of the connection passed. */
  readonly applies: boolean;
}

export interface Check {
  readonly name: "host" | "port" | "binary" | "path" | "deny_rules" | "rules";
  readonly passed: boolean;
  /** What was compared with what. */
  readonly detail: string;
}

/** Endpoints listed in one explanation; the nearest ones. */
const MAX_CONSIDERED = 50;

export function explain(
  policy: Policy,
  query: ConnectionQuery,
  request?: RequestQuery,
  options: CompileOptions = {},
): Explanation {
  const compiled = compilePolicy(policy, options);
  const connection = compiled.connect(query);
  const decision =
    connection.allowed && request !== undefined ? compiled.request(connection.grant, request) : undefined;
  const considered = compileEndpoints(policy, options.resolvedBinaries)
    .map((endpoint) => consider(endpoint, query, request))
    .sort((a, b) => passed(b) - passed(a))
    .slice(0, MAX_CONSIDERED);
  return { connection, request: decision, considered, suggestion: suggest(connection, decision, query, request) };
}

const passed = (considered: ConsideredEndpoint): number => considered.checks.filter((check) => check.passed).length;

function consider(
  endpoint: CompiledEndpoint,
  query: ConnectionQuery,
  request: RequestQuery | undefined,
): ConsideredEndpoint {
  const { source, rule } = endpoint;
  const host = canonicalHost(query.host);
  const exe = escapeUntrusted(query.process.exe);
  const checks: Check[] = [
    {
      name: "host",
      passed: coversHost(endpoint, host),
      detail:
        source.host === ""
          ? "any host whose address is in allowed_ips"
          : `${source.host} against ${escapeUntrusted(host)}`,
    },
    {
      name: "port",
      passed: source.ports.includes(query.port),
      detail: `${source.ports.join(", ")} against ${query.port}`,
    },
    {
      name: "binary",
      passed: ruleAllowsBinary(rule, query.process.exe, query.process.ancestors),
      detail:
        rule.source.binaries.length === 0
          ? "the rule lists no binaries, which matches none"
          : `${rule.source.binaries.join(", ")} against ${exe}${query.process.ancestors.map((path) => ` ← ${escapeUntrusted(path)}`).join("")}`,
    },
  ];
  const applies = checks.every((check) => check.passed);
  if (request !== undefined && endpoint.inspected) checks.push(...considerRequest(endpoint, request));
  return { policy: rule.key, endpoint: endpoint.index, host: source.host, ports: source.ports, checks, applies };
}

function coversHost(endpoint: CompiledEndpoint, host: string): boolean {
  if (endpoint.host === "") return endpoint.source.allowedIps.length > 0;
  if (!endpoint.wildcard) return endpoint.host === host;
  const trie = new HostTrie();
  trie.add(endpoint.host, 0);
  return trie.find(host).length > 0;
}

function considerRequest(endpoint: CompiledEndpoint, request: RequestQuery): Check[] {
  const { source } = endpoint;
  const what = `${escapeUntrusted(request.method, 32)} ${escapeUntrusted(request.path)}`;
  const denying = source.denyRules.filter((rule) => matches(rule, request, "any"));
  const allowing = effectiveAllowRules(source).filter((rule) => matches(rule, request, "all"));
  return [
    {
      name: "path",
      passed: endpoint.selector.matches(request.path),
      detail: `${source.path === "" ? "every path" : source.path} against ${escapeUntrusted(request.path)}`,
    },
    {
      name: "deny_rules",
      passed: denying.length === 0,
      detail: denying.length === 0 ? `none of ${source.denyRules.length} matches` : `matched by ${show(denying[0])}`,
    },
    {
      name: "rules",
      passed: source.protocol === "" || allowing.length > 0,
      detail:
        allowing.length > 0
          ? `allowed by ${source.access === "" ? show(allowing[0]) : `access: ${source.access}`}`
          : source.protocol === ""
            ? "no protocol: every request below the path"
            : `${source.access === "" ? `none of ${source.rules.length} rules` : `access: ${source.access} does not`} match${source.access === "" ? "es" : ""} ${what}`,
    },
  ];
}

function matches(rule: RequestRule, request: RequestQuery, mode: "all" | "any"): boolean {
  const index = new RequestIndex(mode);
  index.add(rule, 0);
  return index.find(request.method.toUpperCase(), request.path.split("/"), request.query) === 0;
}

function show(rule: RequestRule | undefined): string {
  return rule === undefined ? "" : `${rule.method} ${rule.path}${rule.query.size === 0 ? "" : " with query matchers"}`;
}

function suggest(
  connection: ConnectionDecision,
  decision: RequestDecision | undefined,
  query: ConnectionQuery,
  request: RequestQuery | undefined,
): string {
  const endpoint = {
    host: canonicalHost(query.host),
    port: query.port,
    ...(request === undefined
      ? {}
      : {
          protocol: "rest",
          enforcement: "enforce",
          rules: [{ allow: { method: request.method, path: request.path } }],
        }),
  };
  const addable = ["no_policy", "endpoint_not_allowed", "binary_not_allowed"];
  if (!connection.allowed) {
    if (!addable.includes(connection.code)) return "";
    const name = connection.policy || endpoint.host.replaceAll(/[.-]/g, "_").replaceAll(/[^A-Za-z0-9_]/g, "");
    if (connection.code === "binary_not_allowed") {
      return stringify({ network_policies: { [name]: { binaries: [{ path: query.process.exe }] } } });
    }
    const rule = { endpoints: [endpoint], binaries: [{ path: query.process.exe }] };
    return stringify({ network_policies: { [`allow_${name}_${query.port}`]: rule } });
  }
  if (decision === undefined || decision.allowed || request === undefined || decision.code !== "not_permitted")
    return "";
  return stringify({ rules: [{ allow: { method: request.method.toUpperCase(), path: request.path } }] });
}
