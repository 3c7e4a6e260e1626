/**
 * Changes of a part of a policy: a list of operations, applied in order to a copy, all or none. What comes together in a rule must have
 * been declared together: no program gets an endpoint, no endpoint a program, and no port a change that the operation does not name.
 */
import { ALWAYS_BLOCKED, canonicalHost, cidrContains, cidrsOverlap, parseCidr, parseIp } from "./ip.ts";
import {
  endpointKey,
  MergeConflict,
  mergeEndpoints,
  normalised,
  placeOf,
  sameHost,
  union,
  uniqueRules,
  withoutPreset,
} from "./merge-endpoint.ts";
import { type Endpoint, type NetworkRule, type Policy, type RequestRule, sortedMap } from "./model.ts";
import { PROVIDER_RULE_PREFIX } from "./validate.ts";

/** Names exactly one endpoint, as it is stored. */
export interface RuleTarget {
  readonly rule: string;
  readonly host: string;
  /** All of its ports. */
  readonly ports: readonly number[];
  /** Absent: the endpoint must be the only one of its host. Empty: the one without a path. */
  readonly path: string | undefined;
  /** All executables of its rule; `any`: the rule lets any program. */
  readonly binaries: readonly string[] | "any";
}

export type MergeOperation =
  | { readonly kind: "add_rule"; readonly rule: string; readonly content: NetworkRule }
  | { readonly kind: "remove_endpoint"; readonly rule: string; readonly host: string; readonly port: number }
  | { readonly kind: "remove_rule"; readonly rule: string }
  | {
      readonly kind: "add_deny_rules" | "add_allow_rules";
      readonly target: RuleTarget;
      readonly rules: readonly RequestRule[];
    }
  | { readonly kind: "remove_binary"; readonly rule: string; readonly path: string };

export interface MergeProblem {
  /** Index of the operation that failed, from 0. */
  readonly operation: number;
  /** `invalid`: the operation is wrong by itself. `conflict`: this policy does not take it. */
  readonly kind: "invalid" | "conflict";
  readonly message: string;
  readonly next: string;
}

export type MergeResult =
  | { readonly ok: true; readonly policy: Policy; readonly warnings: readonly string[] }
  | { readonly ok: false; readonly problem: MergeProblem };

/** The policy after the operations. Whether the result is a valid policy is the caller's to check. */
export function mergePolicy(policy: Policy, operations: readonly MergeOperation[]): MergeResult {
  const rules = new Map(policy.networkPolicies);
  const warnings: string[] = [];
  for (const [operation, item] of operations.entries()) {
    try {
      const before = mcpConflicts(rules);
      apply(rules, item, (text) => warnings.push(text));
      const conflict = [...mcpConflicts(rules)].find((place) => !before.has(place));
      if (conflict !== undefined)
        throw new MergeConflict(
          "conflict",
          `${conflict} would be inspected as MCP and as something else`,
          "Give one host and port one protocol",
        );
    } catch (error) {
      if (!(error instanceof MergeConflict)) throw error;
      const { kind, message, next } = error;
      return { ok: false, problem: { operation, kind, message, next } };
    }
  }
  return { ok: true, policy: { ...policy, networkPolicies: sortedMap(rules) }, warnings };
}

type Rules = Map<string, NetworkRule>;
type Warn = (text: string) => void;

function apply(rules: Rules, operation: MergeOperation, warn: Warn): void {
  switch (operation.kind) {
    case "add_rule":
      addRule(rules, operation.rule, operation.content, warn);
      break;
    case "remove_endpoint":
      removeEndpoint(rules, operation);
      break;
    case "remove_rule":
      ruleNamed(rules, operation.rule);
      rules.delete(operation.rule);
      break;
    case "add_allow_rules":
    case "add_deny_rules":
      addRequestRules(rules, operation);
      break;
    case "remove_binary":
      removeBinary(rules, operation);
      break;
  }
}

function invalid(message: string, next: string): MergeConflict {
  return new MergeConflict("invalid", message, next);
}

