import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { counts } from "./check.ts";
import type { Fault, Group, Guard } from "./fault.ts";
import { faults, groups } from "./known-faults.ts";

/**
 * Writes docs/known-faults.md from the table:
 *
 *     node tests/known-faults/table.ts [--check]
 *
 * `--check` writes nothing and fails when the page is not up to date.
 */

function cell(text: string): string {
  return text.replaceAll("|", "\\|");
}

/** A line for each test, with the files in which its defences are. */
function guardLines(guards: readonly Guard[]): string {
  const byTest = Map.groupBy(guards, ({ test }) => `\`${short(test.file)}\`: ${test.title}`);
  const lines = [...byTest].map(([test, own]) => {
    const files = own.flatMap(({ without }) => without.map(({ file }) => `\`${short(file)}\``));
    return `${test} (without ${[...new Set(files)].join(", ")})`;
  });
  return lines.join("<br>");
}

function short(file: string): string {
  return file.replace(/^packages\//, "");
}

function proof({ guards, notBuilt, otherwise }: Fault): string {
  if (notBuilt !== undefined) return `not built yet: ${notBuilt}`;
  return otherwise ?? guardLines(guards ?? []);
}

function section({ name, faults: own }: Group): readonly string[] {
  const rows = own.map((fault) => `| ${[fault.ids.join(", "), fault.mustNot, proof(fault)].map(cell).join(" | ")} |`);
  return [
    `## ${name}`,
    "",
    "| Fault | What must not happen | Test, and the file without whose defence it fails |",
    "|---|---|---|",
    ...rows,
    "",
  ];
}

const page = join(import.meta.dirname, "../../docs/known-faults.md");
const wanted = [
  "# Known faults",
  "",
  "<!-- Made by `node tests/known-faults/table.ts` from tests/known-faults/faults; edit those. -->",
  "",
  `Faults of the implementation before this one, as its issues, reviews and users tell: ${counts(faults)}.`,
  "Each test is shown to fail when its defence is taken out: `npm run test:known-faults` makes a private copy of the checkout,",
  "takes one defence out, runs the test alone, wants it to fail by what it asserts, and puts the defence back. With `--check`,",
  "which every change has to pass, it looks whether tests and defences still are where the table says.",
  "Paths without a folder of the checkout are below `packages/`.",
  "",
  ...groups.flatMap(section),
].join("\n");
if (!process.argv.includes("--check")) writeFileSync(page, wanted);
else if (readFileSync(page, "utf8") !== wanted) {
  console.error("docs/known-faults.md is out of date; run node tests/known-faults/table.ts");
  process.exitCode = 1;
}
