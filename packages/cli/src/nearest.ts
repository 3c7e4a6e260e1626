/** The name closest to a misspelt one, if any is close (optimal string alignment distance at most a third of its length, and 3). */
export function nearestName(name: string, names: readonly string[]): string | undefined {
  let best: string | undefined;
  let least = Math.min(3, Math.ceil(name.length / 3)) + 1;
  for (const candidate of names) {
    const distance = editDistance(name, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

function editDistance(a: string, b: string): number {
  if (a.length > 64 || b.length > 64) return 64;
  let before: number[] = [];
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const change = row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      // Two letters in the wrong order are one mistake.
      const crossed = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      const swap = crossed ? before[j - 2]! + 1 : change;
      next.push(Math.min(change, swap, row[j]! + 1, next[j - 1]! + 1));
    }
    before = row;
    row = next;
  }
  return row[b.length]!;
}
