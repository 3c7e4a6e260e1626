import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { everything } from "./commands/index.ts";
import { commandReference } from "./reference.ts";

test("docs/cli.md is what the commands declare", async () => {
  const path = join(import.meta.dirname, "../../../docs/cli.md");
  expect(readFileSync(path, "utf8"), "run node tools/generate-cli-reference.ts").toBe(await commandReference());
});

test("every command says what it is in the list and in its own declaration alike", async () => {
  for (const item of everything()) {
    const group = "commands" in item ? [item.name] : [];
    for (const entry of "commands" in item ? item.commands : [item]) {
      const { spec } = await entry.load();
      expect([spec.path, spec.summary]).toEqual([[...group, ...entry.name.split(" ")], entry.summary]);
    }
  }
});
