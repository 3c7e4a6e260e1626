import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "./internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "./leaks.ts";
import { TestOpenShell } from "./openshell.ts";

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

/** A program that behaves like the CLI as far as the life cycle goes: a daemon from the first command until told to stop. */
function standIn(stops: boolean): readonly string[] {
  const script = `
    case "$1 $2" in
      "gateway stop") ${stops ? 'kill "$(cat "$XDG_STATE_HOME/pid")"; while kill -0 "$(cat "$XDG_STATE_HOME/pid")" 2>/dev/null; do sleep 0.01; done' : ":"} ;;
      *) setsid sh -c 'echo $$ >"$XDG_STATE_HOME/pid"; exec sleep 999' </dev/null >/dev/null 2>&1 &
         while [ ! -s "$XDG_STATE_HOME/pid" ]; do sleep 0.01; done
         cat "$XDG_CONFIG_HOME/openshell/gateway.toml"; pwd ;;
    esac`;
  return ["sh", "-c", script, "sh"];
}

test("commands see a fresh home whose gateway trusts the test internet's CA and uses its name server", async () => {
  await using openshell = TestOpenShell.create(net, { command: standIn(true) });
  const output = await openshell.ok(["status"]);
  expect(output).toContain(`additional_ca_bundle = ${JSON.stringify(net.caFile)}`);
  expect(output).toContain('resolvers = ["28.55.0.53:53"]');
  expect(output.trim().split("\n").at(-1)).toBe(openshell.home.env["HOME"]);
  expect(openshell.processes()).toHaveLength(1);
  // The longest socket path of a gateway: 100 bytes is the product's limit.
  const socket = join(openshell.home.runtime, "openshell", "openshell", "s", "0123456789ab", "control.sock");
  expect(Buffer.byteLength(socket)).toBeLessThanOrEqual(80);
});

test("disposal stops the gateway and removes the home", async () => {
  const openshell = TestOpenShell.create(net, { command: standIn(true) });
  await openshell.ok(["status"]);
  const pid = Number(readFileSync(join(openshell.home.state, "pid"), "utf8"));
  await openshell[Symbol.asyncDispose]();
  expect(existsSync(openshell.home.folder)).toBe(false);
  expect(() => process.kill(pid, 0)).toThrow();
});

test("a gateway that does not stop fails the test, and is killed all the same", async () => {
  const openshell = TestOpenShell.create(net, { command: standIn(false) });
  await openshell.ok(["status"]);
  const pid = Number(readFileSync(join(openshell.home.state, "pid"), "utf8"));
  await expect(openshell[Symbol.asyncDispose]()).rejects.toThrow(
    /still running after openshell gateway stop.*sleep 999/s,
  );
  expect(existsSync(openshell.home.folder)).toBe(false);
  await expect.poll(() => openshell.processes()).toEqual([]);
  expect(pid).toBeGreaterThan(1);
});
