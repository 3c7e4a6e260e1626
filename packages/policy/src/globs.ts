/**
 * Globs of policies. One grammar, three separators: `.` for host names, query values and tool names, `/` for binaries
 * and rule paths, none for the path selector of an endpoint.
 *
 * `*` stays inside one segment and may be empty; `**` is special only as a whole segment, where it stands for one or
 * more segments (`/repos/**` matches `/repos/x` and `/repos/`, not `/repos`); `?` is one character; `[a-z]` and `[!a-z]`
 * are classes; `{a,b}` are alternatives; `\` takes the next character literally. No construct matches the separator
 * except `**`.
 *
 * Matching is done without regular expressions: their backtracking is exponential in patterns such as `*a*a*a*b`, and
 * the text comes from the agent. Here the cost is at most pattern length × text length.
 */
import { PolicyLimit } from "./limits.ts";

export type Separator = "." | "/" | "";

/** One element of a pattern inside a segment. */
export type Token =
  | { readonly kind: "character"; readonly value: string }
  | { readonly kind: "one" }
  | { readonly kind: "star" }
  | { readonly kind: "class"; readonly negated: boolean; readonly ranges: readonly (readonly [number, number])[] };

export type Segment =
  | { readonly kind: "literal"; readonly text: string }
  | { readonly kind: "pattern"; readonly source: string; readonly tokens: readonly Token[] }
  /** `**`: one or more whole segments. */
  | { readonly kind: "many" };

export type ParsedGlob =
  | { readonly ok: true; readonly alternatives: readonly (readonly Segment[])[] }
  | { readonly ok: false; readonly error: string };

export interface Glob {
  readonly source: string;
  /** The only text that matches, when the pattern has no wildcard. */
  readonly literal: string | undefined;
  matches(text: string): boolean;
}

