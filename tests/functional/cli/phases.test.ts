import { once } from "node:events";
import { closeSync, openSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, runProcesses, takeInventory } from "../../support/leaks.ts";
import { TestOpenShell } from "../../support/openshell.ts";

/** What becomes of a sandbox when its main process ends, or its machine: one test a way to create it. */

let before: Inventory;
let net: TestInternet;
let openshell: TestOpenShell;
/** Processes that are the tests' own. */
let surroundings: ReadonlySet<number>;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  surroundings = new Set(runProcesses().map(({ pid }) => pid));
  openshell = TestOpenShell.create(net);
  await openshell.ok(["gateway", "start"], { timeoutMs: 60_000 });
});

afterAll(async () => {
  await openshell[Symbol.asyncDispose]();
  await net[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

interface Shown {
  readonly phase: string;
  readonly exit_code: number | null;
  readonly restart_count: number;
  readonly next_restart_time: string | null;
  readonly main_process_started_time: string | null;
  readonly conditions: readonly { readonly type: string; readonly reason: string }[];
}
const get = (name: string) => openshell.json<Shown>(["sandbox", "get", name]);
const reason = ({ conditions }: Shown) => conditions.find(({ type }) => type === "Ready")?.reason;
const create = (name: string, ...args: string[]) => openshell.run(["sandbox", "create", "--name", name, ...args]);
const names = async () => (await openshell.ok(["sandbox", "list", "--names"])).split("\n").filter(Boolean);
const remove = (...sandboxes: string[]) => openshell.ok(["sandbox", "delete", ...sandboxes]);

test("no command: a login shell on a terminal that stays, with the shell's status", async () => {
  const shell = await openshell.run(["sandbox", "create", "--name", "shell"], {
    stdin: "shopt -q login_shell && test -t 0 && echo a login $((40 + 2)); exit 7\n",
  });
  expect([shell.exitCode, shell.stdout]).toEqual([7, expect.stringContaining("a login 42")]);
  await expect.poll(() => get("shell")).toMatchObject({ phase: "Error", exit_code: 7 });
  await remove("shell");
});

test.each([
  ["exit 0", 0, "Completed", "MainProcessCompleted"],
  ["exit 3", 3, "Error", "MainProcessFailed"],
  ["kill -9 $$", 137, "Error", "MainProcessFailed"],
])("-- %s: status %i, phase %s, and it can be started again", async (script, code, phase, why) => {
  const ended = await create("job", "--", "sh", "-c", `echo out; echo err >&2; ${script}`);
  expect([ended.exitCode, ended.stdout, ended.stderr]).toEqual([code, "out\n", expect.stringMatching(/^err$/m)]);
  await expect.poll(() => get("job")).toMatchObject({ phase, exit_code: code });
  const shown = await get("job");
  expect(reason(shown)).toBe(why);
  expect(shown.main_process_started_time).not.toBeNull();
  const stopped = await openshell.run(["sandbox", "stop", "job"]);
  expect([stopped.exitCode, stopped.stderr]).toEqual([1, expect.stringMatching(/cannot be stopped in phase/)]);
  expect((await openshell.run(["sandbox", "start", "job"])).exitCode).toBe(0);
  await expect.poll(() => get("job")).toMatchObject({ phase, exit_code: code, restart_count: 0 });
  await remove("job");
});

test("-- CMD whose output cannot be delivered: a failure, although the command succeeded", async () => {
  const full = openSync("/dev/full", "w");
  try {
    const child = openshell.spawn(["sandbox", "create", "--name", "full", "--", "echo", "out"], {
      stdio: ["ignore", full, "pipe"],
    });
    expect((await once(child, "exit"))[0]).toBe(74);
  } finally {
    closeSync(full);
  }
  await expect.poll(() => get("full")).toMatchObject({ phase: "Completed", exit_code: 0 });
  await remove("full");
});

test("--detach -- CMD: 0 once it was ready, and its end is recorded without anybody being there", async () => {
  const started = performance.now();
  expect((await create("long", "--detach", "--", "sleep", "infinity")).exitCode).toBe(0);
  expect(await get("long")).toMatchObject({ phase: "Ready", exit_code: null });
  const brief = await create("brief", "--detach", "--", "sh", "-c", "exit 5");
  expect(brief.exitCode, brief.stderr).toBe(0);
  await expect.poll(() => get("brief")).toMatchObject({ phase: "Error", exit_code: 5 });
  expect(performance.now() - started).toBeLessThan(30_000);
  await remove("long", "brief");
});

test("--no-keep: gone when its command has ended, with somebody there or not", async () => {
  const attached = await create("gone", "--no-keep", "--", "sh", "-c", "echo out; exit 6");
  expect([attached.exitCode, attached.stdout]).toEqual([6, "out\n"]);
  expect(await names()).toEqual([]);
  for (const script of ["exit 6", "sleep 1; exit 6"]) {
    const detached = await create("gone", "--detach", "--no-keep", "--", "sh", "-c", script);
    expect(detached.exitCode, detached.stderr).toBe(0);
    await expect.poll(names, { timeout: 20_000 }).toEqual([]);
  }
});

/** Fails `failures` times, counting its runs in its home; then it stays. */
const flaky = (failures: number) =>
  `echo run >>~/runs; echo "run $(wc -l <~/runs)"; [ $(wc -l <~/runs) -gt ${failures} ] || exit 3; exec sleep infinity`;
const runsOf = async (name: string) =>
  (await openshell.ok(["sandbox", "exec", name, "--", "cat", "/sandbox/runs"])).trim().split("\n").length;

test("--restart-policy on-failure: the status of the first run is the caller's, the next ones begin by themselves", async () => {
  const first = await create("again", "--restart-policy", "on-failure", "--", "sh", "-c", flaky(2));
  expect([first.exitCode, first.stdout]).toEqual([3, "run 1\n"]);
  expect(first.stderr).toMatch(
    /again is started again by its restart policy; `openshell sandbox stop again` ends that/,
  );
  await expect.poll(() => get("again"), { timeout: 20_000 }).toMatchObject({ phase: "Ready", restart_count: 2 });
  expect(await get("again")).toMatchObject({ exit_code: null, next_restart_time: null });
  expect(await runsOf("again")).toBe(3);
  await openshell.ok(["sandbox", "stop", "again"]);
  await openshell.ok(["sandbox", "start", "again"]);
  expect(await get("again")).toMatchObject({ phase: "Ready", restart_count: 0 });
  await remove("again");
  const refused = await create("never", "--no-keep", "--restart-policy", "always", "--", "true");
  expect([refused.exitCode, refused.stderr]).toEqual([2, expect.stringContaining("--no-keep")]);
});

test("a restart that is waited for is shown, outlives kill -9 of the gateway once, and is called off by a stop", async () => {
  const created = await create("wait", "--detach", "--restart-policy", "always", "--", "sh", "-c", flaky(4));
  expect(created.exitCode, created.stderr).toBe(0);
  // Waits of 0, 1, 2 and 4 s.
  await expect
    .poll(() => get("wait"), { timeout: 20_000 })
    .toMatchObject({
      phase: "Starting",
      exit_code: 3,
      restart_count: 2,
      next_restart_time: expect.any(String),
    });
  const { pid } = await openshell.json<{ pid: number }>(["gateway", "status"]);
  process.kill(pid, "SIGKILL");
  await expect
    .poll(() => get("wait"), { timeout: 30_000 })
    .toMatchObject({ phase: "Starting", exit_code: 3, restart_count: 3, next_restart_time: expect.any(String) });
  await openshell.ok(["sandbox", "stop", "wait"]);
  expect(await get("wait")).toMatchObject({ phase: "Stopped", next_restart_time: null });
  await openshell.ok(["sandbox", "start", "wait"]);
  await expect.poll(() => get("wait"), { timeout: 20_000 }).toMatchObject({ phase: "Ready", restart_count: 0 });
  expect(await runsOf("wait")).toBe(5);
  await remove("wait");
});

test("another boot of the machine: what ran was stopped, and runs again where its restart policy says so", async () => {
  const note = "echo kept >~/note; exec sleep infinity";
  await create("still", "--detach", "--", "sh", "-c", note);
  await create("back", "--detach", "--restart-policy", "on-failure", "--", "sh", "-c", note);
  await openshell.ok(["gateway", "stop", "--sandboxes", "keep"]);
  // The machine goes down: no process is left, and what was written names an earlier boot.
  const ours = () =>
    runProcesses().filter(
      ({ pid, description }) => !surroundings.has(pid) && /host\.mjs|openshell-init/.test(description),
    );
  expect(ours().length).toBeGreaterThan(2);
  for (const { pid } of ours()) {
    try {
      process.kill(pid, "SIGKILL");
    } catch {
      // It ended with one that was killed before it.
    }
  }
  await expect.poll(ours, { timeout: 10_000 }).toEqual([]);
  const database = new DatabaseSync(join(openshell.home.state, "openshell", "openshell", "gateway.db"));
  const boot = "00000000-1111-2222-3333-444444444444";
  database.prepare("UPDATE sandboxes SET runtime_record = json_set(runtime_record, '$.bootId', ?)").run(boot);
  database.prepare("UPDATE hosts SET boot_id = ?").run(boot);
  database.close();

  await openshell.ok(["gateway", "start"], { timeoutMs: 60_000 });
  await expect.poll(() => get("back"), { timeout: 20_000 }).toMatchObject({ phase: "Ready", restart_count: 1 });
  const still = await get("still");
  expect([still.phase, reason(still)]).toEqual(["Stopped", "MachineRestarted"]);
  await openshell.ok(["sandbox", "start", "still"]);
  for (const name of ["back", "still"])
    expect(await openshell.ok(["sandbox", "exec", name, "--", "cat", "/sandbox/note"])).toBe("kept\n");
  await remove("back", "still");
});