function checkName(name: string): void {
  if (name === "") throw invalid("the rule has no name", "Name the rule");
  if (name.startsWith(PROVIDER_RULE_PREFIX))
    throw invalid(
      `rule '${name}': names starting with '${PROVIDER_RULE_PREFIX}' are reserved for providers`,
      "Use another name",
    );
}

function ruleNamed(rules: Rules, name: string): NetworkRule {
  checkName(name);
  const rule = rules.get(name);
  if (rule === undefined) {
    const known = [...rules.keys()].slice(0, 10).join(", ");
    throw new MergeConflict(
      "conflict",
      `there is no rule '${name}'`,
      known === "" ? "The policy has no rules" : `Name one of: ${known}`,
    );
  }
  return rule;
}

/** A rule without endpoints lets nobody go anywhere, and one without programs likewise: both end with what they lose. */
function put(rules: Rules, name: string, rule: NetworkRule): void {
  if (rule.endpoints.length === 0 || rule.binaries.length === 0) rules.delete(name);
  else rules.set(name, rule);
}

const ANY = ["**", "/**"];

export function anyBinary(binaries: readonly string[]): boolean {
  return binaries.some((path) => ANY.includes(path));
}

function addRule(rules: Rules, name: string, content: NetworkRule, warn: Warn): void {
  checkName(name);
  if (content.endpoints.length === 0)
    throw invalid(`rule '${name}' has no endpoint`, "Add an endpoint with host and port");
  const incoming: NetworkRule = {
    ...content,
    endpoints: content.endpoints.map(normalised),
    binaries: union(content.binaries, []),
  };
  for (const endpoint of incoming.endpoints) checkDestination(endpoint);
  const named = rules.get(name);
  if (named !== undefined) {
    rules.set(name, mergeRules(name, named, incoming, warn));
    return;
  }
  const [found] = [...rules.keys()]
    .filter((key) => !key.startsWith(PROVIDER_RULE_PREFIX))
    .toSorted()
    .filter((key) => rules.get(key)!.endpoints.some((a) => incoming.endpoints.some((b) => overlaps(a, b))));
  if (found !== undefined) {
    const notes: string[] = [];
    try {
      rules.set(
        found,
        mergeRules(found, rules.get(found)!, incoming, (text) => notes.push(text)),
      );
      warn(`rule '${name}' became part of rule '${found}', which has the same endpoint`);
      for (const note of notes) warn(note);
      return;
    } catch (error) {
      if (!(error instanceof MergeConflict)) throw error;
      warn(`rule '${name}' stands beside rule '${found}' with the same endpoint: ${error.message}`);
    }
  }
  rules.set(name, incoming);
}

function overlaps(a: Endpoint, b: Endpoint): boolean {
  return sameHost(a.host, b.host) && a.path === b.path && a.ports.some((port) => b.ports.includes(port));
}

function mergeRules(name: string, existing: NetworkRule, incoming: NetworkRule, warn: Warn): NetworkRule {
  const endpoints = [...existing.endpoints];
  let changed = false;
  for (const endpoint of incoming.endpoints) {
    const index = endpoints.findIndex((item) => overlaps(item, endpoint));
    const before = endpoints[index];
    if (before === undefined) {
      endpoints.push(endpoint);
      changed = true;
      continue;
    }
    const merged = mergeEndpoints(before, endpoint, warn);
    if (endpointKey(merged) === endpointKey(before)) continue;
    const onlyPorts = endpointKey({ ...merged, ports: before.ports }) === endpointKey(before);
    const silent = onlyPorts ? [] : before.ports.filter((port) => !endpoint.ports.includes(port));
    if (silent.length > 0) {
      throw new MergeConflict(
        "conflict",
        `rule '${name}': the change of ${placeOf(endpoint)} would also reach port ${silent.join(", ")}`,
        `Name all ports: ${placeOf({ ...before, ports: merged.ports })}`,
      );
    }
    const grown = merged.ports.filter((port) => !before.ports.includes(port));
    if (grown.length > 0 && endpointKey({ ...merged, ports: [] }) !== endpointKey({ ...endpoint, ports: [] }))
      warn(`${placeOf(before)}: port ${grown.join(", ")} takes up what the endpoint has already`);
    endpoints[index] = merged;
    changed = true;
  }
  const binaries = mergeBinaries(name, existing, incoming, changed, warn);
  return { ...existing, endpoints, binaries };
}

