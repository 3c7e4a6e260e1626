import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import * as catalogue from "./index.ts";

const packages = join(import.meta.dirname, "../../..");
/** Statuses of processes and of calls are given by others, and whole. */
const tables = Object.entries(catalogue).filter(([name]) => name !== "EXIT_STATUSES" && name !== "CALL_CODES");

/** Sources in which an error can be made. */
const sources = readdirSync(packages, { recursive: true, encoding: "utf8" })
  .filter((path) => path.endsWith(".ts") && /^[a-z]+\/src\//.test(path))
  .filter((path) => !/\.test\.ts$|\/testing\/|\/generated\/|\/catalogue\//.test(path))
  .map((path) => readFileSync(join(packages, path), "utf8"));

/** The other direction, a code that is thrown and not here, is a matter of types. */
test.each(tables)("every code of %s is one that something makes", (_name, table) => {
  // A member of a union is no use of it.
  const used = sources.flatMap(
    (text) => text.replaceAll(/^\s*\| "\w+";?$/gm, "").match(/(?<=["'`])\w+(?=["'`])/g) ?? [],
  );
  const words = new Set(used);
  expect(Object.keys(table).filter((code) => !words.has(code))).toEqual([]);
});

test.each(Object.entries(catalogue))(
  "%s says of each code what it means and what to do, on one line",
  (_name, table) => {
    for (const [code, [meaning, next]] of Object.entries(table as Record<string, catalogue.Meaning>)) {
      expect(code).toMatch(/^([a-z]+(_[a-z0-9]+)*|[A-Z]+(_[A-Z]+)*|([A-Z][a-z]+)+|\d+)$/);
      expect(meaning).toMatch(/^[A-Z][^\n|]+\.$/);
      expect(next).toMatch(/^[A-Z][^\n|]*[^.\s]$/);
    }
  },
);

test("codes stand in order, so that one is found", () => {
  for (const [, table] of tables) {
    expect(Object.keys(table)).toEqual(Object.keys(table).toSorted());
  }
});
