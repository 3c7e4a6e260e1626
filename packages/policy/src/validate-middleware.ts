/** Middleware entries: counts, order, selectors. */

import { utf8Length } from "./document.ts";
import type { Report } from "./fields.ts";
import { hostPatternsOverlap } from "./glob-overlap.ts";
import { canonicalHost } from "./ip.ts";
import { PolicyLimit } from "./limits.ts";
import type { Middleware, Policy } from "./model.ts";
import { indexPath, keyPath } from "./violation.ts";

/** Names of middlewares that run inside the supervisor begin so; other names are of registered services. */
const BUILT_IN_PREFIX = "openshell/";
const REGEX = "openshell/regex";

export function validateMiddlewares(policy: Policy, report: Report, warnings: Report): void {
  const { networkMiddlewares } = policy;
  if (networkMiddlewares.size > PolicyLimit.middlewares) {
    report.add(
      "network_middlewares",
      "too_many_middleware_configs",
      `${networkMiddlewares.size} middlewares, more than ${PolicyLimit.middlewares}`,
      "Remove some",
    );
  }
  const orders = new Map<number, string>();
  for (const [key, entry] of networkMiddlewares) {
    const path = keyPath("network_middlewares", key);
    const other = orders.get(entry.order);
    if (other !== undefined) {
      report.add(
        keyPath(path, "order"),
        "duplicate_middleware_order",
        `middlewares '${other}' and '${key}' have the same order ${entry.order}`,
        "Give each its own order",
      );
    }
    orders.set(entry.order, key);
    validateEntry(key, entry, path, report);
    warnings.add(
      path,
      "unsupported_middleware",
      entry.onError === "fail_open"
        ? `network middleware '${key}' cannot run in this release and is skipped`
        : `network middleware '${key}' cannot run in this release: the hosts it selects are denied`,
      "Remove it",
    );
    if (entry.onError !== "fail_open") validateTlsSkip(policy, key, entry, path, report);
  }
}

function validateEntry(key: string, entry: Middleware, path: string, report: Report): void {
  const invalid = (at: string, message: string, next: string): void => {
    report.add(at, "invalid_middleware_config", `network middleware '${key}': ${message}`, next);
  };
  if (entry.middleware.trim() === "") {
    invalid(
      keyPath(path, "middleware"),
      "names no middleware",
      "Add middleware: openshell/regex, or a registered name",
    );
  } else if (entry.middleware.startsWith(BUILT_IN_PREFIX)) {
    const problem = entry.middleware === REGEX ? regexProblem(entry.config ?? {}) : `no built-in '${entry.middleware}'`;
    if (problem !== undefined)
      invalid(path, problem, `The built-in middleware is ${REGEX}, and its config is {mode: redact}`);
  }
  if (entry.config !== undefined && utf8Length(JSON.stringify(entry.config)) > PolicyLimit.middlewareConfigBytes) {
    invalid(keyPath(path, "config"), `config is larger than ${PolicyLimit.middlewareConfigBytes} bytes`, "Shorten it");
  }
  if (entry.include.length === 0) {
    invalid(keyPath(path, "endpoints"), "endpoints.include names no host", "Add endpoints: {include: [host]}");
  }
  if (entry.include.length + entry.exclude.length > PolicyLimit.middlewarePatterns) {
    report.add(
      keyPath(path, "endpoints"),
      "too_many_middleware_selector_patterns",
      `network middleware '${key}': more than ${PolicyLimit.middlewarePatterns} patterns`,
      "Use wider patterns",
    );
  }
  for (const [list, patterns] of [
    ["include", entry.include],
    ["exclude", entry.exclude],
  ] as const) {
    for (const [index, pattern] of patterns.entries()) {
      const problem = selectorProblem(pattern);
      const at = indexPath(keyPath(keyPath(path, "endpoints"), list), index);
      if (problem !== undefined)
        invalid(at, `pattern '${pattern}' ${problem}`, "Use host patterns such as *.example.com");
    }
  }
}

/** What cannot be a setting of the built-in that replaces patterns. */
function regexProblem(config: NonNullable<Middleware["config"]>): string | undefined {
  const unknown = Object.keys(config).find((key) => key !== "mode");
  if (unknown !== undefined) return `${REGEX} has no setting '${unknown}'`;
  return (config["mode"] ?? "redact") === "redact" ? undefined : `${REGEX} knows no other mode than redact`;
}

function selectorProblem(pattern: string): string | undefined {
  if (pattern === "") return "is empty";
  if (/\s/.test(pattern)) return "contains white space";
  if (/[{}]/.test(pattern)) return "contains braces";
  if (/:\d+$/.test(pattern) && pattern.indexOf(":") === pattern.lastIndexOf(":")) return "carries a port";
  if (pattern.split(".").some((label) => label === "")) return "has an empty label";
  return undefined;
}

/** A middleware that must see the traffic cannot be promised on connections that nobody opens. */
function validateTlsSkip(policy: Policy, key: string, entry: Middleware, path: string, report: Report): void {
  for (const [rule, { endpoints }] of policy.networkPolicies) {
    for (const endpoint of endpoints) {
      if (endpoint.tls !== "skip" || endpoint.host === "") continue;
      const host = canonicalHost(endpoint.host);
      const covered = entry.include.some((pattern) => hostPatternsOverlap(pattern.toLowerCase(), host));
      // Only an exclusion that is certain counts: an exact host, excluded by name or pattern.
      const spared = !host.includes("*") && entry.exclude.some((p) => hostPatternsOverlap(p.toLowerCase(), host));
      if (!covered || spared) continue;
      report.add(
        path,
        "middleware_tls_skip_conflict",
        `network middleware '${key}' fails closed but selects '${endpoint.host}' of '${rule}', which has tls: skip`,
        "Exclude the host, set on_error: fail_open, or remove tls: skip",
      );
      return;
    }
  }
}
