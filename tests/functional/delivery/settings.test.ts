import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, type ExpectStatic, test } from "vitest";
import type { TestGateway, TestSandbox } from "../../support/api.ts";
import { type TestHost, TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { VARIANTS, type Variant, VariantGateway } from "../../support/variants.ts";

/** Settings, and the policy of the gateway, while sandboxes run and use the network. */

const KEY = "ocsf_json_enabled";
const policyFor = (host: TestHost): string => `
version: 1
network_policies:
  api:
    endpoints:
      - { host: ${host.name}, port: 443, protocol: rest, enforcement: enforce, access: read-only }
    binaries: [{ path: "/**" }]
`;

interface Place {
  readonly gateway: TestGateway;
  readonly host: TestHost;
}

// Delivery is the same in both modes.
describe.skipIf(mode === "user")("a change live", () => {
  let before: Inventory;
  let net: TestInternet;
  const places = new Map<Variant, Place & { readonly started: VariantGateway }>();

  beforeAll(async () => {
    before = takeInventory();
    net = await TestInternet.start();
    await Promise.all(
      VARIANTS.map(async (variant) => {
        const host = await net.host(`${variant.replace(" ", "-")}.example-allowed.com`);
        const started = await VariantGateway.start(net, variant);
        places.set(variant, { host, gateway: started.gateway, started });
      }),
    );
  }, 60_000);
  afterAll(async () => {
    for (const { started } of places.values()) await started[Symbol.asyncDispose]();
    await net?.[Symbol.asyncDispose]();
    await expectNoLeaks(before);
  });

  test.concurrent.for(VARIANTS)(
    "(%s) of a setting switches what it is about, and no tunnel notices; of the gateway's policy holds until it is removed",
    { timeout: 120_000 },
    async (variant, { expect }) => {
      const place = places.get(variant)!;
      await changeSettings(place, expect);
      await changeGlobalPolicy(place, expect);
    },
  );
});

/** Records of the sandbox's JSON file that speak of a path. */
function records({ gateway }: Place, sandbox: TestSandbox, path: string): readonly string[] {
  const folder = join(gateway.folders.state, "sandboxes", sandbox.id, "logs");
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .filter((name) => /^openshell-ocsf\..*\.jsonl$/.test(name))
    .flatMap((name) => readFileSync(join(folder, name), "utf8").split("\n"))
    .filter((line) => line.includes(`/${path}`));
}

async function changeSettings(place: Place, expect: ExpectStatic): Promise<void> {
  const { gateway, host } = place;
  const sandbox = await gateway.create({ policy: policyFor(host) });
  const settings = (...args: string[]) => gateway.user.ok(["settings", ...args]);
  /** The lines have a request once its event was written, and the records have it then or never. */
  const asked = async (path: string): Promise<void> => {
    await sandbox.sh(`curl -sS -o /dev/null ${host.url(`/${path}`)}`);
    await sandbox.logged(new RegExp(`HTTP:GET .*/${path}`));
  };
  /** Waits for the change, whoever made it. */
  let told = 0;
  const changed = async (how: string): Promise<void> => {
    told += 1;
    const seen = async () => (await sandbox.logs()).filter((one) => /CONFIG:CONFIGURED/.test(one));
    await expect.poll(async () => (await seen()).length, { timeout: 10_000 }).toBe(told);
    expect((await seen()).at(-1)).toContain(how);
  };
  const stream = sandbox
    .sh(`curl -sS -N -o /dev/null '${host.url("/chunks?count=1000000&size=10&interval=50")}'`, { timeoutMs: 120_000 })
    .catch(() => undefined);
  await expect.poll(() => host.received().connections.length, { timeout: 20_000 }).toBe(1);
  await asked("without");
  await settings("set", sandbox.name, "--key", KEY, "--value", "on");
  await changed(`Setting added [key:${KEY} value:true]`);
  await asked("with");
  await expect.poll(() => records(place, sandbox, "with").length, { timeout: 5_000 }).toBeGreaterThan(0);
  expect(JSON.parse(records(place, sandbox, "with")[0]!)).toMatchObject({ class_uid: expect.any(Number) });
  expect(records(place, sandbox, "without")).toEqual([]);

  await settings("set", "--global", "--key", KEY, "--value", "off", "--yes");
  await changed(`Setting changed [key:${KEY} old:true new:false]`);
  await asked("stopped");
  expect(records(place, sandbox, "stopped")).toEqual([]);
  const managed = await gateway.user.run(["settings", "delete", sandbox.name, "--key", KEY]);
  expect([managed.exitCode, managed.stderr]).toEqual([1, expect.stringContaining("is managed globally")]);
  const shown = JSON.parse(await settings("get", sandbox.name, "--json"));
  expect(shown.settings[KEY]).toEqual({ value: "false", scope: "global" });

  await settings("delete", "--global", "--key", KEY, "--yes");
  await changed(`Setting changed [key:${KEY} old:false new:true]`);
  await asked("again");
  await expect.poll(() => records(place, sandbox, "again").length, { timeout: 5_000 }).toBeGreaterThan(0);
  await settings("delete", sandbox.name, "--key", KEY);
  await changed("Setting removed");
  await asked("after");
  expect(records(place, sandbox, "after")).toEqual([]);

  expect(host.received().connections[0]).toMatchObject({ closed: false });
  const lines = await sandbox.logs();
  expect(lines.filter((line) => /NET:RESET|CONFIG:LOADED|DENIED/.test(line))).toEqual([]);
  await sandbox.delete();
  await stream;
}

async function changeGlobalPolicy({ gateway, host }: Place, expect: ExpectStatic): Promise<void> {
  const own = policyFor(host);
  const one = await gateway.create({ policy: own });
  const status = async (of: TestSandbox) =>
    (await of.sh(`curl -sS -o /dev/null -w '%{http_code}' ${host.url("/x")}`)).stdout;
  const policy = (...args: string[]) => gateway.user.ok(["policy", ...args]);
  expect(await status(one)).toBe("200");
  const rules = own.replace("access: read-only", 'rules: [{ allow: { method: POST, path: "/**" } }]');
  const file = gateway.user.home.write("global.yaml", rules);
  await policy("set", "--global", "--policy", file, "--yes");
  await one.logged(/CONFIG:LOADED .*Policy reloaded/);
  // One that is created meanwhile has it from its first request.
  const two = await gateway.create({ policy: own });
  expect([await status(one), await status(two)]).toEqual(["403", "403"]);
  const refused = await gateway.user.run(["policy", "set", one.name, "--policy", file]);
  expect([refused.exitCode, refused.stderr]).toEqual([1, expect.stringContaining("is managed globally")]);
  const shown = JSON.parse(await policy("get", one.name, "-o", "json"));
  expect(shown).toMatchObject({ policy_source: "global", global_policy_version: 1 });
  await policy("delete", "--global", "--yes");
  await expect.poll(() => status(one), { timeout: 5_000 }).toBe("200");
  await expect.poll(() => status(two), { timeout: 5_000 }).toBe("200");
  await Promise.all([one.delete(), two.delete()]);
}
