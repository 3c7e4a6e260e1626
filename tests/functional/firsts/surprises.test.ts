import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { OPENSHELL, TestOpenShell } from "../../support/openshell.ts";

/** What surprised somebody who tried OpenShell on a plain account, and must not again. */
describe.skipIf(mode === "root")("on a plain account", () => {
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

  /** `openshell ARGS…` by way of a shell that changes its surroundings first. */
  const within = (script: string, args: readonly string[], env: Record<string, string | undefined> = {}) =>
    net.run(["sh", "-c", `${script}; exec "$@"`, "sh", ...OPENSHELL, ...args], {
      env: { ...openshell.env, ...env },
      cwd: openshell.home.path(),
    });

  test("a program that shows only 403 is followed by what the policy refused, without a terminal too", async () => {
    const refused = await openshell.run(["run", "--", "git", "clone", "-q", "https://git.example.com/tool.git"]);
    expect(refused.exitCode).toBe(128);
    expect(refused.stderr).toMatch(
      /openshell: the policy refused once:\n .*git.* -> git\.example\.com:443: .*\n +next: Add network_policies/,
    );
    const line = await openshell.run(["run", "echo hi"]);
    expect([line.exitCode, line.stderr]).toEqual([127, expect.stringContaining("Write it without quotes: -- echo hi")]);
  });

  test("exec brings back a gateway that was killed, as every other command does", async () => {
    const record = join(openshell.home.runtime, "openshell/openshell/gateway.json");
    const { pid } = JSON.parse(readFileSync(record, "utf8")) as { pid: number };
    process.kill(pid, "SIGKILL");
    await expect.poll(() => existsSync(`/proc/${pid}`), { timeout: 10_000 }).toBe(false);
    const result = await openshell.run(["sandbox", "exec", "dev", "--", "echo", "back"]);
    expect([result.exitCode, result.stdout, result.stderr]).toEqual([
      0,
      "back\n",
      expect.stringContaining("starting the gateway"),
    ]);
  });

  test("exec in a stopped sandbox says how it is started", async () => {
    await openshell.ok(["sandbox", "stop", "dev"]);
    const { exitCode, stderr } = await openshell.run(["sandbox", "exec", "dev", "--", "true"]);
    expect([exitCode, stderr]).toEqual([
      1,
      "error: sandbox dev is stopped\n  next: Start it with `openshell sandbox start dev`, and try again\n  code: sandbox_stopped\n",
    ]);
    await openshell.ok(["sandbox", "start", "dev"]);
  });

  test("a folder with spaces and umlauts, and any umask", async () => {
    const project = openshell.home.path("mein projekt ä ö");
    mkdirSync(project);
    const run = ["run", "--volume", `${project}:/work`, "--workdir", "/work", "--", "sh", "-c"];
    const { exitCode, stdout } = await within("umask 777", [...run, 'pwd; umask; echo x > "ü"; cat "ü"']);
    expect([exitCode, stdout]).toEqual([0, "/work\n0022\nx\n"]);
    expect(readFileSync(join(project, "ü"), "utf8")).toBe("x\n");
  });

  test("relative XDG folders and a relative HOME are not followed", async () => {
    const relative = { XDG_STATE_HOME: "s", XDG_CONFIG_HOME: undefined, XDG_RUNTIME_DIR: "", HOME: "h" };
    const { stdout } = await within(":", ["gateway", "status", "-o", "json"], relative);
    expect(JSON.parse(stdout)).toMatchObject({ state: expect.stringMatching(/^\/.*\.local\/state\/openshell/) });
    for (const name of ["s", "h"]) expect(existsSync(openshell.home.path(name)), name).toBe(false);
  });

  test("a home that cannot be written and a current folder that is gone are named, with what to do", async () => {
    const without = { XDG_STATE_HOME: undefined, XDG_CONFIG_HOME: undefined, XDG_RUNTIME_DIR: undefined };
    const home = await within(":", ["run", "--", "true"], { ...without, HOME: "/nonexistent" });
    expect([home.exitCode, home.stderr]).toEqual([
      1,
      expect.stringMatching(/^error: the folder \/nonexistent\/\S+ cannot be made or used \(\w+\)\n {2}next: Set HOME/),
    ]);
    const gone = await within("mkdir gone && cd gone && rmdir ../gone", ["run", "--volume", ".:/work", "--", "true"]);
    expect([gone.exitCode, gone.stderr]).toEqual([
      2,
      expect.stringContaining("the current folder does not exist any more"),
    ]);
  });

  test("where no user namespace can be made, the error names the switches and not a disk", async () => {
    const other = TestOpenShell.create(net);
    const uid = String(process.getuid?.());
    // The outer namespace allows one more, which becomes the caller's own again.
    const inner = ["unshare", "--user", `--map-user=${uid}`, `--map-group=${uid}`, ...OPENSHELL, "run", "--", "true"];
    const script = 'echo 1 > /proc/sys/user/max_user_namespaces && exec "$@"';
    const { exitCode, stderr } = await net.run(["unshare", "--map-root-user", "sh", "-c", script, "sh", ...inner], {
      env: other.env,
      cwd: other.home.path(),
    });
    await other[Symbol.asyncDispose]();
    expect(exitCode).toBe(1);
    expect(stderr).toContain("the limit of namespaces is reached");
    expect(stderr).toContain("sysctl user.max_user_namespaces");
    expect(stderr).not.toContain("space left");
  });
});
