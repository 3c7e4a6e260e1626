import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { SandboxPhase } from "@openshell/api";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { SCOPE, type TestGateway, TestSandbox } from "../../support/api.ts";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { makeRootFs } from "../../support/root-fs.ts";
import { VARIANTS, VariantGateway } from "../../support/variants.ts";

/** A policy that comes with the image, and one that cannot be used. */

/** Between two looks of a supervisor that polls. Milliseconds. */
const LOOK_MS = 200;

const POLICY = `
version: 1
network_policies:
  api:
    endpoints:
      - { host: api.example-allowed.com, port: 443, protocol: rest, enforcement: enforce, access: read-only }
    binaries: [{ path: /usr/bin/curl }]
`;
const ASK = "curl -sS -o /dev/null -w '%{http_code}' --max-time 10 https://api.example-allowed.com/";

// The image is read in the same way in both modes.
describe.skipIf(mode === "user").each(VARIANTS)("(%s) an image with a policy", (variant) => {
  let before: Inventory;
  let net: TestInternet;
  let started: VariantGateway;
  let gateway: TestGateway;
  let root: string;

  beforeAll(async () => {
    before = takeInventory();
    net = await TestInternet.start();
    await net.host("api.example-allowed.com");
    started = await VariantGateway.start(net, variant, { lookMs: LOOK_MS });
    gateway = started.gateway;
    root = gateway.user.home.path("root");
    makeRootFs(root);
    mkdirSync(join(root, "etc/openshell"), { recursive: true });
  }, 60_000);
  afterAll(async () => {
    await started?.[Symbol.asyncDispose]();
    await net?.[Symbol.asyncDispose]();
    await expectNoLeaks(before);
  });
  const put = (text: string): void => {
    rmSync(join(root, "etc/openshell/policy.yaml"), { force: true });
    writeFileSync(join(root, "etc/openshell/policy.yaml"), text, { mode: 0o644 });
  };

  test("has it in force where nobody gave another one, with the paths that its programs need", async () => {
    put(POLICY);
    await using sandbox = await gateway.create({ root });
    expect((await sandbox.sh(ASK)).stdout).toBe("200");
    const { revision } = await gateway.client.getSandboxPolicyStatus({ workspaceScope: SCOPE, sandbox: sandbox.name });
    expect(Object.keys(revision?.policy?.networkPolicies ?? {})).toEqual(["api"]);
    expect(revision?.policy?.filesystem?.readOnly).toEqual(expect.arrayContaining(["/usr", "/etc", "/proc"]));
    // The author's own file with a change in it: what was added to it on the way is not missed.
    const file = gateway.user.home.write("policy.yaml", POLICY.replace("access: read-only", "access: full"));
    await gateway.user.ok(["policy", "set", sandbox.name, "--policy", file, "--wait"]);
    expect((await sandbox.sh(`${ASK} -X POST`)).stdout).toBe("200");
    await gateway.user.ok(["sandbox", "stop", sandbox.name]);
    await gateway.user.ok(["sandbox", "start", sandbox.name]);
    await sandbox.phase(SandboxPhase.READY);
    // Complete as it is: the next start has nothing to add.
    const version = (await sandbox.get()).status?.currentPolicyVersion;
    await gateway.user.ok(["sandbox", "stop", sandbox.name]);
    await gateway.user.ok(["sandbox", "start", sandbox.name]);
    expect((await sandbox.phase(SandboxPhase.READY)).status?.currentPolicyVersion).toBe(version);
  });

  test("is not asked where a policy was given", async () => {
    put("version: 99\n");
    await using sandbox = await gateway.create({ root, policy: "version: 1\n" });
    expect((await sandbox.sh(ASK)).stdout).toBe("403");
  });

  test("that cannot be used starts nothing, says so, and waits for a policy of its owner", async () => {
    put("version: 1\nnetwork_policies: { a: { nonsense: true } }\n");
    const create = ["sandbox", "create", "--name", "held", "--from", root, "--detach", "--", "sleep", "86400"];
    const creating = gateway.user.run(create, { timeoutMs: 60_000 });
    const asked = { workspaceScope: SCOPE, name: "held" };
    const exists = () => gateway.client.getSandbox(asked).then(Boolean, () => false);
    await expect.poll(exists, { timeout: 15_000 }).toBe(true);
    const { sandbox: made } = await gateway.client.getSandbox(asked);
    await using sandbox = new TestSandbox(gateway, "held", made!.metadata!.id);
    const condition = async () =>
      (await sandbox.get()).status?.conditions.find(({ type }) => type === "ConfigurationReady");
    await expect
      .poll(async () => (await condition())?.message ?? "", { timeout: 15_000 })
      .toContain("/etc/openshell/policy.yaml");
    expect((await sandbox.get()).status?.phase).toBe(SandboxPhase.PROVISIONING);
    const file = gateway.user.home.write("policy.yaml", POLICY);
    expect(await gateway.user.ok(["policy", "get", sandbox.name])).toMatch(/^In force: no: .*policy\.yaml/m);
    await gateway.user.ok(["policy", "set", sandbox.name, "--policy", file]);
    await sandbox.phase(SandboxPhase.READY);
    expect((await sandbox.sh(ASK)).stdout).toBe("200");
    // Whoever made it was told.
    const { exitCode, stderr } = await creating;
    expect([exitCode, stderr]).toEqual([0, expect.stringMatching(/^! sandbox held is held, .*policy\.yaml/m)]);
  });
});
