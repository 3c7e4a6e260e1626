import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TestGateway, type TestSandbox } from "../../support/api.ts";
import { type TestHost, TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";

/** Settings, and the policy of the gateway, while sandboxes run and use the network. */

const POLICY = `
version: 1
network_policies:
  api:
    endpoints:
      - { host: api.example-allowed.com, port: 443, protocol: rest, enforcement: enforce, access: read-only }
    binaries: [{ path: "/**" }]
`;
const KEY = "ocsf_json_enabled";

// Delivery is the same in both modes.
describe.skipIf(mode === "user")("a change live", () => {
  let before: Inventory;
  let net: TestInternet;
  let host: TestHost;
  let gateway: TestGateway;
  let sandbox: TestSandbox;

  beforeAll(async () => {
    before = takeInventory();
    net = await TestInternet.start();
    host = await net.host("api.example-allowed.com");
    gateway = await TestGateway.start(net);
    sandbox = await gateway.create({ policy: POLICY });
  }, 60_000);
  afterAll(async () => {
    await gateway?.[Symbol.asyncDispose]();
    await net?.[Symbol.asyncDispose]();
    await expectNoLeaks(before);
  });

  const settings = (...args: string[]) => gateway.user.ok(["settings", ...args]);
  const ask = (path: string) => sandbox.sh(`curl -sS -o /dev/null https://api.example-allowed.com/${path}`);
  /** Records of the JSON file that speak of a path. */
  function records(path: string): readonly string[] {
    const folder = join(gateway.folders.state, "sandboxes", sandbox.id, "logs");
    if (!existsSync(folder)) return [];
    return readdirSync(folder)
      .filter((name) => /^openshell-ocsf\..*\.jsonl$/.test(name))
      .flatMap((name) => readFileSync(join(folder, name), "utf8").split("\n"))
      .filter((line) => line.includes(`/${path}`));
  }
  /** The lines have a request once its event was written, and the records have it then or never. */
  async function asked(path: string): Promise<void> {
    await ask(path);
    await sandbox.logged(new RegExp(`HTTP:GET .*/${path}`));
  }

  test("of a setting switches the JSON records of a sandbox, and no tunnel notices", { timeout: 60_000 }, async () => {
    const stream = sandbox
      .sh("curl -sS -N -o /dev/null 'https://api.example-allowed.com/chunks?count=1000000&size=10&interval=50'")
      .catch(() => undefined);
    await expect.poll(() => host.received().connections.length, { timeout: 20_000 }).toBe(1);
    await asked("without");
    await settings("set", sandbox.name, "--key", KEY, "--value", "on");
    await asked("with");
    await expect.poll(() => records("with").length, { timeout: 5_000 }).toBeGreaterThan(0);
    expect(JSON.parse(records("with")[0]!)).toMatchObject({ class_uid: expect.any(Number) });
    expect(records("without")).toEqual([]);

    await settings("set", "--global", "--key", KEY, "--value", "off", "--yes");
    await sandbox.logged(/CONFIG:CONFIGURED .*Setting changed \[key:ocsf_json_enabled old:true new:false\]/);
    await asked("stopped");
    expect(records("stopped")).toEqual([]);
    const managed = await gateway.user.run(["settings", "delete", sandbox.name, "--key", KEY]);
    expect([managed.exitCode, managed.stderr]).toEqual([1, expect.stringContaining("is managed globally")]);
    const shown = JSON.parse(await settings("get", sandbox.name, "--json"));
    expect(shown.settings[KEY]).toEqual({ value: "false", scope: "global" });

    await settings("delete", "--global", "--key", KEY, "--yes");
    await sandbox.logged(/Setting changed \[key:ocsf_json_enabled old:false new:true\]/);
    await asked("again");
    await expect.poll(() => records("again").length, { timeout: 5_000 }).toBeGreaterThan(0);
    await settings("delete", sandbox.name, "--key", KEY);
    await asked("after");
    expect(records("after")).toEqual([]);

    expect(host.received().connections[0]).toMatchObject({ closed: false });
    const lines = await sandbox.logs();
    expect(lines.filter((line) => /NET:RESET|CONFIG:LOADED|DENIED/.test(line))).toEqual([]);
    await sandbox.delete();
    await stream;
  });

  test("of the policy of the gateway holds in every sandbox until it is removed", { timeout: 60_000 }, async () => {
    const one = await gateway.create({ policy: POLICY });
    const status = async (of: TestSandbox) =>
      (await of.sh("curl -sS -o /dev/null -w '%{http_code}' https://api.example-allowed.com/x")).stdout;
    const policy = (...args: string[]) => gateway.user.ok(["policy", ...args]);
    expect(await status(one)).toBe("200");
    const rules = POLICY.replace("access: read-only", 'rules: [{ allow: { method: POST, path: "/**" } }]');
    const file = gateway.user.home.write("global.yaml", rules);
    await policy("set", "--global", "--policy", file, "--yes");
    await one.logged(/CONFIG:LOADED .*Policy reloaded/);
    // One that is created meanwhile has it from its first request.
    const two = await gateway.create({ policy: POLICY });
    expect([await status(one), await status(two)]).toEqual(["403", "403"]);
    const own = await gateway.user.run(["policy", "set", one.name, "--policy", file]);
    expect([own.exitCode, own.stderr]).toEqual([1, expect.stringContaining("is managed globally")]);
    const shown = JSON.parse(await policy("get", one.name, "-o", "json"));
    expect(shown).toMatchObject({ policy_source: "global", global_policy_version: 1 });
    await policy("delete", "--global", "--yes");
    await expect.poll(() => status(one), { timeout: 5_000 }).toBe("200");
    await expect.poll(() => status(two), { timeout: 5_000 }).toBe("200");
    await Promise.all([one.delete(), two.delete()]);
  });
});
