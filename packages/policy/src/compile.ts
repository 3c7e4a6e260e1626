/**
 * A policy as decisions. One compiled policy is one immutable generation; it holds no clock and does no I/O.
 *
 * Cost: hosts are found in a map (exact names) or a trie of labels (patterns), executables in sets, requests in a trie of
 * path segments; a connection decision is remembered for its host, port and process. bench/policy.ts measures it.
 */
import { BoundedCache } from "./bounded-cache.ts";
import { type CompiledEndpoint, compileEndpoints, ruleAllowsBinary } from "./compiled-endpoint.ts";
import type {
  ConnectionAllowed,
  ConnectionDecision,
  ConnectionQuery,
  DenialCode,
  Denied,
  RequestDecision,
  RequestQuery,
} from "./decision.ts";
import { escapeText } from "./escape-text.ts";
import { hostPatternsOverlap } from "./glob-overlap.ts";
import { hasWildcard } from "./globs.ts";
import { Grant } from "./grant.ts";
import { HostTrie, isSaneHost } from "./host-pattern.ts";
import { canonicalHost } from "./ip.ts";
import type { Middleware, Policy } from "./model.ts";

export interface CompileOptions {
  /** Real paths of binaries that the policy names through symbolic links, by the path in the policy. */
  readonly resolvedBinaries?: ReadonlyMap<string, string>;
}

export interface CompiledPolicy {
  readonly policy: Policy;
  /** May this process open a connection there? */
  connect(query: ConnectionQuery): ConnectionDecision;
  /** May this request pass? `grant` comes from an allowed `connect()` of this same generation. */
  request(grant: unknown, query: RequestQuery): RequestDecision;
  /** Some endpoint covers this host name, on whatever port and for whatever process. Endpoints without host cover none. */
  mentions(host: string): boolean;
  /** Hosts that are named literally (canonical), sorted. */
  names(): readonly string[];
  /** Ports of all endpoints, ascending. */
  ports(): readonly number[];
}

/** Remembered connection decisions and grants; a sandbox that asks for ever new hosts pays for the lookup, not for memory. */
const CACHED_DECISIONS = 2048;
const CACHED_GRANTS = 256;
const CACHED_KEY_LENGTH = 1024;
/** Rules named in the reason of one denial. */
const NAMED_RULES = 4;
const NAMED_ANCESTORS = 16;

/** Binaries that the policy names without wildcards: those that may be symbolic links, for `resolvedBinaries`. Sorted. */
export function exactBinaries(policy: Policy): string[] {
  const paths = [...policy.networkPolicies.values()].flatMap((rule) => rule.binaries);
  return [...new Set(paths.filter((path) => !hasWildcard(path)))].sort();
}

export function compilePolicy(policy: Policy, options: CompileOptions = {}): CompiledPolicy {
  return new Compiled(policy, options);
}

/**
 * Whether a connection judged by an older generation may live on under a newer one: both allow it, in the same way.
 * Names and request rules do not count; requests are asked about again. When the destination rules differ
 * (`sameDestinationRules`), the address in use has to be checked against the new ones.
 */
export function sameGrant(before: ConnectionDecision, now: ConnectionDecision): boolean {
  return (
    before.allowed &&
    now.allowed &&
    before.tls === now.tls &&
    before.inspected === now.inspected &&
    before.allowUninspectedCredentials === now.allowUninspectedCredentials
  );
}

/** The two decisions put the same bounds on the address that is dialled. */
export function sameDestinationRules(before: ConnectionAllowed, now: ConnectionAllowed): boolean {
  if (before.exactHost !== now.exactHost) return false;
  const a = [...(before.allowedIps ?? [])].sort();
  const b = [...(now.allowedIps ?? [])].sort();
  return a.length === b.length && a.every((entry, at) => entry === b[at]);
}

type PortIndex = Map<number, CompiledEndpoint[]>;

class Compiled implements CompiledPolicy {
  readonly policy: Policy;
  readonly #endpoints: readonly CompiledEndpoint[];
  readonly #exact = new Map<string, PortIndex>();
  readonly #patterns = new HostTrie();
  readonly #hostless: PortIndex = new Map();
  /** Middlewares that must see the traffic of some hosts, and those that may be left out. */
  readonly #required: readonly Middleware[];
  readonly #optional: readonly Middleware[];
  readonly #decisions = new BoundedCache<ConnectionDecision>(CACHED_DECISIONS);
  readonly #grants = new BoundedCache<Grant>(CACHED_GRANTS);

