/** Writes docs/cli.md from the declarations of the commands; with `--check` fails when it is out of date. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { commandReference } from "@openshell/cli/reference.ts";

const path = join(import.meta.dirname, "../docs/cli.md");
const text = await commandReference();
if (!process.argv.includes("--check")) writeFileSync(path, text);
else if (readFileSync(path, "utf8") !== text) {
  console.error("docs/cli.md is out of date: node tools/generate-cli-reference.ts");
  process.exitCode = 1;
}
