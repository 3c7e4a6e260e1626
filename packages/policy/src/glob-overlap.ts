/** Whether two patterns can match the same text: the intersection of two small automata, by dynamic programming. */
import { parseGlob, type Segment, type Token } from "./globs.ts";

/** Both patterns without separator, as in the `path` of endpoints. Malformed ones overlap everything: the careful answer. */
export function pathPatternsOverlap(a: string, b: string): boolean {
  if (a === b || a === "" || b === "") return true;
  const left = pathAlternatives(a);
  const right = pathAlternatives(b);
  if (left === undefined || right === undefined) return true;
  return left.some((one) => right.some((other) => tokensOverlap(one, other)));
}

/** `/v1/**` covers `/v1` as well. */
function pathAlternatives(pattern: string): Token[][] | undefined {
  const sources = pattern.endsWith("/**") ? [pattern, pattern.slice(0, -3)] : [pattern];
  const alternatives: Token[][] = [];
  for (const source of sources) {
    const parsed = parseGlob(source, "");
    if (!parsed.ok) return undefined;
    for (const segments of parsed.alternatives) alternatives.push(segments.flatMap(tokensOf));
  }
  return alternatives;
}

/** Host patterns or exact hosts, lower case. An empty host (any) overlaps everything. */
export function hostPatternsOverlap(a: string, b: string): boolean {
  if (a === b || a === "" || b === "") return true;
  if (!a.includes("*") && !b.includes("*")) return false;
  const left = parseGlob(a, ".");
  const right = parseGlob(b, ".");
  if (!left.ok || !right.ok) return true;
  return left.alternatives.some((one) => right.alternatives.some((other) => segmentsOverlap(one, other)));
}

function tokensOf(segment: Segment): readonly Token[] {
  if (segment.kind === "many") return [{ kind: "star" }];
  if (segment.kind === "pattern") return segment.tokens;
  return Array.from(segment.text, (value) => ({ kind: "character", value }) as const);
}

/** Product of two segment patterns; `**` is one or more segments. */
function segmentsOverlap(a: readonly Segment[], b: readonly Segment[]): boolean {
  const seen = new Set<number>();
  const width = b.length + 1;
  // State: segments consumed on both sides; a `**` that has consumed one may consume more.
  const visit = (i: number, j: number, inA: boolean, inB: boolean): boolean => {
    if (i === a.length && j === b.length) return true;
    const key = ((i * width + j) * 2 + Number(inA)) * 2 + Number(inB);
    if (seen.has(key)) return false;
    seen.add(key);
    // Options for the next segment: which pattern element covers it on each side.
    const left: { at: number; element: Segment; many: boolean }[] = [];
    const right: { at: number; element: Segment; many: boolean }[] = [];
    for (const [pattern, at, inside, options] of [
      [a, i, inA, left],
      [b, j, inB, right],
    ] as const) {
      const current = pattern[at];
      const previous = pattern[at - 1];
      if (current !== undefined) options.push({ at: at + 1, element: current, many: current.kind === "many" });
      if (inside && previous !== undefined) options.push({ at, element: previous, many: true });
    }
    return left.some((one) =>
      right.some((other) => {
        if (!one.many && !other.many && !tokensOverlap(tokensOf(one.element), tokensOf(other.element))) return false;
        return visit(one.at, other.at, one.many, other.many);
      }),
    );
  };
  return visit(0, 0, false, false);
}

/** Product of two token patterns inside one segment (or without separator). */
export function tokensOverlap(a: readonly Token[], b: readonly Token[]): boolean {
  let row = new Uint8Array(b.length + 1);
  row[0] = 1;
  for (let i = 0; i <= a.length; i += 1) {
    const next = new Uint8Array(b.length + 1);
    const left = a[i];
    for (let j = 0; j <= b.length; j += 1) {
      if (row[j] === 0) continue;
      const right = b[j];
      // A star may stand for nothing, or stay while the other side consumes a character.
      if (left?.kind === "star") next[j] = 1;
      if (right?.kind === "star") row[j + 1] = 1;
      if (left !== undefined && right !== undefined && (left.kind === "star" || right.kind === "star")) {
        if (left.kind === "star" && right.kind !== "star") row[j + 1] = 1;
        if (right.kind === "star" && left.kind !== "star") next[j] = 1;
      } else if (left !== undefined && right !== undefined && charactersOverlap(left, right)) next[j + 1] = 1;
    }
    if (i === a.length) return row[b.length] === 1;
    row = next;
  }
  return false;
}

function charactersOverlap(a: Token, b: Token): boolean {
  if (a.kind === "one" || b.kind === "one" || a.kind === "star" || b.kind === "star") return true;
  if (a.kind === "character" && b.kind === "character") return a.value === b.value;
  if (a.kind === "character") return inClass(b, a.value.codePointAt(0) as number);
  if (b.kind === "character") return inClass(a, b.value.codePointAt(0) as number);
  if (a.negated && b.negated) return true;
  // Some member of a positive class lies in the other one. Ranges change there only at their ends.
  const [positive, other] = a.negated ? [b, a] : [a, b];
  const ends = other.ranges.flatMap(([from, to]) => [from - 1, from, to, to + 1]);
  return positive.ranges.some(([from, to]) =>
    [from, to, ...ends].some((code) => code >= from && code <= to && inClass(other, code)),
  );
}

function inClass(token: Token, code: number): boolean {
  if (token.kind !== "class") return true;
  return token.ranges.some(([from, to]) => code >= from && code <= to) !== token.negated;
}
