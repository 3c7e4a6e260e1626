import type { PolicyProblem } from "@openshell/base/catalogue/policies.ts";

/** What is wrong with a policy, in a form for people, editors and the wire. */

export interface Violation {
  /** Stable; its meaning is in the catalogue. */
  readonly code: PolicyProblem;
  /** What is wrong. */
  readonly message: string;
  /** What to do about it, imperative. */
  readonly next: string;
  /** Where in the policy: `network_policies.github.endpoints[0].host`; empty for the whole document. */
  readonly path: string;
  /** 1-based position in the text, when the policy came from one. */
  readonly line?: number;
  readonly column?: number;
}

/** Something that was accepted but deserves a look. */
export type Warning = Violation;

/** `parent.key`, quoting keys that are not plain words. */
export function keyPath(parent: string, key: string): string {
  if (!/^[A-Za-z0-9_-]+$/.test(key)) return `${parent}[${JSON.stringify(key)}]`;
  return parent === "" ? key : `${parent}.${key}`;
}

export function indexPath(parent: string, index: number): string {
  return `${parent}[${index}]`;
}

/** One line a violation: `policy.yaml:12:7: message. Next.` */
export function formatViolation(violation: Violation, source = ""): string {
  const place = [source, violation.line, violation.column]
    .filter((part) => part !== "" && part !== undefined)
    .join(":");
  const where = place === "" ? violation.path : place;
  const text = violation.next === "" ? violation.message : `${violation.message}. ${violation.next}`;
  return where === "" ? text : `${where}: ${text}`;
}

/** The valid name closest to a misspelt one, if any is close. */
export function nearest(name: string, options: readonly string[]): string | undefined {
  let best: string | undefined;
  let bestDistance = Math.min(4, Math.floor(name.length / 3) + 1);
  for (const option of options) {
    const distance = editDistance(name.toLowerCase(), option.toLowerCase(), bestDistance);
    if (distance < bestDistance) {
      best = option;
      bestDistance = distance;
    }
  }
  return best;
}

function editDistance(a: string, b: string, limit: number): number {
  if (Math.abs(a.length - b.length) >= limit || a.length > 64) return limit;
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const swap = (row[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(swap, (row[j] as number) + 1, (next[j - 1] as number) + 1));
    }
    row = next;
  }
  return row[b.length] as number;
}
