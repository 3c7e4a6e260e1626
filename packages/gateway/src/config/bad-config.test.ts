import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { RuntimeError } from "@openshell/base";
import { parseLocalDriverConfig } from "@openshell/drivers/local/config.ts";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { parseFlags } from "./inputs.ts";
import { loadConfig } from "./load.ts";
import { fileSchema } from "./schema.ts";

/** Every key of gateway.toml with values that it cannot have. The keys are the schema's own. */

vi.setConfig({ testTimeout: 60_000 });

let home: string;
let file: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), "openshell-bad-config-"));
  file = join(home, "gateway.toml");
  writeFileSync(join(home, "ca.pem"), "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n");
});
afterAll(() => rmSync(home, { recursive: true }));

type Kind = "string" | "integer" | "boolean" | "array" | "table";
interface Key {
  readonly path: readonly string[];
  readonly kind: Kind;
}

/** Below the definition of a schema: what zod itself calls them. */
interface Definition {
  readonly type: string;
  readonly innerType?: { readonly def: Definition };
  readonly shape?: Readonly<Record<string, { readonly def: Definition }>>;
  readonly values?: readonly unknown[];
}

const KINDS: Readonly<Record<string, Kind>> = {
  string: "string",
  enum: "string",
  number: "integer",
  int: "integer",
  literal: "integer",
  boolean: "boolean",
  array: "array",
  object: "table",
};

function keysOf(schema: { readonly def: Definition }, path: readonly string[] = []): Key[] {
  let { def } = schema;
  while (def.innerType !== undefined) def = def.innerType.def;
  const kind = KINDS[def.type];
  if (kind === undefined) throw new Error(`${path.join(".")} has the type ${def.type}, which is not tried here`);
  const below = Object.entries(def.shape ?? {}).flatMap(([name, inner]) => keysOf(inner, [...path, name]));
  return path.length === 0 ? below : [{ path, kind }, ...below];
}

const KEYS = keysOf(fileSchema as unknown as { readonly def: Definition });

/** Values in TOML's own words, by what they are. */
const VALUES: Readonly<Record<Kind | "other", readonly string[]>> = {
  string: [
    '""',
    '" "',
    '"\\u0000"',
    '"a\\nerror: forged"',
    '"\\u001b[2J"',
    '"\\u202e"',
    '"/a/../b"',
    '"/\\u0000"',
    '"relative"',
    `"${"x".repeat(100_000)}"`,
    `"/${"y/".repeat(5_000)}"`,
    '"127.0.0.1:99999"',
    '"localhost:1"',
    '"true"',
    '"1"',
    '"*"',
    '"__proto__"',
    '"grün ß"',
  ],
  integer: ["0", "-1", "-9007199254740991", "9007199254740991", "0x7fffffff", "4294967296"],
  boolean: ["true", "false"],
  array: [
    "[]",
    "[1]",
    "[[]]",
    '[""]',
    '["a\\nb"]',
    '["\\u001b[2J"]',
    '["relative"]',
    '["/a/../b"]',
    '["/\\u0000"]',
    "[{}]",
    `[${'"/a", '.repeat(1_000)}]`,
    `["${"z".repeat(100_000)}"]`,
    '["a b"]',
    '["*"]',
  ],
  table: ["{}", "{ a = 1 }", '{ "a\\nb" = 1 }'],
  other: ["1.5", "-0.0", "inf", "nan", "1979-05-27T07:32:00Z", "07:32:00", "1e300"],
};

/** A whole file in which one key has this value, and nothing else is said but the version. */
function fileWith(path: readonly string[], value: string): string {
  const line = `${path.map((part) => JSON.stringify(part)).join(".")} = ${value}\n`;
  return path.join(".") === "openshell" || path.join(".") === "openshell.version"
    ? line
    : `openshell.version = 2\n${line}`;
}

