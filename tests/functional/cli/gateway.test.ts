import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { TestOpenShell } from "../../support/openshell.ts";

let before: Inventory;
let net: TestInternet;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
});

afterAll(async () => {
  await net[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

interface GatewayStatus {
  readonly status: string;
  readonly pid: number | null;
  readonly build: string | null;
  readonly auto_started: boolean | null;
  readonly running_sandboxes: number | null;
}
const statusOf = (openshell: TestOpenShell) => openshell.json<GatewayStatus>(["gateway", "status"]);

test("the first command starts the gateway and says so once; status and stop never start one", async () => {
  await using openshell = TestOpenShell.create(net);
  expect(await statusOf(openshell)).toMatchObject({ status: "stopped", pid: null });
  expect(await openshell.json(["status"])).toMatchObject({ status: "disconnected" });
  expect((await openshell.run(["gateway", "stop"])).exitCode).toBe(0);
  expect(openshell.processes()).toEqual([]);
  const first = await openshell.run(["run", "--", "echo", "hi"]);
  expect([first.exitCode, first.stdout]).toEqual([0, "hi\n"]);
  expect(first.stderr).toMatch(/^openshell: starting the gateway \(.*\)\n$/);
  expect((await openshell.run(["run", "--", "true"])).stderr).toBe("");
  expect(await statusOf(openshell)).toMatchObject({ status: "running", auto_started: true, running_sandboxes: 0 });
  expect(await openshell.json(["status"])).toMatchObject({
    status: "connected",
    authentication: { status: "authenticated" },
  });
});

test("five first commands at once start one gateway", async () => {
  await using openshell = TestOpenShell.create(net);
  const results = await Promise.all(
    [1, 2, 3, 4, 5].map((n) => openshell.run(["run", "--", "echo", String(n)], { timeoutMs: 60_000 })),
  );
  expect(results.map((result) => [result.exitCode, result.stdout])).toEqual([1, 2, 3, 4, 5].map((n) => [0, `${n}\n`]));
  expect(results.filter((result) => result.stderr.includes("starting the gateway"))).toHaveLength(1);
});

test("stop refuses while sandboxes run; kept ones are there for the next gateway", async () => {
  await using openshell = TestOpenShell.create(net);
  await openshell.ok(["sandbox", "create", "--name", "dev", "--detach", "--", "sleep", "infinity"], {
    timeoutMs: 60_000,
  });
  const refused = await openshell.run(["gateway", "stop"]);
  expect([refused.exitCode, refused.stderr]).toEqual([1, expect.stringContaining("--sandboxes keep")]);
  await openshell.ok(["gateway", "stop", "--sandboxes", "keep"]);
  expect(await statusOf(openshell)).toMatchObject({ status: "stopped" });
  const again = await openshell.run(["sandbox", "exec", "dev", "--", "echo", "still here"]);
  expect([again.exitCode, again.stdout]).toEqual([0, "still here\n"]);
});

test("a gateway that was killed is replaced by the next command", async () => {
  await using openshell = TestOpenShell.create(net);
  await openshell.ok(["run", "--", "true"], { timeoutMs: 60_000 });
  const { pid } = await statusOf(openshell);
  process.kill(pid!, "SIGKILL");
  expect(await openshell.ok(["run", "--", "echo", "back"])).toBe("back\n");
  expect((await statusOf(openshell)).pid).not.toBe(pid);
});

test("a gateway of another build is replaced, and its sandboxes go on", async () => {
  const dist = resolve(import.meta.dirname, "../../../dist");
  const [key] = readFileSync(join(dist, "stamp"), "utf8").split(" ");
  const folder = mkdtempSync(join(tmpdir(), "openshell-build-"));
  try {
    for (const name of readdirSync(join(dist, key!))) {
      if (name !== "compile-cache") cpSync(join(dist, key!, name), join(folder, name), { recursive: true });
    }
    const command = [process.execPath, join(folder, "cli.mjs")];
    await using openshell = TestOpenShell.create(net);
    await openshell.ok(["sandbox", "create", "--name", "dev", "--detach", "--", "sleep", "infinity"], {
      timeoutMs: 60_000,
    });
    const old = await statusOf(openshell);
    const options = { env: openshell.env, cwd: openshell.home.path(), timeoutMs: 60_000 };
    const replaced = await net.run([...command, "sandbox", "exec", "dev", "--", "echo", "on"], options);
    expect([replaced.exitCode, replaced.stdout]).toEqual([0, "on\n"]);
    expect(replaced.stderr).toContain("replacing the running gateway");
    const now = await statusOf(openshell);
    expect(now.build).not.toBe(old.build);
    expect(now.pid).not.toBe(old.pid);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test.each(["SIGKILL", "SIGTERM"] as const)(
  "an attached command outlives its gateway (%s), byte for byte",
  async (signal) => {
    await using openshell = TestOpenShell.create(net);
    await openshell.ok(["run", "--", "true"], { timeoutMs: 60_000 });
    const count = "i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 5";
    const running = openshell.run(["run", "--", "sh", "-c", count], { timeoutMs: 60_000 });
    await expect.poll(async () => (await statusOf(openshell)).running_sandboxes, { timeout: 10_000 }).toBe(1);
    await new Promise((resolve) => setTimeout(resolve, 500));
    process.kill((await statusOf(openshell)).pid!, signal);
    // A gateway that crashed is brought back by the command itself, one that was stopped by whoever needs it next.
    if (signal === "SIGTERM") {
      await expect.poll(async () => (await statusOf(openshell)).status, { timeout: 10_000 }).toBe("stopped");
      await openshell.ok(["sandbox", "list"], { timeoutMs: 60_000 });
    }
    const { exitCode, stdout } = await running;
    const lines = Array.from({ length: 30 }, (_, index) => `${index + 1}\n`).join("");
    expect([exitCode, stdout]).toEqual([5, lines]);
    expect(await openshell.ok(["sandbox", "list", "--names"])).toBe("");
  },
);

test("a gateway that cannot start says why and what to do", async () => {
  await using openshell = TestOpenShell.create(net, { gateway: { extra: "[openshell.gateway]\nlog_levle = 'info'" } });
  const result = await openshell.run(["run", "--", "true"]);
  expect(result.exitCode).toBe(1);
  expect(result.stderr).toMatch(/error: the gateway did not start: .*log_levle/);
  expect(result.stderr).toMatch(/next: .*log_level/);
});

test("a remote client uses the certificates that the gateway wrote", async () => {
  await using openshell = TestOpenShell.create(net);
  await openshell.ok(["gateway", "start"], { timeoutMs: 60_000 });
  const { endpoint } = await openshell.json<{ endpoint: string }>(["gateway", "status"]);
  const remote = ["--gateway-endpoint", endpoint];
  expect(await openshell.json(["status", ...remote])).toMatchObject({
    status: "connected",
    authentication: { status: "authenticated", provider: "mtls" },
  });
  expect(await openshell.ok(["run", ...remote, "--", "echo", "over TLS"])).toBe("over TLS\n");
  const volume = await openshell.run(["run", ...remote, "--volume", "/tmp:/work", "--", "true"]);
  expect([volume.exitCode, volume.stderr]).toEqual([2, expect.stringContaining("--volume")]);
});
