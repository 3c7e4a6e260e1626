import { RuntimeError } from "@openshell/base";

/** A configuration that cannot be used: where, what, and what would be right. */
export function configError(where: string, problem: string, next: string, cause?: unknown): RuntimeError {
  return new RuntimeError("invalid_configuration", `${where}: ${problem}`, { next, cause });
}

/** The name in `known` that differs least from `given`, if any is near: one that a person could have meant. */
export function nearest(given: string, known: readonly string[]): string | undefined {
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
