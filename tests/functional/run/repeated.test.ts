import { afterAll, beforeAll, expect, test } from "vitest";
import type { RunResult } from "../../support/command.ts";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { OPENSHELL, TestOpenShell } from "../../support/openshell.ts";

const TIMES = 200;
/** Runs at the same time: some, so that they meet; few, so that two cores are not only waiting. */
const LANES = 4;

let before: Inventory;
let net: TestInternet;
let openshell: TestOpenShell;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  openshell = TestOpenShell.create(net);
});

afterAll(async () => {
  await openshell?.[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

test(`run -- echo hi, ${TIMES} times: the output and status 0 each time, and nothing else`, {
  timeout: 180_000,
}, async () => {
  await openshell.ok(["run", "--", "true"], { timeoutMs: 60_000 });
  const quiet = takeInventory([openshell.home.runtime, openshell.home.state]);
  const wrong: Pick<RunResult, "exitCode" | "signal" | "stdout" | "stderr">[] = [];
  let left = TIMES;
  const lane = async () => {
    while (left-- > 0) {
      const { exitCode, signal, stdout, stderr } = await openshell.run(["run", "--", "echo", "hi"]);
      if (exitCode !== 0 || stdout !== "hi\n" || stderr !== "") wrong.push({ exitCode, signal, stdout, stderr });
    }
  };
  await Promise.all(Array.from({ length: LANES }, lane));
  expect(wrong).toEqual([]);
  expect(await openshell.ok(["sandbox", "list", "--names"])).toBe("");
  await expectNoLeaks(quiet);
});

test("output to both streams at the end is whole, whatever the status", { timeout: 120_000 }, async () => {
  const codes = [0, 1, 7, 126, 127, 137, 143, 255];
  const results = await Promise.all(
    codes.map((code) =>
      openshell.run(["run", "--", "sh", "-c", `head -c 300000 /dev/zero | tr '\\0' a; printf b >&2; exit ${code}`]),
    ),
  );
  for (const [at, result] of results.entries()) {
    expect([result.exitCode, result.stdoutBytes.length, result.stderr]).toEqual([codes[at], 300_000, "b"]);
  }
});

test.each([
  ["closed", "<&-", ""],
  ["empty", "</dev/null", ""],
  ["a file", "<input", "from a file\n"],
  ["a pipe", "", "from a pipe\n"],
])("standard input that is %s", async (_, redirection, text) => {
  openshell.home.write("input", "from a file\n");
  const command = [
    "sh",
    "-c",
    `exec "$@" ${redirection}`,
    "sh",
    ...OPENSHELL,
    "run",
    "--",
    "sh",
    "-c",
    "cat; echo end",
  ];
  const result = await net.run(command, { cwd: openshell.home.path(), env: openshell.env, stdin: text });
  expect([result.exitCode, result.stdout, result.stderr]).toEqual([0, `${text}end\n`, ""]);
});

test.each([
  ["stdout", ">&-"],
  ["stderr", "2>&-"],
])("%s that is closed changes nothing else", async (_, redirection) => {
  const command = ["sh", "-c", `exec "$@" ${redirection}`, "sh", ...OPENSHELL, "run", "--", "true"];
  const result = await net.run(command, { cwd: openshell.home.path(), env: openshell.env });
  expect(result).toMatchObject({ exitCode: 0, stdout: "", stderr: "" });
});
