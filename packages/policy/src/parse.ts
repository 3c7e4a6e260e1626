/** A policy file: text in, a policy or everything that is wrong with it out. */
import { decodePolicy } from "./decode.ts";
import { type Position, readDocument } from "./document.ts";
import { Report } from "./fields.ts";
import { PolicyLimit } from "./limits.ts";
import type { Policy } from "./model.ts";
import { type ValidateOptions, validatePolicy } from "./validate.ts";
import type { Violation, Warning } from "./violation.ts";

export type ParseResult =
  | { readonly ok: true; readonly policy: Policy; readonly warnings: readonly Warning[] }
  | { readonly ok: false; readonly violations: readonly Violation[]; readonly warnings: readonly Warning[] };

/**
 * Reads YAML or JSON. Strict: unknown and duplicate keys, wrong types and meaningless combinations are violations, each
 * with its position. All of them are reported at once, up to `PolicyLimit.violations`.
 */
export function parsePolicy(text: string, options: ValidateOptions = {}): ParseResult {
  const document = readDocument(text);
  if (document.tree === undefined && document.violations.length > 0) {
    return { ok: false, violations: document.violations, warnings: [] };
  }
  const report = new Report();
  const policy = decodePolicy(document.tree, report);
  const shape = [...document.violations, ...report.violations];
  const meaning = validatePolicy(policy, options);
  const locate = (violation: Violation): Violation => ({ ...at(violation, document.positions), ...violation });
  const warnings = meaning.warnings.map(locate);
  // Where a value could not be read, complaints about its absence or its consequences would be noise.
  const consequences = meaning.violations.filter((violation) => !shape.some((known) => overlaps(known, violation)));
  const violations = [...shape, ...consequences].slice(0, PolicyLimit.violations).map(locate);
  if (violations.length > 0) return { ok: false, violations: violations.sort(byPosition), warnings };
  return { ok: true, policy, warnings };
}

function at(violation: Violation, positions: ReadonlyMap<string, Position>): Position | undefined {
  let path = violation.path;
  for (;;) {
    const found = positions.get(path);
    if (found !== undefined || path === "") return found;
    path = path.replace(/(?:^|\.)[^.[\]]+$|\[(?:\d+|"(?:[^"\\]|\\.)*")\]$/, "");
    if (path === violation.path) return undefined;
  }
}

function overlaps(known: Violation, violation: Violation): boolean {
  if (known.path === violation.path) return true;
  if (violation.code === "invalid_l7_endpoint") {
    // Whether keys of an endpoint go together can be said once all of them can be read.
    const endpoint = /^.*?\.endpoints\[\d+\]/.exec(violation.path)?.[0];
    if (endpoint !== undefined && known.path.startsWith(`${endpoint}.`)) return true;
  }
  return violation.path !== "" && known.path.startsWith(`${violation.path}.`);
}

function byPosition(a: Violation, b: Violation): number {
  return (a.line ?? 0) - (b.line ?? 0) || (a.column ?? 0) - (b.column ?? 0);
}
