import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { runCommandLine } from "../testing/surroundings.ts";

const exec = promisify(execFile);
const main = join(import.meta.dirname, "../main.ts");

let gateway: FakeGateway;
let env: Record<string, string>;
beforeEach(async () => {
  gateway = await FakeGateway.start();
  const names = ["dev", "demo", "$(touch hacked)", "a b"];
  const sandboxes = names.map((name) => ({ metadata: { name }, status: { phase: "SANDBOX_PHASE_READY" } }));
  gateway.answers.set("ListSandboxes", { message: { sandboxes } });
  const bin = join(gateway.folder, "bin");
  mkdirSync(bin);
  mkdirSync(join(gateway.folder, "home"));
  writeFileSync(join(bin, "openshell"), `#!/bin/sh\nexec '${process.execPath}' '${main}' "$@"\n`, { mode: 0o755 });
  env = { ...gateway.env, PATH: `${bin}:/usr/bin:/bin`, TERM: "dumb" };
  for (const shell of ["bash", "zsh", "fish"]) {
    writeFileSync(join(gateway.folder, shell), (await runCommandLine(["completions", shell])).stdout);
  }
  writeFileSync(join(gateway.folder, "some-file"), "");
});
afterEach(() => gateway[Symbol.asyncDispose]());

async function shell(program: string, ...argv: string[]): Promise<string[]> {
  const { stdout, stderr } = await exec(program, argv, { env, cwd: gateway.folder, timeout: 30_000 });
  expect(stderr).toBe("");
  expect(existsSync(join(gateway.folder, "hacked"))).toBe(false);
  return stdout.split("\n").filter((line) => line !== "");
}

test.skipIf(!existsSync("/usr/bin/bash"))("bash completes commands, options, values and names", async () => {
  const bash = (...words: string[]) =>
    shell(
      "/usr/bin/bash",
      ...[
        "--norc",
        "-c",
        `source ./bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _openshell; printf "%s\\n" "\${COMPREPLY[@]}"`,
        "bash",
      ],
      ...words,
    );
  expect(await bash("openshell", "sandbox", "co")).toEqual(["connect"]);
  expect(await bash("openshell", "sandbox", "list", "--output", "=", "y")).toEqual(["yaml"]);
  expect(await bash("openshell", "logs", "")).toEqual(["dev", "demo"]);
});

test.skipIf(!existsSync("/usr/bin/bash") || !existsSync("/usr/bin/script"))(
  "bash in a terminal completes on the tab key",
  async () => {
    const child = spawn("/usr/bin/script", ["-qec", "bash --norc --noprofile -i", "/dev/null"], {
      env: { ...env, PS1: "ready> " },
      cwd: gateway.folder,
    });
    let shown = "";
    child.stdout.on("data", (chunk: Buffer) => {
      shown += chunk.toString();
    });
    const until = (text: string) => expect.poll(() => shown, { timeout: 20_000 }).toContain(text);
    await until("ready> ");
    child.stdin.write("source ./bash; PS1='set> '\n");
    await until("\nset> ");
    child.stdin.write("openshell logs dem\t");
    await until("logs demo ");
    // To the begin of the line, so that it is shown instead of run.
    child.stdin.write("\u0001echo =\nexit\n");
    await once(child, "close");
    expect(shown).toMatch(/^=openshell logs demo\s*$/m);
  },
  30_000,
);

test.skipIf(!existsSync("/usr/bin/zsh"))("zsh completes commands, options, values and names", async () => {
  const zsh = (...typed: string[]) =>
    shell(
      "/usr/bin/zsh",
      ...[
        "-f",
        "-c",
        `compdef() { }; compadd() { print -l -- "\${words_found[@]}"; }; _files() { print files; }; source ./zsh; words=("$@"); CURRENT=$#; _openshell`,
        "zsh",
      ],
      ...typed,
    );
  expect(await zsh("openshell", "sandbox", "co")).toEqual(["connect"]);
  expect(await zsh("openshell", "sandbox", "list", "--output=y")).toEqual(["--output=yaml"]);
  expect(await zsh("openshell", "logs", "")).toEqual(["dev", "demo"]);
  expect(await zsh("openshell", "policy", "validate", "")).toEqual(["files"]);
});

test.skipIf(!existsSync("/usr/bin/fish"))("fish completes commands, options, values and names", async () => {
  const fish = (line: string) => shell("/usr/bin/fish", "--no-config", "-c", `source ./fish; complete -C '${line}'`);
  expect(await fish("openshell sandbox co")).toEqual([
    "connect\tjoin the terminal of a sandbox, or open a shell in it",
  ]);
  expect(await fish("openshell sandbox list --output=y")).toEqual(["--output=yaml"]);
  expect(await fish("openshell logs ")).toEqual(["demo\tReady", "dev\tReady"]);
  expect(await fish("openshell policy validate some")).toEqual(["some-file"]);
});
