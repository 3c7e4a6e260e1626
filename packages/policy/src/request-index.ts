/**
 * Allow or deny rules of an endpoint as a trie of path segments: a request walks it once, with the set of positions it
 * can be at, so the cost follows the length of its path and not the number of rules.
 */
import { type Glob, globOrNothing, matchTokens, parseGlob, type Segment, type Token } from "./globs.ts";
import type { Matcher, RequestRule } from "./model.ts";

/** `all`: every value of a listed key must match (allow rules). `any`: one value is enough (deny rules). */
export type QueryMode = "all" | "any";

interface CompiledQuery {
  readonly key: string;
  readonly globs: readonly Glob[];
}

interface Leaf {
  readonly id: number;
  readonly query: readonly CompiledQuery[];
}

interface Node {
  readonly literal: Map<string, Node>;
  readonly patterns: Map<string, { readonly tokens: readonly Token[]; readonly node: Node }>;
  many: Node | undefined;
  /** Reached through `**`: stays current for every further segment. */
  readonly loops: boolean;
  /** By upper-case method; `*` is any. */
  readonly leaves: Map<string, Leaf[]>;
}

const newNode = (loops: boolean): Node => ({
  literal: new Map(),
  patterns: new Map(),
  many: undefined,
  loops,
  leaves: new Map(),
});

export class RequestIndex {
  readonly #root = newNode(false);
  readonly #mode: QueryMode;
  #size = 0;

  constructor(mode: QueryMode) {
    this.#mode = mode;
  }

  get size(): number {
    return this.#size;
  }

  /** A rule without method or path never matches; so does one with a malformed path. */
  add(rule: Pick<RequestRule, "method" | "path" | "query">, id: number): void {
    if (rule.method === "" || rule.path === "") return;
    const parsed = parseGlob(rule.path, "/");
    if (!parsed.ok) return;
    const leaf: Leaf = { id, query: compileQuery(rule.query) };
    const method = rule.method.toUpperCase();
    for (const segments of parsed.alternatives) {
      const node = this.#descend(segments);
      const leaves = node.leaves.get(method);
      if (leaves === undefined) node.leaves.set(method, [leaf]);
      else leaves.push(leaf);
    }
    this.#size += 1;
  }

  /** Smallest id of a rule that matches, or -1. `method` is upper case, `segments` is the path split at `/`. */
  find(method: string, segments: readonly string[], query: readonly (readonly [string, string])[]): number {
    if (this.#size === 0) return -1;
    let nodes: Node[] = [this.#root];
    for (const segment of segments) {
      nodes = advance(nodes, segment);
      if (nodes.length === 0) return -1;
    }
    let best = -1;
    for (const node of nodes) {
      best = this.#best(node.leaves.get(method), query, best);
      // A rule for GET covers HEAD: the response is the same without its body (RFC 9110 §9.3.2).
      if (method === "HEAD") best = this.#best(node.leaves.get("GET"), query, best);
      if (method !== "*") best = this.#best(node.leaves.get("*"), query, best);
    }
    return best;
  }

  #descend(segments: readonly Segment[]): Node {
    let node = this.#root;
    for (const segment of segments) {
      if (segment.kind === "many") {
        node.many ??= newNode(true);
        node = node.many;
      } else if (segment.kind === "literal") {
        let child = node.literal.get(segment.text);
        if (child === undefined) {
          child = newNode(false);
          node.literal.set(segment.text, child);
        }
        node = child;
      } else {
        let child = node.patterns.get(segment.source);
        if (child === undefined) {
          child = { tokens: segment.tokens, node: newNode(false) };
          node.patterns.set(segment.source, child);
        }
        node = child.node;
      }
    }
    return node;
  }

  #best(leaves: readonly Leaf[] | undefined, query: readonly (readonly [string, string])[], best: number): number {
    if (leaves === undefined) return best;
    let result = best;
    for (const leaf of leaves) {
      if ((result === -1 || leaf.id < result) && matchesQuery(leaf.query, query, this.#mode)) result = leaf.id;
    }
    return result;
  }
}

function advance(nodes: readonly Node[], segment: string): Node[] {
  const next: Node[] = [];
  const add = (node: Node): void => {
    // Only nodes behind `**` can be reached in two ways; without the check nested ones would multiply.
    if (!node.loops || !next.includes(node)) next.push(node);
  };
  for (const node of nodes) {
    const child = node.literal.get(segment);
    if (child !== undefined) add(child);
    for (const pattern of node.patterns.values()) if (matchTokens(pattern.tokens, segment)) add(pattern.node);
    if (node.many !== undefined) add(node.many);
    if (node.loops) add(node);
  }
  return next;
}

export function compileQuery(query: ReadonlyMap<string, Matcher>): CompiledQuery[] {
  return [...query].map(([key, matcher]) => ({ key, globs: matcher.globs.map((glob) => globOrNothing(glob, ".")) }));
}

/** Every listed key must be present; keys that are not listed are free. */
export function matchesQuery(
  matchers: readonly CompiledQuery[],
  query: readonly (readonly [string, string])[],
  mode: QueryMode,
): boolean {
  return matchers.every((matcher) => {
    const matches = (value: string): boolean => matcher.globs.some((glob) => glob.matches(value));
    let present = false;
    for (const [key, value] of query) {
      if (key !== matcher.key) continue;
      if (mode === "any" && matches(value)) return true;
      if (mode === "all" && !matches(value)) return false;
      present = true;
    }
    return mode === "all" && present;
  });
}
