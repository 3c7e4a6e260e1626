import { escapeUntrusted, RuntimeError } from "@openshell/base";

/** Of a message; what is beyond it names more of the same. Characters. */
const MAX_MESSAGE = 4_000;
/** Of a name or value in a message. Characters. */
const MAX_QUOTED = 100;

/**
 * A configuration that cannot be used: where, what, and what would be right. One line, whatever the file holds.
 */
export function configError(where: string, problem: string, next: string, cause?: unknown): RuntimeError {
  const line = escapeUntrusted(`${where}: ${problem}`, MAX_MESSAGE);
  return new RuntimeError("invalid_configuration", line, { next: escapeUntrusted(next, MAX_MESSAGE), cause });
}

/** A name or value of somebody's own, as a message shows it. */
export function quoted(text: string): string {
  return escapeUntrusted(text, MAX_QUOTED);
}

/** The name in `known` that differs least from `given`, if any is near: one that a person could have meant. */
export function nearest(given: string, known: readonly string[]): string | undefined {
  if (given.length > MAX_QUOTED) return undefined;
  const scored = known.map((name) => ({ name, distance: editDistance(given, name) }));
  const best = scored.toSorted((a, b) => a.distance - b.distance)[0];
  const tolerance = Math.max(2, Math.floor(given.length / 3));
  return best !== undefined && best.distance <= tolerance ? best.name : undefined;
}

/** Levenshtein distance, two rows at a time. */
function editDistance(a: string, b: string): number {
  let previous = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const substitution = previous[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      row.push(Math.min(substitution, previous[j]! + 1, row[j - 1]! + 1));
    }
    previous = row;
  }
  return previous[b.length]!;
}
