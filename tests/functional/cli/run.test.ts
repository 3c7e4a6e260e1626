import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { chmodSync, existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { OPENSHELL, TestOpenShell } from "../../support/openshell.ts";

let before: Inventory;
let net: TestInternet;
let openshell: TestOpenShell;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  openshell = TestOpenShell.create(net);
  // The first command starts the gateway, which the others find.
  await openshell.ok(["run", "--", "true"], { timeoutMs: 60_000 });
});

afterAll(async () => {
  await openshell[Symbol.asyncDispose]();
  await net[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

const names = async (): Promise<string[]> =>
  (await openshell.ok(["sandbox", "list", "--names"])).trim().split("\n").filter(Boolean);

test("both outputs and the exact status, and nothing else; the sandbox is gone", async () => {
  const result = await openshell.run(["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
  expect([result.exitCode, result.stdout, result.stderr]).toEqual([7, "out\n", "err\n"]);
  expect(await names()).toEqual([]);
});

test("every kind of end", async () => {
  const cases: [string[], number][] = [
    [["true"], 0],
    [["sh", "-c", "exit 255"], 255],
    [["sh", "-c", "kill -KILL $$"], 137],
    [["sh", "-c", "kill -SEGV $$"], 139],
    [["sh", "-c", "exit 127"], 127],
    [["no-such-program"], 127],
    [["/etc/passwd"], 126],
  ];
  for (const [command, code] of cases) {
    expect((await openshell.run(["run", "--", ...command])).exitCode, command.join(" ")).toBe(code);
  }
  expect(await names()).toEqual([]);
});

test("input and output are the same bytes, however many", async () => {
  const bytes = randomBytes(8 * 1024 * 1024);
  const result = await openshell.run(["run", "--", "sh", "-c", "cat; sleep 0.1"], { stdin: bytes });
  const hash = (data: Uint8Array): string => createHash("sha256").update(data).digest("hex");
  expect([result.exitCode, result.stdoutBytes.length, hash(result.stdoutBytes)]).toEqual([
    0,
    bytes.length,
    hash(bytes),
  ]);
});

test("without a command, what the input says is run by a shell, and nothing else is printed", async () => {
  const result = await openshell.run(["run"], { stdin: "echo hi\necho no >&2\ntest -t 0 || exit 3\n" });
  expect([result.exitCode, result.stdout, result.stderr]).toEqual([3, "hi\n", "no\n"]);
});

test("a program that is not inside: where it is and what to add, which then works", async () => {
  const tool = openshell.home.write("tools/bin/agent", '#!/bin/sh\necho "agent: $*"\n');
  chmodSync(tool, 0o755);
  for (const folder of [openshell.home.path(), openshell.home.path("tools"), join(tool, "..")])
    chmodSync(folder, 0o755);
  const path = `${join(tool, "..")}:/usr/bin:/bin`;
  const missing = await openshell.run(["run", "--", "agent", "a b"], { env: { PATH: path } });
  expect(missing.exitCode).toBe(127);
  expect(missing.stderr).toContain(`agent is at ${tool} on this machine, but the sandbox does not contain it`);
  const folder = openshell.home.path("tools");
  const added = `--volume ${folder}:${folder}:ro -- ${tool} 'a b'`;
  expect(missing.stderr).toContain(added);
  const again = await openshell.run(["run", "--volume", `${folder}:${folder}:ro`, "--", tool, "a b"]);
  expect([again.exitCode, again.stdout]).toEqual([0, "agent: a b\n"]);
});

test("the mounted current folder is where the command starts, and what it writes belongs to the caller", async () => {
  const folder = openshell.home.path("project");
  mkdirSync(folder, { mode: 0o755 });
  chmodSync(openshell.home.path(), 0o755);
  const result = await openshell.run(["run", "--volume", `${folder}:/work`, "--", "sh", "-c", "pwd; echo made >file"], {
    cwd: folder,
  });
  expect([result.exitCode, result.stdout, result.stderr]).toEqual([0, "/work\n", ""]);
  expect(readFileSync(join(folder, "file"), "utf8")).toBe("made\n");
  expect(statSync(join(folder, "file")).uid).toBe(statSync(folder).uid);
});

test("variables and limits reach the command; what is wrong is said before anything is made", async () => {
  expect(await openshell.ok(["run", "--env", "A=1 2", "--", "sh", "-c", 'echo "$A"'])).toBe("1 2\n");
  const wrong = await openshell.run(["run", "--volume", "/nonexistent-folder:/work", "--", "true"]);
  expect(wrong.exitCode).toBe(1);
  expect(wrong.stderr).toMatch(/^error: .*nonexistent-folder/m);
  writeFileSync(openshell.home.path("policy.yaml"), "version: 1\nnetwork_polices: {}\n");
  const policy = await openshell.run(["run", "--policy", "policy.yaml", "--", "true"]);
  expect(policy.exitCode).toBe(1);
  expect(policy.stderr).toContain("policy.yaml:2:1: ");
  expect(await names()).toEqual([]);
});

test.each([
  ["SIGINT", 130],
  ["SIGTERM", 143],
  ["SIGHUP", 129],
] as const)("%s ends the command and removes the sandbox", async (signal, code) => {
  const child = openshell.spawn(["run", "--", "sh", "-c", "echo started; sleep 60"]);
  await once(child.stdout!, "data");
  child.kill(signal);
  const [exitCode] = await once(child, "exit");
  expect(exitCode).toBe(code);
  expect(await names()).toEqual([]);
});

test("a command that handles the signal ends with its own status; a second signal does not wait", async () => {
  const polite = openshell.spawn([
    "run",
    "--",
    "sh",
    "-c",
    "trap 'echo bye; exit 9' TERM; echo on; while :; do sleep 0.05; done",
  ]);
  let output = "";
  polite.stdout!.on("data", (chunk: Buffer) => {
    output += String(chunk);
    if (output === "on\n") polite.kill("SIGTERM");
  });
  expect((await once(polite, "close"))[0]).toBe(9);
  expect(output).toBe("on\nbye\n");
  const deaf = openshell.spawn(["run", "--", "sh", "-c", "trap '' TERM; echo on; while :; do sleep 0.05; done"]);
  await once(deaf.stdout!, "data");
  deaf.kill("SIGTERM");
  await new Promise((resolve) => setTimeout(resolve, 300));
  const started = performance.now();
  deaf.kill("SIGTERM");
  expect((await once(deaf, "exit"))[0]).toBe(143);
  expect(performance.now() - started).toBeLessThan(5_000);
  // The stop that was under way has its grace; then the sandbox goes.
  await expect.poll(names, { timeout: 15_000, interval: 200 }).toEqual([]);
});

test("a reader that leaves ends the command quietly", async () => {
  const line = `${OPENSHELL.join(" ")} run -- sh -c 'while :; do echo y; done' | head -1`;
  const result = await net.run(["sh", "-c", line], { env: openshell.env, cwd: openshell.home.path() });
  expect([result.exitCode, result.stdout, result.stderr]).toEqual([0, "y\n", ""]);
  expect(await names()).toEqual([]);
});

test("--keep keeps, and its files are still there", async () => {
  const kept = await openshell.run(["run", "--keep", "--name", "kept", "--", "sh", "-c", "echo x >note"]);
  expect(kept.exitCode).toBe(0);
  expect(kept.stderr).toContain("openshell sandbox delete kept");
  expect(await names()).toEqual(["kept"]);
  await openshell.ok(["sandbox", "delete", "kept"]);
});

/** A terminal of 33 by 101 for the command, and what is typed into it. */
const inTerminal = (command: string, typing: string) => {
  const quoted = `stty rows 33 cols 101; exec ${OPENSHELL.join(" ")} ${command}`;
  return net.run(["sh", "-c", `{ ${typing}; } | script -qec "$0" /dev/null`, quoted], {
    env: { ...openshell.env, NO_COLOR: "1" },
    cwd: openshell.home.path(),
    timeoutMs: 60_000,
  });
};

test.skipIf(!existsSync("/usr/bin/script"))(
  "a terminal: its size, what is typed, Ctrl-C, the status, and what was refused",
  async () => {
    const typing =
      "sleep 2; printf 'stty size\\n'; sleep 0.5; printf 'sleep 60\\n'; sleep 0.5; printf '\\003'; sleep 0.5; printf 'echo code=$?\\nexit 5\\n'; sleep 1";
    const shell = await inTerminal("run -- sh", typing);
    expect(shell.stdout).toContain("33 101");
    expect(shell.stdout).toContain("code=130");
    expect(shell.exitCode).toBe(5);
    const host = await net.host("refused.example.com");
    const refused = await inTerminal(`run -- curl -sS -o /dev/null https://${host.name}`, "sleep 3");
    expect(refused.stdout).toContain("the current folder is not mounted");
    expect(refused.stdout).toMatch(/the policy refused once:\s+\S*curl -> refused\.example\.com:443: /);
  },
);
