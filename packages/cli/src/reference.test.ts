import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { completionWords } from "./commands/completions.ts";
import { everything } from "./commands/index.ts";
import { commandReference } from "./reference.ts";
import { runCommandLine } from "./testing/surroundings.ts";

test("docs/cli.md is what the commands declare", async () => {
  const path = join(import.meta.dirname, "../../../docs/cli.md");
  expect(readFileSync(path, "utf8"), "run node tools/generate-cli-reference.ts").toBe(await commandReference());
});

test("every command says what it is in the list and in its own declaration alike", async () => {
  for (const item of everything()) {
    const group = "commands" in item ? [item.name] : [];
    for (const entry of "commands" in item ? item.commands : [item]) {
      const { spec } = await entry.load();
      expect([spec.path, spec.summary]).toEqual([[...group, entry.name], entry.summary]);
    }
  }
});

test("completions know every command and its options", async () => {
  const words = await completionWords();
  expect(words.get("")).toContain("run");
  expect(words.get("sandbox")).toContain("exec");
  expect(words.get("sandbox create")).toContain("--volume");
  for (const shell of ["bash", "zsh", "fish"]) {
    const { code, stdout } = await runCommandLine(["completions", shell]);
    expect([code, stdout.includes("policy")]).toEqual([0, true]);
  }
  expect((await runCommandLine(["completions", "tcsh"])).code).toBe(2);
});
