import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
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
  await openshell.ok(["sandbox", "create", "--name", "dev", "--detach", "--", "sleep", "infinity"], {
    timeoutMs: 60_000,
  });
});

afterAll(async () => {
  await openshell[Symbol.asyncDispose]();
  await net[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

/** `openshell ARGS…` in a terminal of 33 by 101, and a person in front of it. */
class Terminal {
  readonly #child: ChildProcess;
  readonly #end: Promise<unknown[]>;
  #shown = "";

  constructor(args: readonly string[]) {
    const command = `stty rows 33 cols 101; exec ${[...OPENSHELL, ...args].join(" ")}`;
    this.#child = net.spawn(["script", "-qec", command, "/dev/null"], {
      env: { ...openshell.env, NO_COLOR: "1", TERM: "dumb" },
      cwd: openshell.home.path(),
    });
    this.#end = once(this.#child, "close");
    this.#child.stdout!.on("data", (chunk: Buffer) => {
      this.#shown += chunk.toString();
    });
  }

  async until(pattern: RegExp): Promise<RegExpExecArray> {
    await expect.poll(() => this.#shown, { timeout: 30_000 }).toMatch(pattern);
    return pattern.exec(this.#shown)!;
  }

  type(text: string): void {
    this.#child.stdin!.write(text);
  }

  async status(): Promise<unknown> {
    return (await this.#end)[0];
  }
}

test.skipIf(!existsSync("/usr/bin/script"))(
  "connect joins a shell in its terminal, leaves it with Ctrl-D or Ctrl-P Ctrl-Q, and ends with its status",
  async () => {
    await openshell.ok(["sandbox", "create", "--name", "shell", "--detach", "--tty"]);
    const first = new Terminal(["sandbox", "connect", "shell"]);
    first.type("stty size; echo pid=$$\n");
    await first.until(/^33 101\s*$/m);
    const [, pid] = await first.until(/^pid=(\d+)/m);
    first.type("\u0004");
    await first.until(/detached; shell runs on/);
    expect(await first.status()).toBe(0);

    // What was written so far is shown again, and it is the same shell.
    const second = new Terminal(["sandbox", "connect", "shell"]);
    await second.until(new RegExp(`^pid=${pid}`, "m"));
    second.type("echo again=$$\n");
    await second.until(new RegExp(`^again=${pid}\\s*$`, "m"));
    second.type("\u0010\u0011");
    await second.until(/detached/);
    expect(await second.status()).toBe(0);

    const third = new Terminal(["sandbox", "connect", "shell"]);
    await third.until(/^again=/m);
    third.type("exit 5\n");
    expect(await third.status()).toBe(5);
    await expect
      .poll(() => openshell.json(["sandbox", "get", "shell"]), { timeout: 30_000 })
      .toMatchObject({ phase: "Error", exit_code: 5 });
    const ended = await openshell.run(["sandbox", "connect", "shell"]);
    expect([ended.exitCode, ended.stderr]).toEqual([1, expect.stringContaining("openshell sandbox start shell")]);
    await openshell.ok(["sandbox", "delete", "shell"]);

    // As in connect, so where the sandbox is created and joined at once.
    const created = new Terminal(["sandbox", "create", "--name", "own"]);
    created.type("echo up=$$\n");
    await created.until(/^up=\d+/m);
    created.type("\u0004");
    await created.until(/detached; own runs on/);
    expect(await created.status()).toBe(0);
    expect(await openshell.json(["sandbox", "get", "own"])).toMatchObject({ phase: "Ready" });
    await openshell.ok(["sandbox", "delete", "own"]);
  },
);

test.skipIf(!existsSync("/usr/bin/script"))(
  "connect opens a shell where the main process has no terminal",
  async () => {
    const shell = new Terminal(["sandbox", "connect", "dev"]);
    shell.type("stty size; shopt -q login_shell && echo login=yes\n");
    await shell.until(/^33 101\s*$/m);
    await shell.until(/^login=yes/m);
    // It is a shell of its own, which Ctrl-D ends.
    shell.type("(exit 6)\n\u0004");
    expect(await shell.status()).toBe(6);
    const piped = await openshell.run(["sandbox", "connect", "dev"], { stdin: "echo sum=$((20 + 22)); exit 7\n" });
    expect([piped.exitCode, piped.stdout]).toEqual([7, "sum=42\n"]);
    await openshell.ok(["sandbox", "stop", "dev"]);
    const stopped = await openshell.run(["sandbox", "connect", "dev"]);
    expect([stopped.exitCode, stopped.stderr]).toEqual([
      1,
      "error: sandbox dev is stopped\n  next: Start it with `openshell sandbox start dev`, and connect again\n  code: sandbox_stopped\n",
    ]);
    await openshell.ok(["sandbox", "start", "dev"]);
  },
);

test("policy update opens and closes single endpoints and requests while the sandbox runs", async () => {
  const host = await net.host("api.example.com");
  const status = async (method: string, path: string): Promise<string> => {
    const curl = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, `https://${host.name}${path}`];
    return (await openshell.run(["sandbox", "exec", "dev", "--", ...curl])).stdout;
  };
  const update = (...args: string[]) => openshell.run(["policy", "update", "dev", ...args]);
  const program = ["--any-binary"];
  const endpoint = ["--rule-name", "api", "--add-endpoint", `${host.name}:443:read-only:rest:enforce`, ...program];
  expect(await status("GET", "/x")).not.toBe("200");
  const preview = await update(...endpoint, "--dry-run");
  expect([preview.exitCode, preview.stdout]).toEqual([0, expect.stringContaining("host: api.example.com")]);
  expect(await status("GET", "/x")).not.toBe("200");
  expect(await update(...endpoint, "--wait")).toMatchObject({
    exitCode: 0,
    stderr: expect.stringContaining("in force"),
  });
  expect([await status("GET", "/x"), await status("POST", "/x")]).toEqual(["200", "403"]);
  const requests = ["--rule-name", "api", ...program];
  const opened = await update(
    ...requests,
    "--add-allow",
    `${host.name}:443:POST:/x`,
    "--add-deny",
    `${host.name}:443:GET:/secret`,
    "--wait",
  );
  expect(opened).toMatchObject({ exitCode: 0 });
  expect([
    await status("POST", "/x"),
    await status("POST", "/y"),
    await status("GET", "/secret"),
    await status("GET", "/y"),
  ]).toEqual(["200", "403", "403", "200"]);
  const wrong = await update("--remove-endpoint", `${host.name}:443`, "--remove-rule", "nobody");
  expect([wrong.exitCode, wrong.stderr]).toEqual([
    1,
    expect.stringMatching(/^error: --remove-rule nobody: .+\n {2}code: failed_precondition\n$/),
  ]);
  expect(await status("GET", "/y")).toBe("200");
  expect(await update("--remove-endpoint", `${host.name}:443`, "--wait")).toMatchObject({ exitCode: 0 });
  expect(await status("GET", "/y")).not.toBe("200");
});

test("lists follow labels, and say what is wrong with a selector", async () => {
  const create = [
    "sandbox",
    "create",
    "--detach",
    "--label",
    "team=blue",
    "--name",
    "labelled",
    "--",
    "sleep",
    "infinity",
  ];
  await openshell.ok(create, { timeoutMs: 60_000 });
  const list = (...args: string[]) => openshell.run(["sandbox", "list", "--names", ...args]);
  expect((await list("-l", "team=blue")).stdout).toBe("labelled\n");
  expect((await list()).stdout).toBe("dev\nlabelled\n");
  expect(await list("--limit", "1")).toMatchObject({
    stdout: "dev\n",
    stderr: expect.stringMatching(/^more: --page-token \S+\n$/),
  });
  const wrong = await list("-l", "team");
  expect([wrong.exitCode, wrong.stdout, wrong.stderr]).toEqual([
    2,
    "",
    'error: --selector "team": must be a comma-separated list of key=value pairs\n  next: Write --selector KEY=VALUE,KEY2=VALUE2\n',
  ]);
  expect((await list("--page-token", "made-up")).exitCode).toBe(2);
  await openshell.ok(["sandbox", "delete", "labelled"]);
});

test("completions know what exists, and start no gateway", async () => {
  const complete = async (...words: string[]) => {
    const { exitCode, stdout, stderr } = await openshell.run(["__complete", "bash", ...words]);
    expect([exitCode, stderr]).toEqual([0, ""]);
    return stdout.split("\n").slice(0, -1);
  };
  await openshell.ok(["provider", "create", "--name", "model", "--type", "generic", "--credential", "KEY=-"], {
    stdin: "x\n",
  });
  expect(await complete("sandbox", "exec", "d")).toEqual(["dev"]);
  expect(await complete("provider", "get", "")).toEqual(["model"]);
  expect(await complete("--workspace", "")).toEqual(["default"]);
  expect(await complete("policy", "get", "dev", "--rev", "1")).toContain("1");
  await openshell.ok(["sandbox", "delete", "dev"]);
  await openshell.ok(["gateway", "stop"]);
  expect(await complete("sandbox", "exec", "d")).toEqual([]);
  expect(await openshell.json(["gateway", "status"])).toMatchObject({ pid: null });
});
