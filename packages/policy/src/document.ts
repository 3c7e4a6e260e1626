/**
 * YAML or JSON text as a plain tree that remembers positions. Stricter than YAML: duplicate keys, merge keys, custom
 * tags, several documents and key types other than text are refused, and so is a document that grows through aliases.
 */
import { isAlias, isMap, isScalar, isSeq, LineCounter, type Node, parseDocument } from "yaml";
import { PolicyLimit } from "./limits.ts";
import { indexPath, keyPath, type Violation } from "./violation.ts";

export interface Position {
  readonly line: number;
  readonly column: number;
}

export type Tree =
  | { readonly kind: "map"; readonly entries: ReadonlyMap<string, Tree> }
  | { readonly kind: "list"; readonly items: readonly Tree[] }
  | { readonly kind: "scalar"; readonly value: string | number | bigint | boolean | null };

export interface ParsedDocument {
  /** Undefined when the text is no well-formed document at all. */
  readonly tree: Tree | undefined;
  readonly positions: ReadonlyMap<string, Position>;
  readonly violations: readonly Violation[];
}

export function readDocument(text: string): ParsedDocument {
  const positions = new Map<string, Position>();
  const violations: Violation[] = [];
  const bytes = utf8Length(text);
  if (bytes > PolicyLimit.documentBytes) {
    violations.push({
      code: "document_too_large",
      message: `policy is ${bytes} bytes, more than ${PolicyLimit.documentBytes}`,
      next: "Split hosts over patterns, or drop rules that nothing uses",
      path: "",
    });
    return { tree: undefined, positions, violations };
  }
  const lines = new LineCounter();
  let document: ReturnType<typeof parseDocument>;
  try {
    // Duplicate keys are found below: the library compares every pair, which takes hours for a large map.
    document = parseDocument(text, {
      lineCounter: lines,
      prettyErrors: false,
      uniqueKeys: false,
      merge: false,
      schema: "core",
      version: "1.2",
      logLevel: "error",
    });
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    violations.push(tooDeep("", undefined));
    return { tree: undefined, positions, violations };
  }
  for (const problem of [...document.errors, ...document.warnings]) {
    if (violations.length >= PolicyLimit.violations) break;
    const at = position(lines, problem.pos[0]);
    if (problem.code === "RESOURCE_EXHAUSTION") {
      // The library's stack ended; what it says after that is noise.
      return { tree: undefined, positions, violations: [tooDeep("", at)] };
    }
    const several = problem.code === "MULTIPLE_DOCS";
    violations.push({
      code: "yaml_syntax",
      message: `failed to parse sandbox policy YAML: ${several ? "there is more than one document" : problem.message}`,
      next: several
        ? "Keep one; of what policy get prints, that is what follows the line ---"
        : "Correct the YAML at this position",
      path: "",
      ...at,
    });
  }
  if (violations.length > 0) return { tree: undefined, positions, violations };
  const builder = new TreeBuilder(lines, positions, violations);
  const tree = document.contents === null ? undefined : builder.build(document.contents, "", 0);
  return { tree, positions, violations };
}

function position(lines: LineCounter, offset: number): { line: number; column: number } {
  const { line, col } = lines.linePos(offset);
  return { line, column: col };
}

function tooDeep(path: string, at: Position | undefined): Violation {
  return {
    code: "nested_too_deep",
    message: `policy is nested deeper than ${PolicyLimit.depth} levels`,
    next: "Flatten it",
    path,
    ...at,
  };
}

class TreeBuilder {
  readonly #lines: LineCounter;
  readonly #positions: Map<string, Position>;
  readonly #violations: Violation[];
  /** Anchors met so far: an alias means the last one before it (YAML 1.2 §7.1). */
  readonly #anchors = new Map<string, unknown>();
  /** > 0 while below an alias. */
  #aliases = 0;
  #aliased = 0;

  constructor(lines: LineCounter, positions: Map<string, Position>, violations: Violation[]) {
    this.#lines = lines;
    this.#positions = positions;
    this.#violations = violations;
  }

