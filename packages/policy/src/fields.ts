import type { PolicyProblem } from "@openshell/base/catalogue/policies.ts";
/** Reading typed fields out of a document tree; every mistake is recorded, none ends the reading. */
import type { Tree } from "./document.ts";
import { PolicyLimit } from "./limits.ts";
import { indexPath, keyPath, nearest, type Violation } from "./violation.ts";

export class Report {
  readonly violations: Violation[] = [];

  add(path: string, code: PolicyProblem, message: string, next: string): void {
    if (this.violations.length < PolicyLimit.violations) this.violations.push({ code, message, next, path });
  }
}

/** Keys that exist elsewhere, with the reason why they are refused here. */
export type Refused = Readonly<Record<string, string>>;

export class Fields {
  readonly path: string;
  readonly #entries: ReadonlyMap<string, Tree>;
  readonly #report: Report;

  private constructor(path: string, entries: ReadonlyMap<string, Tree>, report: Report) {
    this.path = path;
    this.#entries = entries;
    this.#report = report;
  }

  /** The fields of a map; other keys than `known` are violations. Undefined when `tree` is no map. */
  static of(
    tree: Tree | undefined,
    path: string,
    known: readonly string[],
    report: Report,
    refused: Refused = {},
  ): Fields | undefined {
    if (tree === undefined) return undefined;
    if (tree.kind !== "map") {
      wrongType(report, path, "a map", tree);
      return undefined;
    }
    for (const key of tree.entries.keys()) {
      if (known.includes(key)) continue;
      const reason = Object.hasOwn(refused, key) ? refused[key] : undefined;
      if (reason !== undefined) {
        report.add(keyPath(path, key), "unsupported_key", `'${key}' cannot be set: ${reason}`, "Remove the key");
        continue;
      }
      const close = nearest(key, known);
      report.add(
        keyPath(path, key),
        "unknown_key",
        `unknown field '${key}'`,
        close === undefined ? `Valid fields here: ${known.join(", ")}` : `Did you mean '${close}'?`,
      );
    }
    return new Fields(path, tree.entries, report);
  }

  has(key: string): boolean {
    return this.#entries.has(key);
  }

  tree(key: string): Tree | undefined {
    return this.#entries.get(key);
  }

  at(key: string): string {
    return keyPath(this.path, key);
  }

  string(key: string): string {
    const tree = this.#entries.get(key);
    return tree === undefined ? "" : (asString(tree, this.at(key), this.#report) ?? "");
  }

  boolean(key: string): boolean | undefined {
    const tree = this.#entries.get(key);
    if (tree === undefined) return undefined;
    if (tree.kind === "scalar" && typeof tree.value === "boolean") return tree.value;
    wrongType(this.#report, this.at(key), "true or false", tree);
    return undefined;
  }

  /** An integer in `min`..`max`, or undefined. */
  integer(key: string, min: number, max: number): number | undefined {
    const tree = this.#entries.get(key);
    return tree === undefined ? undefined : asInteger(tree, this.at(key), min, max, this.#report);
  }

  /** One of `values`, or empty. */
  choice<T extends string>(key: string, values: readonly T[]): T | "" {
    const tree = this.#entries.get(key);
    if (tree === undefined) return "";
    const text = asString(tree, this.at(key), this.#report);
    if (text === undefined) return "";
    if ((values as readonly string[]).includes(text)) return text as T;
    this.#report.add(
      this.at(key),
      "invalid_value",
      `'${text}' is no valid value of ${key}`,
      `Use ${values.join(" or ")}, or leave the key out`,
    );
    return "";
  }

  strings(key: string): string[] {
    return this.list(key, (tree, path) => asString(tree, path, this.#report));
  }

  list<T>(key: string, read: (tree: Tree, path: string) => T | undefined): T[] {
    const tree = this.#entries.get(key);
    if (tree === undefined) return [];
    const path = this.at(key);
    if (tree.kind !== "list") {
      wrongType(this.#report, path, "a list", tree);
      return [];
    }
    return tree.items.map((item, index) => read(item, indexPath(path, index))).filter((item) => item !== undefined);
  }

  map<T>(key: string, read: (tree: Tree, path: string, name: string) => T | undefined): [string, T][] {
    const tree = this.#entries.get(key);
    if (tree === undefined) return [];
    const path = this.at(key);
    if (tree.kind !== "map") {
      wrongType(this.#report, path, "a map", tree);
      return [];
    }
    const entries: [string, T][] = [];
    for (const [name, value] of tree.entries) {
      const item = read(value, keyPath(path, name), name);
      if (item !== undefined) entries.push([name, item]);
    }
    return entries;
  }
}

export function asString(tree: Tree, path: string, report: Report): string | undefined {
  if (tree.kind === "scalar" && typeof tree.value === "string") return tree.value;
  wrongType(report, path, "text", tree);
  return undefined;
}

export function asInteger(tree: Tree, path: string, min: number, max: number, report: Report): number | undefined {
  if (tree.kind !== "scalar" || typeof tree.value !== "number" || !Number.isInteger(tree.value)) {
    wrongType(report, path, "a whole number", tree);
    return undefined;
  }
  if (tree.value >= min && tree.value <= max) return tree.value;
  report.add(path, "invalid_value", `${tree.value} is outside ${min}..${max}`, `Use a number from ${min} to ${max}`);
  return undefined;
}

export function wrongType(report: Report, path: string, expected: string, found: Tree): void {
  const number = found.kind === "scalar" && (typeof found.value === "number" || typeof found.value === "boolean");
  report.add(
    path,
    "wrong_type",
    `expected ${expected}, found ${describe(found)}`,
    expected === "text" && number
      ? "Put the value in quotes"
      : found.kind === "scalar" && found.value === null
        ? "Give it a value, or leave the key out"
        : `Write ${expected} here`,
  );
}

function describe(tree: Tree): string {
  if (tree.kind !== "scalar") return tree.kind === "map" ? "a map" : "a list";
  if (tree.value === null) return "nothing";
  return typeof tree.value === "string"
    ? "text"
    : `${typeof tree.value === "bigint" ? "number" : typeof tree.value} ${tree.value}`;
}