function mergeBinaries(
  name: string,
  existing: NetworkRule,
  incoming: NetworkRule,
  endpointsChanged: boolean,
  warn: Warn,
): readonly string[] {
  const before = existing.binaries;
  const everybody = anyBinary(incoming.binaries);
  if (endpointsChanged) {
    const silent = anyBinary(before)
      ? everybody
        ? []
        : ["any program"]
      : everybody
        ? []
        : missing(before, incoming.binaries);
    if (silent.length > 0) {
      throw new MergeConflict(
        "conflict",
        `rule '${name}': the new endpoint would also be open to ${silent.join(", ")}`,
        "Declare all executables of the rule, or use a rule of its own",
      );
    }
  }
  if (anyBinary(before)) {
    if (!everybody && incoming.binaries.length > 0) warn(`rule '${name}' lets any program; executables are not added`);
    return before;
  }
  const added = everybody ? ["any program"] : missing(incoming.binaries, before);
  if (added.length === 0) return before;
  for (const endpoint of existing.endpoints) {
    const declared = incoming.endpoints.filter(
      (item) => sameHost(item.host, endpoint.host) && item.path === endpoint.path,
    );
    const silent = endpoint.ports.filter((port) => !declared.some((item) => item.ports.includes(port)));
    if (silent.length === 0) continue;
    throw new MergeConflict(
      "conflict",
      `rule '${name}': ${added.join(", ")} would also reach ${placeOf({ ...endpoint, ports: silent })}`,
      "Declare all endpoints of the rule, or use a rule of its own",
    );
  }
  return everybody ? incoming.binaries : union(before, incoming.binaries);
}

function missing<T>(wanted: readonly T[], given: readonly T[]): readonly T[] {
  return wanted.filter((item) => !given.includes(item));
}

function removeEndpoint(rules: Rules, { rule: name, host, port }: MergeOperation & { kind: "remove_endpoint" }): void {
  if (host === "" || port === 0) throw invalid("the endpoint has no host or no port", "Name host and port");
  if (name !== "") ruleNamed(rules, name);
  const names = name !== "" ? [name] : [...rules.keys()].filter((key) => !key.startsWith(PROVIDER_RULE_PREFIX));
  let found = false;
  for (const key of names) {
    const rule = rules.get(key)!;
    const hit = (endpoint: Endpoint): boolean => sameHost(endpoint.host, host) && endpoint.ports.includes(port);
    if (!rule.endpoints.some(hit)) continue;
    found = true;
    const endpoints = rule.endpoints
      .map((item) => (hit(item) ? { ...item, ports: item.ports.filter((other) => other !== port) } : item))
      .filter((item) => item.ports.length > 0);
    put(rules, key, { ...rule, endpoints });
  }
  if (!found) {
    const where = name === "" ? "no rule" : `rule '${name}' does not have it, so nothing`;
    throw new MergeConflict(
      "conflict",
      `${where} reaches ${host}:${port}`,
      "Read the policy, and name host and port as in it",
    );
  }
}

function removeBinary(rules: Rules, { rule: name, path }: MergeOperation & { kind: "remove_binary" }): void {
  const rule = ruleNamed(rules, name);
  if (!rule.binaries.includes(path)) {
    const why = anyBinary(rule.binaries) ? "lets any program" : "does not have it";
    throw new MergeConflict(
      "conflict",
      `rule '${name}' ${why}: '${path}' cannot be removed`,
      "Name a path as in the rule",
    );
  }
  put(rules, name, { ...rule, binaries: rule.binaries.filter((item) => item !== path) });
}

