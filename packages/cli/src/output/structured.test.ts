import fc from "fast-check";
import { expect, test } from "vitest";
import { parse } from "yaml";
import { toYaml } from "./structured.ts";

/** Words that YAML readers of either version take for something else than text. */
const TRAPS = [
  "true",
  "yes",
  "No",
  "on",
  "null",
  "~",
  "",
  "1",
  "0x1f",
  "0o17",
  "017",
  "1e3",
  ".inf",
  "1:30",
  "2026-03-01",
  "- a",
  "a: b",
  "#c",
  "&x",
  "*x",
  "!t",
  "%d",
  "@",
  "`",
  "|",
  ">",
  "'",
  '"',
  " lead",
  "trail ",
  "a\nb",
  "\t",
  "\u0085",
  "\u2028",
  "\ufeff",
  "---",
  "...",
  "<<",
  "=",
];

const text = fc.oneof(fc.constantFrom(...TRAPS), fc.string(), fc.string({ unit: "binary" }));
const value = fc.letrec((tie) => ({
  any: fc.oneof(
    { maxDepth: 4 },
    text,
    fc.boolean(),
    fc.constant(null),
    fc.integer(),
    fc.double({ noNaN: true, noDefaultInfinity: true }).map((number) => (Object.is(number, -0) ? 0 : number)),
    fc.array(tie("any"), { maxLength: 4 }),
    fc.dictionary(
      text.filter((key) => key !== "__proto__"),
      tie("any"),
      { maxKeys: 4 },
    ),
  ),
})).any;

test("-o yaml holds what -o json holds, for readers of YAML 1.2 and 1.1", () => {
  fc.assert(
    fc.property(value, (data) => {
      const json: unknown = JSON.parse(JSON.stringify(data));
      const yaml = toYaml(data);
      expect(parse(yaml, { version: "1.2" })).toEqual(json);
      expect(parse(yaml, { version: "1.1", merge: false })).toEqual(json);
    }),
    { numRuns: 500 },
  );
});

test("one value in two places is written twice", () => {
  const shared = { a: 1 };
  expect(toYaml([shared, shared])).toBe("- a: 1\n- a: 1\n");
});
