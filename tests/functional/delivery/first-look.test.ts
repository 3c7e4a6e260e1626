import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { TestSandbox } from "../../support/api.ts";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { VARIANTS, type Variant, VariantGateway } from "../../support/variants.ts";

/**
 * The first comparison of a running sandbox with the store, and many after it: where nothing changed, nothing happens. The
 * original reinstalled credentials ten seconds after each start, which cut what was in flight.
 */

/** Looks at the store are a second apart here; OPENSHELL_TEST_SECONDS makes the watch as long as one wishes. */
const WATCHED_S = Number(process.env["OPENSHELL_TEST_SECONDS"] ?? 5);
const INTERVAL_S = 1;
const CHUNKS = WATCHED_S * 10;

const POLICY = `
version: 1
network_policies:
  api:
    endpoints:
      - { host: api.example-allowed.com, port: 443, protocol: rest, enforcement: enforce, access: read-only BINDING }
    binaries: [{ path: "/**" }]
`;
const BINDING = ", credential_binding: { provider: model }";

/** One request after another on one connection, and one open stream; the last line is what the stream brought. */
const TRAFFIC = `
import http.client, os, threading, time
key = os.environ.get("KEY", "none")
host = "api.example-allowed.com"
stream = {}
def watch():
    connection = http.client.HTTPSConnection(host)
    connection.request("GET", "/chunks?count=${CHUNKS}&size=10&interval=100")
    stream["bytes"] = len(connection.getresponse().read())
thread = threading.Thread(target=watch)
thread.start()
connection = http.client.HTTPSConnection(host)
end = time.time() + ${WATCHED_S}
opened = 0
while time.time() < end:
    # Closed in order by the other side, it would be opened again without a word.
    opened += connection.sock is None
    connection.request("GET", "/x", headers={"Authorization": "Bearer " + key})
    answer = connection.getresponse()
    answer.read()
    print(answer.status, opened, flush=True)
    time.sleep(0.1)
thread.join()
print(stream.get("bytes"))
`;

// Delivery is the same in both modes.
describe.skipIf(mode === "user")("an unchanged sandbox", () => {
  let before: Inventory;
  let net: TestInternet;
  const gateways = new Map<Variant, VariantGateway>();

  beforeAll(async () => {
    before = takeInventory();
    net = await TestInternet.start();
    await net.host("api.example-allowed.com");
    await Promise.all(
      VARIANTS.map(async (variant) => {
        const keys = `config_consistency_check_interval_seconds = ${INTERVAL_S}`;
        const started = await VariantGateway.start(net, variant, { keys });
        gateways.set(variant, started);
        await started.gateway.createProvider("model", { KEY: "sk-first-look-0123456789" });
      }),
    );
  }, 60_000);
  afterAll(async () => {
    for (const gateway of gateways.values()) await gateway[Symbol.asyncDispose]();
    await net?.[Symbol.asyncDispose]();
    await expectNoLeaks(before);
  });

  /** What its log says of configuration, of refusals and of generations. */
  async function said(sandbox: TestSandbox): Promise<{ config: string[]; refused: string[]; generations: string[] }> {
    const lines = await sandbox.logs();
    const generations = lines.flatMap((line) => /generation:(\d+)/.exec(line)?.[1] ?? []);
    return {
      config: lines.filter((line) => line.includes("CONFIG:")),
      refused: lines.filter((line) => /DENIED|NET:(RESET|FAIL|CLOSE)/.test(line)),
      generations: [...new Set(generations)],
    };
  }

  test.concurrent.each<[Variant, string, string[]]>([
    ["workspace", "without a provider", []],
    ["workspace", "with a provider", ["model"]],
    ["sandbox", "with a provider", ["model"]],
    ["revision 0", "with a provider", ["model"]],
    ["revision 1", "without a provider", []],
    ["revision 1", "with a provider", ["model"]],
  ])(
    "(%s) %s is looked at again and again: no event, no generation, no failure, no cut (seed-003)",
    { timeout: (WATCHED_S + 60) * 1_000 },
    async (variant, _, providers) => {
      const { gateway, polling } = gateways.get(variant)!;
      const policy = POLICY.replace(" BINDING", providers.length === 0 ? "" : BINDING);
      const sandbox = await gateway.create({ policy, providers });
      const { stdout, exitCode, stderr } = await sandbox.exec(["/usr/bin/python3", "-c", TRAFFIC], {
        timeoutMs: (WATCHED_S + 30) * 1_000,
      });
      expect(stderr).toBe("");
      expect(exitCode).toBe(0);
      const lines = stdout.trim().split("\n");
      expect(lines.pop()).toBe(String(CHUNKS * 10));
      const answers = lines.map((line) => line.split(" "));
      expect(answers.length).toBeGreaterThan(WATCHED_S);
      expect(new Set(answers.map(([status]) => status))).toEqual(new Set(["200"]));
      expect(new Set(answers.map(([, connection]) => connection)).size, "connections").toBe(1);
      expect(await said(sandbox)).toEqual({ config: [], refused: [], generations: ["1"] });
      if (polling !== undefined)
        expect(polling.looks.of(sandbox.id)).toEqual({ unchanged: expect.any(Number), changed: 0 });
      if (polling !== undefined) expect(polling.looks.of(sandbox.id).unchanged).toBeGreaterThan(WATCHED_S / 2);
      await sandbox.delete();
    },
  );

  test.concurrent.each(VARIANTS)(
    "(%s) that is changed before the first look has the change, and what stays allowed goes on",
    { timeout: (WATCHED_S + 60) * 1_000 },
    async (variant) => {
      const { gateway } = gateways.get(variant)!;
      const policy = POLICY.replace(" BINDING", BINDING);
      const sandbox = await gateway.create({ policy, providers: ["model"] });
      const traffic = sandbox.exec(["/usr/bin/python3", "-c", TRAFFIC], { timeoutMs: (WATCHED_S + 30) * 1_000 });
      await sandbox.logged(/ALLOWED .*api\.example-allowed\.com/, 20_000);
      await sandbox.setPolicy(policy.replace("access: read-only", "access: full"));
      await sandbox.logged(/CONFIG:LOADED .*Policy reloaded/);
      const lines = (await traffic).stdout.trim().split("\n");
      expect(lines.pop()).toBe(String(CHUNKS * 10));
      expect(new Set(lines.map((line) => line.split(" ")[0]))).toEqual(new Set(["200"]));
      const { config, refused } = await said(sandbox);
      expect(config.map((line) => /CONFIG:\w+/.exec(line)?.[0])).toEqual(["CONFIG:DETECTED", "CONFIG:LOADED"]);
      expect(refused).toEqual([]);
      await sandbox.delete();
    },
  );
});