/** True when `source` has any character with a meaning of its own. */
export function hasWildcard(source: string): boolean {
  return /[*?[{\\]/.test(source);
}

/** Splits a glob into segments for each of its `{a,b}` alternatives. */
export function parseGlob(source: string, separator: Separator): ParsedGlob {
  if (source.length > PolicyLimit.patternBytes) return { ok: false, error: "pattern is too long" };
  const plain = expandBraces(source);
  if (typeof plain === "string") return { ok: false, error: plain };
  const alternatives: Segment[][] = [];
  for (const alternative of plain) {
    const segments = parseSegments(alternative, separator);
    if (typeof segments === "string") return { ok: false, error: segments };
    alternatives.push(segments);
  }
  return { ok: true, alternatives };
}

/** The matcher for one glob, or the reason why the pattern is malformed. */
export function compileGlob(source: string, separator: Separator): Glob | { readonly error: string } {
  const parsed = parseGlob(source, separator);
  if (!parsed.ok) return { error: parsed.error };
  const [first] = parsed.alternatives;
  if (parsed.alternatives.length === 1 && first !== undefined && first.every((segment) => segment.kind === "literal")) {
    const literal = first.map((segment) => (segment.kind === "literal" ? segment.text : "")).join(separator);
    return { source, literal, matches: (text) => text === literal };
  }
  const { alternatives } = parsed;
  return {
    source,
    literal: undefined,
    matches(text) {
      const parts = separator === "" ? [text] : text.split(separator);
      return alternatives.some((segments) => matchSegments(segments, parts));
    },
  };
}

/** A malformed glob matches nothing; validation has reported it before. */
export function globOrNothing(source: string, separator: Separator): Glob {
  const glob = compileGlob(source, separator);
  return "error" in glob ? { source, literal: undefined, matches: () => false } : glob;
}

/** Greedy matching of segments: only the last `**` is ever reconsidered, so the cost is quadratic at worst. */
export function matchSegments(pattern: readonly Segment[], parts: readonly string[]): boolean {
  let patternAt = 0;
  let partAt = 0;
  let resumePattern = -1;
  let resumePart = -1;
  while (partAt < parts.length) {
    const segment = pattern[patternAt];
    if (segment?.kind === "many") {
      resumePattern = patternAt + 1;
      resumePart = partAt + 1;
      patternAt = resumePattern;
      partAt = resumePart;
    } else if (segment !== undefined && matchSegment(segment, parts[partAt] as string)) {
      patternAt += 1;
      partAt += 1;
    } else if (resumePattern >= 0 && resumePart < parts.length) {
      resumePart += 1;
      patternAt = resumePattern;
      partAt = resumePart;
    } else {
      return false;
    }
  }
  return patternAt === pattern.length;
}

export function matchSegment(segment: Segment, part: string): boolean {
  if (segment.kind === "literal") return segment.text === part;
  return segment.kind === "many" || matchTokens(segment.tokens, part);
}

/** The classical two-pointer wildcard match; only the last `*` is reconsidered. */
export function matchTokens(tokens: readonly Token[], text: string): boolean {
  // Characters beyond the basic plane count as one for `?` and classes.
  const characters: ArrayLike<string> = /[\ud800-\udfff]/.test(text) ? Array.from(text) : text;
  const { length } = characters;
  let tokenAt = 0;
  let at = 0;
  let resumeToken = -1;
  let resumeAt = 0;
  while (at < length) {
    const token = tokens[tokenAt];
    if (token !== undefined && token.kind === "star") {
      tokenAt += 1;
      resumeToken = tokenAt;
      resumeAt = at;
    } else if (token !== undefined && matchesOne(token, characters[at] as string)) {
      tokenAt += 1;
      at += 1;
    } else if (resumeToken >= 0) {
      resumeAt += 1;
      at = resumeAt;
      tokenAt = resumeToken;
    } else {
      return false;
    }
  }
  while (tokens[tokenAt]?.kind === "star") tokenAt += 1;
  return tokenAt === tokens.length;
}

function matchesOne(token: Token, character: string): boolean {
  if (token.kind === "character") return token.value === character;
  if (token.kind !== "class") return true;
  const code = character.codePointAt(0) as number;
  return token.ranges.some(([from, to]) => code >= from && code <= to) !== token.negated;
}

function parseSegments(source: string, separator: Separator): Segment[] | string {
  const segments: Segment[] = [];
  let tokens: Token[] = [];
  let text = "";
  const finish = (): void => {
    if (separator !== "" && text === "**") segments.push({ kind: "many" });
    else if (tokens.every((token) => token.kind === "character")) {
      segments.push({ kind: "literal", text: tokens.map((token) => (token as { value: string }).value).join("") });
    } else segments.push({ kind: "pattern", source: text, tokens });
    tokens = [];
    text = "";
  };
  const characters = Array.from(source);
  for (let at = 0; at < characters.length; at += 1) {
    const character = characters[at] as string;
    if (character === separator) {
      finish();
      continue;
    }
    text += character;
    if (character === "*") {
      if (tokens.at(-1)?.kind !== "star") tokens.push({ kind: "star" });
    } else if (character === "?") {
      tokens.push({ kind: "one" });
    } else if (character === "[") {
      const parsed = parseClass(characters, at);
      if (typeof parsed === "string") return parsed;
      tokens.push(parsed.token);
      text += characters.slice(at + 1, parsed.end + 1).join("");
      at = parsed.end;
    } else if (character === "\\") {
      at += 1;
      const next = characters[at];
      if (next === undefined) return "pattern ends with a backslash";
      if (next === separator) {
        // An escaped separator is the separator: only `**` crosses it, and that is never implied by a literal.
        text = text.slice(0, -1);
        finish();
        continue;
      }
      text += next;
      tokens.push({ kind: "character", value: next });
    } else {
      tokens.push({ kind: "character", value: character });
    }
  }
  finish();
  return segments;
}

function parseClass(characters: readonly string[], start: number): { token: Token; end: number } | string {
  let at = start + 1;
  const negated = characters[at] === "!" || characters[at] === "^";
  if (negated) at += 1;
  const ranges: [number, number][] = [];
  for (let first = true; ; first = false) {
    const character = characters[at];
    if (character === undefined) return "unclosed [";
    if (character === "]" && !first) return { token: { kind: "class", negated, ranges }, end: at };
    const from = character.codePointAt(0) as number;
    const upper = characters[at + 2];
    if (characters[at + 1] === "-" && upper !== undefined && upper !== "]") {
      const to = upper.codePointAt(0) as number;
      if (to < from) return "class range is reversed";
      ranges.push([from, to]);
      at += 3;
    } else {
      ranges.push([from, from]);
      at += 1;
    }
  }
}

/** All plain globs that a glob with (possibly nested) braces stands for, or an error. */
function expandBraces(source: string): string[] | string {
  if (!source.includes("{") && !source.includes("}")) return [source];
  let prefixes = [""];
  for (let at = 0; at < source.length; at += 1) {
    const character = source[at] as string;
    let tails = [character];
    if (character === "\\") {
      tails = [source.slice(at, at + 2)];
      at += 1;
    } else if (character === "[") {
      const end = classEnd(source, at);
      if (end < 0) return "unclosed [";
      tails = [source.slice(at, end + 1)];
      at = end;
    } else if (character === "}") {
      return "unbalanced }";
    } else if (character === "{") {
      const group = splitBraces(source, at);
      if (group === undefined) return "unclosed {";
      tails = [];
      for (const option of group.options) {
        const expanded = expandBraces(option);
        if (typeof expanded === "string") return expanded;
        tails.push(...expanded);
        if (tails.length > PolicyLimit.braceAlternatives) return "too many {} alternatives";
      }
      at = group.end;
    }
    if (prefixes.length * tails.length > PolicyLimit.braceAlternatives) return "too many {} alternatives";
    prefixes = prefixes.flatMap((prefix) => tails.map((tail) => prefix + tail));
  }
  return prefixes;
}

function splitBraces(source: string, start: number): { options: string[]; end: number } | undefined {
  const options: string[] = [];
  let depth = 0;
  let from = start + 1;
  for (let at = start; at < source.length; at += 1) {
    const character = source[at];
    if (character === "\\") at += 1;
    else if (character === "[") {
      const end = classEnd(source, at);
      if (end < 0) return undefined;
      at = end;
    } else if (character === "{") depth += 1;
    else if (character === "," && depth === 1) {
      options.push(source.slice(from, at));
      from = at + 1;
    } else if (character === "}") {
      depth -= 1;
      if (depth === 0) return { options: [...options, source.slice(from, at)], end: at };
    }
  }
  return undefined;
}

function classEnd(source: string, start: number): number {
  let at = start + 1;
  if (source[at] === "!" || source[at] === "^") at += 1;
  return source.indexOf("]", at + 1);
}