function addRequestRules(
  rules: Rules,
  operation: MergeOperation & { kind: "add_allow_rules" | "add_deny_rules" },
): void {
  const { target } = operation;
  const deny = operation.kind === "add_deny_rules";
  if (operation.rules.length === 0) throw invalid("there is no request rule to add", "Give at least one");
  if (target.host === "" || target.ports.length === 0) throw invalid("the target has no host or no port", "Name both");
  const rule = ruleNamed(rules, target.rule);
  const index = targetIndex(rule, target);
  const endpoint = rule.endpoints[index]!;
  const place = placeOf(endpoint);
  if (!deny) checkDestination(endpoint);
  if (endpoint.protocol !== "rest" && endpoint.protocol !== "websocket") {
    throw new MergeConflict(
      "conflict",
      `${place}: request rules need protocol rest or websocket, and it has ${endpoint.protocol || "none"}`,
      "Set a complete policy",
    );
  }
  if (deny && endpoint.access === "" && endpoint.rules.length === 0)
    throw new MergeConflict("conflict", `${place} allows nothing that could be denied`, "Allow something first");
  const open = deny ? endpoint : withoutPreset(endpoint);
  const changed: Endpoint = deny
    ? { ...open, denyRules: uniqueRules(open.denyRules, operation.rules) }
    : { ...open, rules: uniqueRules(open.rules, operation.rules) };
  rules.set(target.rule, { ...rule, endpoints: rule.endpoints.with(index, changed) });
}

function targetIndex(rule: NetworkRule, target: RuleTarget): number {
  const place = placeOf({ host: target.host, ports: target.ports, path: target.path ?? "" });
  const fits = (endpoint: Endpoint): boolean =>
    sameHost(endpoint.host, target.host) && (target.path === undefined || endpoint.path === target.path);
  const found = rule.endpoints.flatMap((endpoint, index) => (fits(endpoint) ? [index] : []));
  const sharing = found.filter((index) => rule.endpoints[index]!.ports.some((port) => target.ports.includes(port)));
  const [index, ...more] = sharing;
  if (index === undefined)
    throw new MergeConflict(
      "conflict",
      `rule '${target.rule}' has no endpoint ${place}`,
      "Name host, ports and path as in the rule",
    );
  if (more.length > 0)
    throw new MergeConflict(
      "conflict",
      `rule '${target.rule}' has several endpoints ${place}`,
      'Name the path of one, "" for none',
    );
  const { ports } = rule.endpoints[index]!;
  if (!sameSet(ports, target.ports))
    throw new MergeConflict("conflict", `the endpoint has the ports ${ports.join(",")}`, "Name all of its ports");
  const everybody = anyBinary(rule.binaries);
  if (target.binaries === "any" ? !everybody : !sameSet(rule.binaries, target.binaries)) {
    throw new MergeConflict(
      "conflict",
      `rule '${target.rule}' is for ${everybody ? "any program" : rule.binaries.join(", ")}`,
      "Name all of its executables: whoever uses the rule gets the change",
    );
  }
  return index;
}

function sameSet<T>(a: readonly T[], b: readonly T[]): boolean {
  return missing(a, b).length === 0 && missing(b, a).length === 0;
}

/** Nothing is opened towards what is refused whatever a policy says. */
function checkDestination({ host, allowedIps }: Endpoint): void {
  const name = canonicalHost(host);
  const address = parseIp(name);
  const blocked =
    ["localhost", "metadata.google.internal"].includes(name) ||
    (address !== undefined && ALWAYS_BLOCKED.some((block) => cidrContains(block, address)));
  if (blocked) throw invalid(`'${host}' is blocked whatever the policy says`, "Leave the endpoint out");
  for (const entry of allowedIps) {
    const block = parseCidr(entry.trim());
    if (block !== undefined && ALWAYS_BLOCKED.some((other) => cidrsOverlap(other, block)))
      throw invalid(
        `allowed_ips '${entry}' overlaps loopback, link-local or unspecified addresses`,
        "Name other blocks",
      );
  }
}

/** Host and port that one endpoint inspects as MCP and another as something else. */
function mcpConflicts(rules: Rules): ReadonlySet<string> {
  const kinds = new Map<string, Set<boolean>>();
  for (const rule of rules.values()) {
    for (const { host, ports, protocol } of rule.endpoints) {
      if (protocol === "" || protocol === "tcp") continue;
      for (const port of ports) {
        const place = `${canonicalHost(host)}:${port}`;
        kinds.set(place, (kinds.get(place) ?? new Set()).add(protocol === "mcp"));
      }
    }
  }
  return new Set([...kinds].filter(([, kind]) => kind.size > 1).map(([place]) => place));
}
