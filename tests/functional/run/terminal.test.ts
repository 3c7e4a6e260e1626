import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { OPENSHELL, TestOpenShell } from "../../support/openshell.ts";

/** `openshell` in front of a person: a terminal on both sides. */

type Step = { readonly see: string } & ({ readonly type: string } | { readonly resize: readonly [number, number] });

interface Session {
  readonly output: string;
  readonly code: number;
  /** Steps that never came to pass. */
  readonly left: readonly Step[];
  readonly restored: boolean;
}

const terminalProgram = join(import.meta.dirname, "terminal.py");

let before: Inventory;
let net: TestInternet;
let openshell: TestOpenShell;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  openshell = TestOpenShell.create(net);
  await openshell.ok(["run", "--", "true"], { timeoutMs: 60_000 });
});

afterAll(async () => {
  await openshell?.[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

async function sit(
  args: readonly string[],
  steps: readonly Step[] = [],
  options: { readonly env?: Readonly<Record<string, string>>; readonly cwd?: string } = {},
): Promise<Session> {
  const player = ["/usr/bin/python3", "-c", readFileSync(terminalProgram, "utf8"), "33", "101", JSON.stringify(steps)];
  const result = await net.run([...player, ...OPENSHELL, ...args], {
    cwd: options.cwd ?? openshell.home.path(),
    env: { ...openshell.env, TERM: "xterm-256color", ...options.env },
    timeoutMs: 70_000,
  });
  expect(result.stderr).toBe("");
  return JSON.parse(result.stdout) as Session;
}

test("the command has a terminal of the same size, and follows it", async () => {
  // The size comes with the attachment, which may be a little later than the command.
  const script = `
    tty; while [ "$(stty size)" = "24 80" ]; do sleep 0.02; done; stty size
    trap "stty size; exit 0" WINCH; echo ready; while :; do sleep 0.05; done`;
  const session = await sit(["run", "--", "sh", "-c", script], [{ see: "ready", resize: [40, 120] }]);
  expect(session).toMatchObject({ code: 0, left: [], restored: true });
  expect(session.output).toMatch(/\/dev\/pts\/\d+\r\n33 101\r\nready\r\n40 120\r\n/);
});

test("output comes as the program wrote it, also where the terminal inside is raw", async () => {
  const { output } = await sit(["run", "--", "sh", "-c", "stty raw; printf 'a\\nb\\r\\nc'"]);
  expect(output).toMatch(/a\nb\r\nc$/);
});

test("it has the terminal's type, and colours are its own affair", async () => {
  const { output } = await sit(["run", "--", "sh", "-c", "echo TERM=$TERM; printf '\\033[31mred\\033[0m\\n'"]);
  expect(output).toContain("TERM=xterm-256color\r\n");
  expect(output).toContain("\u001b[31mred\u001b[0m");
});

test("Ctrl-C reaches the command, not openshell", async () => {
  const handled = 'trap "echo caught; exit 7" INT; echo ready; while :; do sleep 0.05; done';
  const one = await sit(["run", "--", "sh", "-c", handled], [{ see: "ready", type: "\u0003" }]);
  expect(one).toMatchObject({ code: 7, left: [], restored: true });
  expect(one.output).toContain("caught");
  const two = await sit(["run", "--", "sh", "-c", "echo ready; exec sleep 60"], [{ see: "ready", type: "\u0003" }]);
  expect(two).toMatchObject({ code: 130, left: [], restored: true });
  expect(await openshell.ok(["sandbox", "list", "--names"])).toBe("");
});

test("typing, end of input and Ctrl-\\ are those of a terminal", async () => {
  const cat = await sit(
    ["run", "--", "sh", "-c", "echo ready; cat; echo end"],
    [
      { see: "ready", type: "hello\n" },
      { see: "hello\r\nhello", type: "\u0004" },
    ],
  );
  expect(cat).toMatchObject({ code: 0, left: [] });
  expect(cat.output).toContain("end");
  const quit = await sit(["run", "--", "sh", "-c", "echo ready; exec sleep 60"], [{ see: "ready", type: "\u001c" }]);
  expect(quit).toMatchObject({ code: 131, left: [], restored: true });
});

test("without a command it is a login shell, with job control", async () => {
  const session = await sit(
    ["run"],
    [
      { see: "$ ", type: "sleep 50 &\n" },
      { see: "[1]", type: "jobs; kill %1; exit 3\n" },
    ],
  );
  expect(session).toMatchObject({ code: 3, left: [], restored: true });
  expect(session.output).not.toContain("no job control");
});

test("run says which folder it works in, and how to work in the current one", async () => {
  const home = await sit(["run", "--", "pwd"]);
  expect(home.output).toContain("working in the sandbox's own home");
  expect(home.output).toContain('--volume "$PWD:/work"');
  openshell.home.write("project/file", "");
  const folder = openshell.home.path("project");
  const mounted = await sit(["run", "--volume", `${folder}:/work`, "--", "pwd"], [], { cwd: folder });
  expect(mounted.output).toMatch(/working in \/work, which is the current folder/);
  expect(mounted.output).toMatch(/\/work\r\n$/);
});

test("exec with a terminal", async () => {
  await openshell.ok(["sandbox", "create", "--name", "dev", "--detach", "--", "sleep", "infinity"]);
  const session = await sit(
    ["sandbox", "exec", "dev", "--tty", "--", "sh", "-c", "stty size; echo ready; read a; exit $a"],
    [{ see: "ready", type: "9\n" }],
  );
  expect(session).toMatchObject({ code: 9, left: [], restored: true });
  expect(session.output).toContain("33 101");
  const plain = await sit(["sandbox", "exec", "dev", "--", "sh", "-c", "test -t 1 || echo pipe"]);
  expect(plain.output).toContain("pipe");
});

test("NO_COLOR, --color and a terminal that is none decide about colours", async () => {
  const colour = "\u001b[";
  const args = ["policy", "explain", "dev", "--host", "example.com"];
  expect((await sit(args)).output).toContain(colour);
  expect((await sit(args, [], { env: { NO_COLOR: "1" } })).output).not.toContain(colour);
  expect((await sit([...args, "--color", "never"])).output).not.toContain(colour);
  expect((await openshell.run(args)).stdout).not.toContain(colour);
  expect((await openshell.run([...args, "--color", "always"])).stdout).toContain(colour);
});