  build(node: unknown, path: string, depth: number): Tree | undefined {
    const start = (node as Node | null)?.range?.[0];
    const at = start === undefined ? undefined : position(this.#lines, start);
    if (at !== undefined && !this.#positions.has(path)) this.#positions.set(path, at);
    if (depth > PolicyLimit.depth) {
      this.#report(tooDeep(path, at));
      return undefined;
    }
    if (this.#aliases > 0) {
      this.#aliased += 1;
      if (this.#aliased > PolicyLimit.aliasedNodes) {
        if (this.#aliased === PolicyLimit.aliasedNodes + 1) {
          this.#report({
            code: "too_many_aliases",
            message: `aliases stand for more than ${PolicyLimit.aliasedNodes} values`,
            next: "Write the values out",
            path,
            ...at,
          });
        }
        return undefined;
      }
    }
    if (isAlias(node)) return this.#alias(node.source, path, depth, at);
    const anchor = (node as { anchor?: unknown } | null)?.anchor;
    if (typeof anchor === "string" && this.#aliases === 0) this.#anchors.set(anchor, node);
    if (isScalar(node)) {
      const { value } = node;
      if (value === null || ["string", "number", "bigint", "boolean"].includes(typeof value)) {
        return { kind: "scalar", value: value as string | number | bigint | boolean | null };
      }
    }
    if (isSeq(node)) {
      const items: Tree[] = [];
      for (const [index, item] of node.items.entries()) {
        const built = this.build(item, indexPath(path, index), depth + 1);
        if (built !== undefined) items.push(built);
      }
      return { kind: "list", items };
    }
    if (isMap(node)) return this.#map(node.items, path, depth);
    if (node === null || node === undefined) return { kind: "scalar", value: null };
    this.#report({
      code: "wrong_type",
      message: "a value of this type has no place in a policy",
      next: "Use text, numbers, booleans, lists and maps",
      path,
      ...at,
    });
    return undefined;
  }

  #map(items: readonly { key: unknown; value: unknown }[], path: string, depth: number): Tree {
    const entries = new Map<string, Tree>();
    const seen = new Set<string>();
    for (const { key, value } of items) {
      const start = (key as Node | null)?.range?.[0];
      const at = start === undefined ? undefined : position(this.#lines, start);
      const name = isScalar(key) ? keyText(key) : undefined;
      if (name === undefined) {
        this.#report({
          code: "wrong_type",
          message: "a key must be text",
          next: "Write the key as plain text",
          path,
          ...at,
        });
        continue;
      }
      const child = keyPath(path, name);
      if (seen.has(name)) {
        this.#report({
          code: "duplicate_key",
          message: `duplicate key '${name}'`,
          next: "Keep one of the two",
          path: child,
          ...at,
        });
        continue;
      }
      seen.add(name);
      // The key's position: that is where a reader looks, also when the value is on a later line.
      if (at !== undefined && !this.#positions.has(child)) this.#positions.set(child, at);
      const built = this.build(value, child, depth + 1);
      if (built !== undefined) entries.set(name, built);
    }
    return { kind: "map", entries };
  }

  #alias(anchor: string, path: string, depth: number, at: Position | undefined): Tree | undefined {
    const target = this.#anchors.get(anchor);
    if (target === undefined) {
      this.#report({ code: "yaml_syntax", message: "unknown alias", next: "Define the anchor first", path, ...at });
      return undefined;
    }
    this.#aliases += 1;
    try {
      return this.build(target, path, depth + 1);
    } finally {
      this.#aliases -= 1;
    }
  }

  #report(violation: Violation): void {
    if (this.#violations.length < PolicyLimit.violations) this.#violations.push(violation);
  }
}

function keyText(key: { value: unknown; source?: unknown }): string | undefined {
  if (typeof key.value === "string") return key.value;
  // `9: …` or `1e3: …` are names here, as written.
  if (typeof key.value === "number" || typeof key.value === "bigint") {
    return typeof key.source === "string" ? key.source : String(key.value);
  }
  return undefined;
}

/** Bytes of UTF-8 without encoding anything. */
export function utf8Length(text: string): number {
  let bytes = text.length;
  for (let at = 0; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code > 0x7f) bytes += code > 0x7ff && (code < 0xd800 || code > 0xdfff) ? 2 : 1;
  }
  return bytes;
}
