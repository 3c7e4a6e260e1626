/** Endpoints and rules prepared for matching: what compiling, explaining and comparing share. */
import { type Glob, globOrNothing, hasWildcard } from "./globs.ts";
import { isHostPattern } from "./host-pattern.ts";
import { canonicalHost } from "./ip.ts";
import type { Endpoint, NetworkRule, Policy, Protocol } from "./model.ts";
import { compilePathSelector, type PathSelector } from "./path-selector.ts";

/** Protocols whose rules this release evaluates. An endpoint with another one denies: unknown means denied. */
const EVALUATED: ReadonlySet<Protocol | ""> = new Set<Protocol | "">(["", "rest"]);

export interface CompiledRule {
  readonly key: string;
  readonly source: NetworkRule;
  readonly exact: ReadonlySet<string>;
  readonly globs: readonly Glob[];
}

export interface CompiledEndpoint {
  /** Dense; grows with rule key and index, so the smallest id belongs to the smallest rule key. */
  readonly id: number;
  readonly rule: CompiledRule;
  readonly index: number;
  readonly source: Endpoint;
  /** Lower case, addresses normalised; empty for an endpoint without host. */
  readonly host: string;
  readonly wildcard: boolean;
  readonly selector: PathSelector;
  /** What of it this release cannot do, as a clause; undefined when it can do everything. Such an endpoint denies. */
  readonly unsupported: string | undefined;
  /** Requests to it are judged (it has a request protocol, or a path). */
  readonly inspected: boolean;
}

function unsupportedPart(endpoint: Endpoint): string | undefined {
  if (!EVALUATED.has(endpoint.protocol)) return `protocol '${endpoint.protocol}'`;
  return endpoint.credentialSigning === "" ? undefined : `credential_signing '${endpoint.credentialSigning}'`;
}

export function compileRule(
  key: string,
  source: NetworkRule,
  resolvedBinaries: ReadonlyMap<string, string> | undefined,
): CompiledRule {
  const exact = new Set<string>();
  const globs: Glob[] = [];
  for (const path of source.binaries) {
    if (hasWildcard(path)) {
      globs.push(globOrNothing(path, "/"));
      continue;
    }
    exact.add(path);
    const real = resolvedBinaries?.get(path);
    if (real !== undefined) exact.add(real);
  }
  return { key, source, exact, globs };
}

/** Executable or any ancestor, by path or glob. Command lines never count: a process can write what it likes there. */
export function ruleAllowsBinary(rule: CompiledRule, exe: string, ancestors: readonly string[]): boolean {
  if (rule.exact.has(exe) || ancestors.some((path) => rule.exact.has(path))) return true;
  return rule.globs.some((glob) => glob.matches(exe) || ancestors.some((path) => glob.matches(path)));
}

export function compileEndpoints(
  policy: Policy,
  resolvedBinaries: ReadonlyMap<string, string> | undefined,
): CompiledEndpoint[] {
  const compiled: CompiledEndpoint[] = [];
  // Policy maps iterate in key order; sorting again keeps the promise of `id` for hand-made ones.
  const keys = [...policy.networkPolicies.keys()].sort();
  for (const key of keys) {
    const source = policy.networkPolicies.get(key) as NetworkRule;
    const rule = compileRule(key, source, resolvedBinaries);
    for (const [index, endpoint] of source.endpoints.entries()) {
      const selector = compilePathSelector(endpoint.path);
      compiled.push({
        id: compiled.length,
        rule,
        index,
        source: endpoint,
        host: canonicalHost(endpoint.host),
        wildcard: isHostPattern(endpoint.host),
        selector,
        unsupported: unsupportedPart(endpoint),
        inspected:
          (endpoint.protocol !== "" && endpoint.protocol !== "tcp") ||
          selector.source !== "" ||
          endpoint.credentialSigning !== "",
      });
    }
  }
  return compiled;
}
