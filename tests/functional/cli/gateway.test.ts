import { once } from "node:events";
import { basename } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, runProcesses, takeInventory } from "../../support/leaks.ts";
import { TestOpenShell } from "../../support/openshell.ts";
import { OtherBuild } from "../../support/other-build.ts";

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
  readonly version: string | null;
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

test("an upgrade and a downgrade: gateways are replaced and say so, hosts are adopted, sandboxes notice nothing", async () => {
  await using openshell = TestOpenShell.create(net);
  using next = new OtherBuild(openshell.home.folder, "0.2.0");
  const options = { env: openshell.env, cwd: openshell.home.path(), timeoutMs: 60_000 };
  const older = (...args: string[]) => openshell.run(args, options);
  const newer = (...args: string[]) => net.run([...next.command, ...args], options);
  // Pid, start time and program.
  const hosts = () =>
    runProcesses()
      .map(({ description }) => description)
      .filter((description) => description.includes("host.mjs"));
  const until = "i=0; while [ ! -e ~/stop ]; do i=$((i + 1)); echo $i; sleep 0.05; done; exit 5";
  // The first command starts the gateway, and stays attached through everything below.
  const attached = openshell.spawn(["sandbox", "create", "--name", "dev", "--", "sh", "-c", until]);
  const ended = once(attached, "exit");
  let output = "";
  attached.stdout!.on("data", (chunk: Buffer) => {
    output += String(chunk);
  });
  const lines = () => output.split("\n").length - 1;
  await expect.poll(lines, { timeout: 60_000 }).toBeGreaterThan(3);
  const before = await statusOf(openshell);
  const [host] = hosts();
  const main = ["sandbox", "exec", "dev", "--", "sh", "-c", "pgrep -of 'while .* ~/stop'"];
  const pid = (await older(...main)).stdout;
  expect(pid).toMatch(/^\d+\n$/);

  const upgraded = await newer(...main);
  expect([upgraded.exitCode, upgraded.stdout]).toEqual([0, pid]);
  const replacing = (version: string) =>
    `openshell: replacing the running gateway (version ${version}, another build); sandboxes keep running\n`;
  expect(upgraded.stderr).toBe(replacing("0.1.0"));
  const status = JSON.parse((await newer("gateway", "status", "-o", "json")).stdout) as GatewayStatus;
  expect(status).toMatchObject({
    status: "running",
    version: "0.2.0",
    build: basename(next.folder),
    auto_started: true,
  });
  expect(status.pid).not.toBe(before.pid);
  // The host of the older build goes on under the newer gateway.
  expect(hosts()).toEqual([host]);
  const seen = lines();
  await expect.poll(lines, { timeout: 20_000 }).toBeGreaterThan(seen + 3);
  expect((await newer(...main)).stderr).toBe("");

  const downgraded = await older(...main);
  expect([downgraded.exitCode, downgraded.stdout, downgraded.stderr]).toEqual([0, pid, replacing("0.2.0")]);
  expect(await statusOf(openshell)).toMatchObject({ version: "0.1.0", build: before.build });
  expect(hosts()).toEqual([host]);
  await openshell.ok(["sandbox", "exec", "dev", "--", "sh", "-c", "touch ~/stop"]);
  expect((await ended)[0]).toBe(5);
  expect(output).toBe(Array.from({ length: lines() }, (_, index) => `${index + 1}\n`).join(""));

  // A host that the newer build started, under the older gateway.
  await newer("sandbox", "create", "--name", "own", "--detach", "--", "sleep", "infinity");
  const [first] = hosts();
  process.kill(Number.parseInt(first!, 10), "SIGKILL");
  const echo = ["sandbox", "exec", "own", "--", "echo", "on"];
  await expect.poll(async () => (await newer(...echo)).stdout, { timeout: 20_000 }).toBe("on\n");
  const young = hosts();
  expect(young).toEqual([expect.stringContaining(next.folder)]);
  const again = await older(...echo);
  expect([again.exitCode, again.stdout, again.stderr]).toEqual([0, "on\n", replacing("0.2.0")]);
  expect(hosts()).toEqual(young);
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
