import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
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

const UNIT = "openshell-gateway-openshell.service";
const unitFile = (openshell: TestOpenShell) => join(openshell.home.config, "systemd/user", UNIT);

interface Status {
  readonly status: string;
  readonly pid: number;
  readonly auto_started: boolean;
}
const statusOf = (openshell: TestOpenShell) => openshell.json<Status>(["gateway", "status"]);

test("without a user manager: the service is described, and the gateway that runs is left alone", async () => {
  // The manager of whoever runs the tests is none of theirs.
  await using openshell = TestOpenShell.create(net, { env: { DBUS_SESSION_BUS_ADDRESS: undefined } });
  await openshell.ok(["sandbox", "list"], { timeoutMs: 60_000 });
  const { pid } = await statusOf(openshell);
  const result = await openshell.run(["gateway", "start", "--service"]);
  expect([result.exitCode, result.stdout]).toEqual([1, ""]);
  expect(result.stderr).toMatch(/^error: the service is not started: systemd's user manager does not answer here/);
  expect(result.stderr).toMatch(/^ {2}next: .*systemctl --user enable --now/m);
  expect(existsSync(unitFile(openshell))).toBe(true);
  expect(await statusOf(openshell)).toMatchObject({ status: "running", pid });
  const gone = await openshell.run(["gateway", "stop", "--service"]);
  expect([gone.exitCode, gone.stderr]).toEqual([0, expect.stringContaining(`Service ${UNIT} removed.`)]);
  expect(existsSync(unitFile(openshell))).toBe(false);
});

test("a gateway in the foreground is the process that was started", async () => {
  await using openshell = TestOpenShell.create(net);
  const child = openshell.spawn(["gateway", "start", "--foreground"], { stdio: ["ignore", "ignore", "inherit"] });
  await expect
    .poll(() => statusOf(openshell), { timeout: 20_000 })
    .toMatchObject({
      status: "running",
      pid: child.pid,
      auto_started: false,
    });
  const ended = new Promise((resolve) => child.once("exit", (code, signal) => resolve([code, signal])));
  child.kill("SIGTERM");
  expect(await ended).toEqual([0, null]);
  expect(await statusOf(openshell)).toMatchObject({ status: "stopped" });
});

/**
 * Does with the unit what `systemctl --user` would, as far as these tests go: starts its ExecStart with its Environment,
 * signals that one process, and knows whether it lives. systemd itself is not run here: as root it takes every process of
 * the machine's control group for its own.
 */
const SYSTEMCTL = `#!/bin/sh
shift
unit=$XDG_CONFIG_HOME/systemd/user/${UNIT}
pid=$HOME/service.pid
echo "$*" >>"$HOME/systemctl.log"
alive() { [ -f "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }
end() { if alive; then kill -TERM "$(cat "$pid")"; while alive; do sleep 0.02; done; fi; rm -f "$pid"; }
begin() {
  command=$(sed -n 's/^ExecStart=//p' "$unit")
  variables=$(sed -n 's/^Environment=//p' "$unit" | tr '\\n' ' ')
  setsid sh -c 'echo $$ >"$1"; eval "exec env -i HOME=\\"\\$HOME\\" $2 $3"' sh "$pid" "$variables" "$command" </dev/null >/dev/null 2>&1 &
}
case $1 in
  start) alive || begin ;;
  restart) end; begin ;;
  stop) end ;;
  is-active) alive ;;
  is-failed) exit 1 ;;
  enable) mkdir -p "$(dirname "$unit")/default.target.wants"; ln -sf "$unit" "$(dirname "$unit")/default.target.wants/" ;;
esac
`;

test("sandboxes outlive the gateway's move into the service and its restart; it is started once, and removed again", async () => {
  await using openshell = TestOpenShell.create(net);
  const stand = openshell.home.path("bin");
  mkdirSync(stand);
  openshell.home.write("bin/systemctl", SYSTEMCTL, 0o755);
  const env = { PATH: `${stand}:${process.env["PATH"]}` };
  const asked = () => readFileSync(openshell.home.path("systemctl.log"), "utf8").trim().split("\n");
  const start = () => openshell.run(["gateway", "start", "--service"], { env, timeoutMs: 60_000 });
  const create = ["sandbox", "create", "--detach", "--", "sleep", "infinity"];
  await openshell.ok(create.toSpliced(2, 0, "--name", "dev"), { timeoutMs: 60_000 });
  const startedAt = async () =>
    (await openshell.json<{ main_process_started_time: string }>(["sandbox", "get", "dev"])).main_process_started_time;
  const main = await startedAt();
  const untouched = async (word: string) => {
    const exec = ["sandbox", "exec", "dev", "--", "echo", word];
    await expect.poll(async () => (await openshell.run(exec)).stdout, { timeout: 20_000 }).toBe(`${word}\n`);
    expect(await startedAt()).toBe(main);
  };
  const auto = await statusOf(openshell);

  const first = await start();
  expect([first.exitCode, first.stderr]).toEqual([0, expect.stringContaining(`runs as the service ${UNIT}`)]);
  expect(first.stderr).toContain("openshell: replacing the running gateway; sandboxes keep running\n");
  const service = await statusOf(openshell);
  expect(service).toMatchObject({ status: "running", auto_started: false });
  expect(service.pid).not.toBe(auto.pid);
  // The unit's own process is the gateway: that is what systemd signals and watches.
  expect(readFileSync(openshell.home.path("service.pid"), "utf8").trim()).toBe(String(service.pid));
  await untouched("moved");

  const again = await start();
  expect([again.exitCode, again.stderr]).toEqual([0, expect.stringContaining("runs already as the service")]);
  expect((await statusOf(openshell)).pid).toBe(service.pid);
  expect(asked().filter((line) => /^(re)?start /.test(line))).toEqual([`start ${UNIT}`]);

  // Another description, such as after a change of PATH: the gateway is restarted, its sandboxes are not.
  const changed = await openshell.run(["gateway", "start", "--service"], { env: { PATH: `${env.PATH}:/opt/bin` } });
  expect(changed.exitCode, changed.stderr).toBe(0);
  expect(asked().filter((line) => /^(re)?start /.test(line))).toEqual([`start ${UNIT}`, `restart ${UNIT}`]);
  await untouched("restarted");

  const refused = await openshell.run(["gateway", "stop", "--service"], { env });
  expect([refused.exitCode, refused.stderr]).toEqual([1, expect.stringContaining("--sandboxes keep")]);
  expect(existsSync(unitFile(openshell))).toBe(true);
  await openshell.ok(["gateway", "stop", "--service", "--sandboxes", "stop"], { env, timeoutMs: 60_000 });
  expect(existsSync(unitFile(openshell))).toBe(false);
  expect(readdirSync(join(unitFile(openshell), "../default.target.wants"))).toEqual([]);
  expect(await statusOf(openshell)).toMatchObject({ status: "stopped" });
});