  constructor(policy: Policy, options: CompileOptions) {
    this.policy = policy;
    this.#endpoints = compileEndpoints(policy, options.resolvedBinaries);
    const middlewares = [...policy.networkMiddlewares.values()];
    this.#required = middlewares.filter((entry) => entry.onError !== "fail_open");
    this.#optional = middlewares.filter((entry) => entry.onError === "fail_open");
    for (const endpoint of this.#endpoints) {
      if (endpoint.wildcard) this.#patterns.add(endpoint.host, endpoint.id);
      else if (endpoint.host !== "") {
        let ports = this.#exact.get(endpoint.host);
        if (ports === undefined) {
          ports = new Map();
          this.#exact.set(endpoint.host, ports);
        }
        addPorts(ports, endpoint);
      } else if (endpoint.source.allowedIps.length > 0) addPorts(this.#hostless, endpoint);
    }
  }

  connect(query: ConnectionQuery): ConnectionDecision {
    const { exe, ancestors } = query.process;
    const key = `${query.port} ${query.host}\0${exe}\0${ancestors.join("\0")}`;
    const known = this.#decisions.get(key);
    if (known !== undefined) return known;
    const decision = this.#connect(query);
    // Paths are the agent's choice; what is remembered of them stays small.
    if (key.length <= CACHED_KEY_LENGTH) this.#decisions.set(key, decision);
    return decision;
  }

  request(grant: unknown, query: RequestQuery): RequestDecision {
    if (!(grant instanceof Grant) || grant.owner !== this) {
      return {
        ...denied("stale_policy", "the policy changed since the connection was allowed", "Connect again"),
        audited: false,
        endpoint: -1,
      };
    }
    return grant.decide(query);
  }

  mentions(host: string): boolean {
    const name = canonicalHost(host);
    return this.#exact.has(name) || (isSaneHost(name) && this.#patterns.find(name).length > 0);
  }

  names(): readonly string[] {
    return [...this.#exact.keys()].sort();
  }

  ports(): readonly number[] {
    return [...new Set(this.#endpoints.flatMap((endpoint) => endpoint.source.ports))].sort((a, b) => a - b);
  }

  #connect(query: ConnectionQuery): ConnectionDecision {
    const host = canonicalHost(query.host);
    if (!isSaneHost(host) || !Number.isInteger(query.port) || query.port < 1 || query.port > 65_535) {
      return denied(
        "invalid_query",
        `'${hostPort(host, query.port)}' is no valid destination`,
        "Use a host name or address and a port",
      );
    }
    if (!query.process.exe.startsWith("/")) {
      return denied(
        "invalid_query",
        "missing input.exec",
        "The executable behind the connection is unknown; try again",
      );
    }
    if (this.#endpoints.length === 0) {
      return denied("no_policy", "network connections not allowed by policy", `Add ${ruleFor(host, query)}`);
    }
    const candidates = this.#candidates(host, query.port);
    if (candidates.length === 0) {
      return denied(
        "endpoint_not_allowed",
        `endpoint ${hostPort(host, query.port)} is not allowed by any policy`,
        `Add ${ruleFor(host, query)}`,
      );
    }
    const matching = matchingBinaries(candidates, query);
    if (matching.length === 0) return binaryDenied(candidates, query);
    const raw = matching.find((endpoint) => endpoint.source.protocol === "tcp");
    if (raw !== undefined) {
      return denied(
        "unsupported_protocol",
        "protocol 'tcp' is not supported by this release",
        "Leave the protocol out to pass the bytes on through the proxy",
        raw.rule.key,
      );
    }
    const required = this.#required.find((entry) => selects(entry, host));
    if (required !== undefined) {
      return denied(
        "unsupported_middleware",
        `middleware '${required.middleware}' must see the traffic of ${hostPort(host, query.port)}, and this release cannot run it`,
        "Exclude the host from the middleware, or set its on_error to fail_open",
        (matching[0] as CompiledEndpoint).rule.key,
      );
    }
    return this.#allow(host, matching);
  }

  #allow(host: string, matching: readonly CompiledEndpoint[]): ConnectionAllowed {
    const first = matching[0] as CompiledEndpoint;
    const restricted = matching.find((endpoint) => endpoint.source.allowedIps.length > 0);
    const key = matching.length === 1 ? String(first.id) : matching.map((endpoint) => endpoint.id).join(",");
    let grant = this.#grants.get(key);
    if (grant === undefined) {
      grant = new Grant(this, matching);
      this.#grants.set(key, grant);
    }
    return Object.freeze({
      allowed: true,
      policy: first.rule.key,
      tls: matching.every((endpoint) => endpoint.source.tls === "skip") ? "skip" : "auto",
      allowedIps: restricted?.source.allowedIps,
      exactHost: matching.some((endpoint) => endpoint.host === host && !endpoint.source.advisorProposed),
      inspected: grant.inspected,
      allowUninspectedCredentials: matching.every((endpoint) => endpoint.source.allowUninspectedCredentials),
      skippedMiddlewares: this.#optional.filter((entry) => selects(entry, host)).map(({ middleware }) => middleware),
      grant,
    });
  }

  /** Every endpoint for host and port, smallest id first. */
  #candidates(host: string, port: number): readonly CompiledEndpoint[] {
    const exact = this.#exact.get(host)?.get(port);
    const hostless = this.#hostless.get(port);
    const patterns = this.#patterns.find(host);
    if (patterns.length === 0 && hostless === undefined) return exact ?? [];
    const found = [...(exact ?? []), ...(hostless ?? [])];
    for (const id of patterns) {
      const endpoint = this.#endpoints[id] as CompiledEndpoint;
      if (endpoint.source.ports.includes(port)) found.push(endpoint);
    }
    return found.sort((a, b) => a.id - b.id);
  }
}

/** Excludes win. At most ten entries of 32 patterns exist, and the decision is remembered. */
function selects(entry: Middleware, host: string): boolean {
  const covers = (pattern: string): boolean => hostPatternsOverlap(pattern.toLowerCase(), host);
  return entry.include.some(covers) && !entry.exclude.some(covers);
}

function addPorts(index: PortIndex, endpoint: CompiledEndpoint): void {
  for (const port of new Set(endpoint.source.ports)) {
    const endpoints = index.get(port);
    if (endpoints === undefined) index.set(port, [endpoint]);
    else endpoints.push(endpoint);
  }
}

function matchingBinaries(candidates: readonly CompiledEndpoint[], query: ConnectionQuery): CompiledEndpoint[] {
  const { exe, ancestors } = query.process;
  const matching: CompiledEndpoint[] = [];
  // Endpoints of one rule follow each other, so one remembered answer is enough.
  let rule: CompiledEndpoint["rule"] | undefined;
  let allows = false;
  for (const endpoint of candidates) {
    if (endpoint.rule !== rule) {
      rule = endpoint.rule;
      allows = ruleAllowsBinary(rule, exe, ancestors);
    }
    if (allows) matching.push(endpoint);
  }
  return matching;
}

function binaryDenied(candidates: readonly CompiledEndpoint[], query: ConnectionQuery): Denied {
  const keys = [...new Set(candidates.map((endpoint) => endpoint.rule.key))];
  const exe = escapeText(query.process.exe);
  const chain = escapeText(query.process.ancestors.slice(0, NAMED_ANCESTORS).join(" -> "));
  const sentences = keys
    .slice(0, NAMED_RULES)
    .map((key) => `binary '${exe}' not allowed in policy '${key}' (ancestors: [${chain}])`);
  if (keys.length > NAMED_RULES) sentences.push(`and ${keys.length - NAMED_RULES} more`);
  return denied(
    "binary_not_allowed",
    sentences.join("; "),
    `Add {path: "${exe}"} to binaries of '${keys[0]}'; a listed symbolic link does not cover the file behind it unless that can be resolved`,
    keys[0],
  );
}

function hostPort(host: string, port: number): string {
  const shown = escapeText(host, 255);
  return host.includes(":") ? `[${shown}]:${port}` : `${shown}:${port}`;
}

/** A rule that would cover the question, on one line. */
function ruleFor(host: string, query: ConnectionQuery): string {
  const endpoint = `{host: "${escapeText(host, 255)}", port: ${query.port}}`;
  return `network_policies.<name>: {endpoints: [${endpoint}], binaries: [{path: "${escapeText(query.process.exe)}"}]}`;
}

function denied(code: DenialCode, reason: string, next: string, policy = ""): Denied {
  return Object.freeze({ allowed: false, code, reason, next, policy });
}
