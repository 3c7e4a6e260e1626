import { ProviderReadinessState as State } from "@openshell/api";
import { afterAll, beforeAll, describe, test } from "vitest";
import { SCOPE } from "../../support/api.ts";
import { type TestHost, TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { VARIANTS, type Variant, VariantGateway } from "../../support/variants.ts";

/** Providers come, change and go, and the policy with them, while a program uses the network. */

const HOST = "api.example-allowed.com";
const STEADY = "steady.example-allowed.com";
const steady = `
  steady:
    endpoints:
      - { host: ${STEADY}, port: 443, protocol: rest, enforcement: enforce, access: read-only }
    binaries: [{ path: "/**" }]
`;
const rule = (binding: string, rules: string, others = steady) => `
version: 1
network_policies:${others}
  api:
    endpoints:
      - { host: ${HOST}, port: 443, protocol: rest, enforcement: enforce, ${rules}${binding} }
    binaries: [{ path: "/**" }]
`;
const READ = "access: read-only";
const NO_READ = 'rules: [{ allow: { method: POST, path: "/**" } }]';
const BOUND = ", credential_binding: { provider: model }";
const UNBOUND = rule("", READ);
const FIRST = "sk-live-first-0123456789";
const SECOND = "sk-live-second-0123456789";

/** A stream that stays allowed all the while. */
const STREAM = `curl -sS -N -o /dev/null 'https://${STEADY}/chunks?count=1000000&size=10&interval=50'`;
/** Asks with the credential that the process was started with, and prints the status. */
const ask = (path: string) =>
  `curl -sS -o /dev/null -w '%{http_code}' --max-time 10 -H "Authorization: Bearer $KEY" https://${HOST}/${path}`;
const PLAIN = `curl -sS -o /dev/null -w '%{http_code}' --max-time 10 https://${HOST}/plain`;

// Delivery is the same in both modes.
describe.skipIf(mode === "user")("a change live", () => {
  let before: Inventory;
  let net: TestInternet;
  let host: TestHost;
  const gateways = new Map<Variant, VariantGateway>();

  beforeAll(async () => {
    before = takeInventory();
    net = await TestInternet.start();
    host = await net.host(HOST);
    await net.host(STEADY);
    await Promise.all(
      VARIANTS.map(async (variant) => {
        const started = await VariantGateway.start(net, variant);
        gateways.set(variant, started);
        await started.gateway.createProvider("model", { KEY: FIRST });
      }),
    );
  }, 60_000);
  afterAll(async () => {
    for (const gateway of gateways.values()) await gateway[Symbol.asyncDispose]();
    await net?.[Symbol.asyncDispose]();
    await expectNoLeaks(before);
  });

  /** What the host was sent with a path. */
  const arrived = (path: string): readonly (string | undefined)[] =>
    host
      .received()
      .requests.filter(({ target }) => target === `/${path}`)
      .map(({ headers }) => headers.authorization);

  test.concurrent.for(VARIANTS)(
    "(%s) of a provider and of the policy is in force when it is said to be, and ends nothing that stays allowed",
    { timeout: 90_000 },
    async (variant, { expect }) => {
      const { gateway, polling } = gateways.get(variant)!;
      const { client } = gateway;
      const sandbox = await gateway.create({ policy: UNBOUND });
      const target = { workspaceScope: SCOPE, sandbox: sandbox.name, provider: "model" };
      const tag = `${variant.replace(" ", "-")}-`;
      const state = async (receiptId: string) =>
        (await client.getSandboxProviderStatus({ ...target, receiptId })).status!.state;
      const reaches = (receiptId: string, wanted: State) =>
        expect.poll(() => state(receiptId), { timeout: 20_000, interval: 50 }).toBe(wanted);
      const policy = async (text: string) => {
        await sandbox.setPolicy(text);
        const { version } = (await client.getSandboxPolicyStatus(target)).revision!;
        await expect
          .poll(async () => (await sandbox.get()).status!.currentPolicyVersion, { timeout: 20_000, interval: 50 })
          .toBe(version);
      };
      const stream = sandbox.sh(STREAM, { timeoutMs: 80_000 }).catch(() => undefined);
      await sandbox.logged(/HTTP:GET .*\/chunks/, 20_000);

      // Attached: usable nowhere before the policy says where, and not given at all to a supervisor that polls.
      const { receipt: attached } = await client.attachSandboxProvider(target);
      await reaches(attached!.receiptId, polling === undefined ? State.READY : State.WITHHELD);
      await policy(rule(BOUND, READ));
      const inside = (await sandbox.sh('printf %s "$KEY"')).stdout;
      expect(inside).toMatch(/^openshell:resolve:/);
      expect((await sandbox.sh(ask(`${tag}bound`))).stdout).toBe("200");
      expect(arrived(`${tag}bound`)).toEqual([`Bearer ${FIRST}`]);

      // Another value: the same placeholder gets it.
      const provider = { metadata: { name: "model" }, credentials: { KEY: SECOND } };
      const { targetReceipts } = await client.updateProvider({ workspaceScope: SCOPE, provider });
      const rotated = targetReceipts[0]!;
      await reaches(rotated.receiptId, State.READY);
      expect((await sandbox.sh('printf %s "$KEY"')).stdout).toBe(inside);
      expect((await sandbox.sh(ask(`${tag}rotated`))).stdout).toBe("200");
      expect(arrived(`${tag}rotated`)).toEqual([`Bearer ${SECOND}`]);

      await policy(rule(BOUND, NO_READ));
      expect((await sandbox.sh(ask(`${tag}refused`))).stdout).toBe("403");
      expect(arrived(`${tag}refused`)).toEqual([]);
      await policy(UNBOUND);
      expect((await sandbox.sh(PLAIN)).stdout).toBe("200");

      // Detached: what a process still holds stands for nothing.
      const { receipt: detached } = await client.detachSandboxProvider(target);
      await reaches(detached!.receiptId, State.REVOKED);
      expect((await sandbox.sh('printf %s "$KEY"')).stdout).toBe("");
      expect((await sandbox.sh(`KEY='${inside}'; ${ask(`${tag}gone`)}`)).stdout).not.toBe("200");
      expect(arrived(`${tag}gone`)).toEqual([]);

      const lines = await sandbox.logs();
      expect(lines.filter((line) => /NET:RESET|CONFIG:FAIL/.test(line))).toEqual([]);
      // And the stream ends when nothing allows it any more.
      await policy(rule("", READ, ""));
      await stream;
      await sandbox.logged(/NET:RESET .*steady\.example-allowed\.com/);
      await sandbox.delete();
    },
  );
});