/** What is wrong with how a file was taken; undefined when it was refused as it should be, or could be used. */
async function attempt(text: string, names: readonly string[], mustFail: boolean): Promise<string | undefined> {
  writeFileSync(file, text);
  const shown = text.slice(-300);
  try {
    const { config } = await loadConfig(parseFlags(["--config", file]), { uid: 1000, home, env: {} });
    // The driver has read it as well before anything is started.
    parseLocalDriverConfig(config.local.table);
    return mustFail ? `was taken: ${shown}` : undefined;
  } catch (error) {
    if (!(error instanceof RuntimeError)) return `${(error as Error).stack}: ${shown}`;
    const problems = [
      error.code === "invalid_configuration" ? "" : `the code ${error.code}`,
      error.message.startsWith(file) ? "" : "no file",
      ...names.map((name) => (error.message.includes(name) ? "" : `no ${name}`)),
      error.next === "" ? "no next step" : "",
      /[\p{Cc}\u202a-\u202e\u2028\u2029]/u.test(`${error.message}${error.next}`) ? "a control character" : "",
      error.message.length > 4_200 || error.next.length > 4_200 ? "too long" : "",
      /\[object|undefined|Error:/.test(error.message) ? "something of the inside" : "",
      error.message.slice(file.length + 2).length > 5 ? "" : "no cause",
    ].filter((problem) => problem !== "");
    return problems.length === 0 ? undefined : `${problems.join(", ")}: ${error.message.slice(0, 400)}: ${shown}`;
  } finally {
    rmSync(file);
  }
}

const problemsOf = async (attempts: readonly Promise<string | undefined>[]) =>
  (await Promise.all(attempts)).filter((problem) => problem !== undefined);

/** One after the other: they share the file. */
async function all(cases: Iterable<readonly [text: string, names: readonly string[], mustFail: boolean]>) {
  const problems: string[] = [];
  for (const [text, names, mustFail] of cases) {
    problems.push(...(await problemsOf([attempt(text, names, mustFail)])));
  }
  return problems;
}

describe("gateway.toml", () => {
  it("has the keys that are tried", () => {
    const names = KEYS.map(({ path }) => path.join("."));
    expect(names.length).toBeGreaterThan(30);
    expect(names).toContain("openshell.supervisor.network.resolvers");
    expect(names).toContain("local.sandbox_disk_limit");
  });

  it("names each key with a value of another type", async () => {
    const cases = KEYS.flatMap(({ path, kind }) =>
      Object.entries(VALUES)
        .filter(([other]) => other !== kind)
        .flatMap(([other, values]) =>
          values
            // A number without a fraction is an integer to TOML's readers; bigger ones are tried below.
            .filter((value) => !(kind === "integer" && other === "other" && value === "-0.0"))
            .map((value) => [fileWith(path, value), [nameOf(path)], true] as const),
        ),
    );
    expect(await all(cases)).toEqual([]);
  });

  it("takes or names each key with a value of its type that it may not have", async () => {
    const cases = KEYS.flatMap(({ path, kind }) =>
      VALUES[kind].map((value) => [fileWith(path, value), [nameOf(path)], false] as const),
    );
    expect(await all(cases)).toEqual([]);
  });

  it("refuses numbers beyond their range", async () => {
    const numbers = KEYS.filter(({ kind }) => kind === "integer");
    const cases = numbers.flatMap(({ path }) =>
      ["-1", "9223372036854775807", "18446744073709551616", "1e300"].map(
        (value) => [fileWith(path, value), [], true] as const,
      ),
    );
    expect(await all(cases)).toEqual([]);
  });

  it("refuses unknown keys at each level, whatever their names", async () => {
    const tables = [[], ...KEYS.filter(({ kind }) => kind === "table").map(({ path }) => path)];
    const names = [
      "x",
      "",
      "a.b",
      "__proto__",
      "constructor",
      "toString",
      "a\nerror: forged",
      "\u001b[2J",
      "x".repeat(50_000),
    ];
    const cases = tables.flatMap((path) =>
      names.map((name) => {
        const key = [...path, name].map((part) => JSON.stringify(part)).join(".");
        return [
          `openshell.version = 2\n${key} = 1\n`,
          path.length === 0 ? ["unknown key"] : [path.join(".")],
          true,
        ] as const;
      }),
    );
    expect(await all(cases)).toEqual([]);
  });

  it("refuses keys and tables that are there twice, at their line", async () => {
    const cases = KEYS.map(({ path, kind }) => {
      const key = path.map((part) => JSON.stringify(part)).join(".");
      const value = VALUES[kind][0];
      return [`${key} = ${value}\n${key} = ${value}\n`, [":2:"], true] as const;
    });
    expect(await all(cases)).toEqual([]);
    expect(await all([["[openshell]\nversion = 2\n[openshell]\n", [":3:"], true]])).toEqual([]);
  });

  it("says why a file is no TOML", async () => {
    const cases: [string, string[], boolean][] = [
      ["openshell.version = 2\nlocal = {", [":2:"], true],
      ["openshell.version = 2\nx = 'a", [":2:"], true],
      ["= 1", [":1:"], true],
      ["openshell.version = 99999999999999999999", [":1:"], true],
      ["openshell.version = 2\nx = \u001b", [":2:"], true],
      [`x = ${"[".repeat(20_000)}`, [], true],
      [`${"a.".repeat(20_000)}b = 1`, [], true],
      ["{}", [], true],
      ["version: 2", [":1:"], true],
      ["openshell.version = 2\r\nopenshell.gateway.log_level = 'loud'\r\n", ["openshell.gateway.log_level"], true],
    ];
    expect(await all(cases)).toEqual([]);
  });

  it("names the same problem of many places a bounded number of times", async () => {
    const many = Array.from({ length: 5_000 }, (_, n) => `k${n} = 1`).join("\n");
    expect(await all([[`openshell.version = 2\n[local]\n${many}`, ["unknown key k0", "more"], true]])).toEqual([]);
  });

  it("changes nothing when it is refused", async () => {
    const before = readdirSync(home, { recursive: true }).toSorted();
    await attempt("openshell.version = 2\nlocal.tmp_size = 1\n", [], true);
    expect(readdirSync(home, { recursive: true }).toSorted()).toEqual(before);
  });
});

function nameOf(path: readonly string[]): string {
  // Whoever gives no table there has no version either: that is said instead.
  return path.length === 1 && path[0] === "openshell"
    ? "schema version"
    : path[1] === "version"
      ? "version"
      : path.join(".");
}
