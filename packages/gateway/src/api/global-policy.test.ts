import { DatabaseSync } from "node:sqlite";
import { Code } from "@connectrpc/connect";
import { PolicySource, PolicyStatus, SandboxPhase } from "@openshell/api";
import { readErrorDetails } from "@openshell/api/errors.ts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { GLOBAL_SCOPE } from "../store/types.ts";
import type { FakeSupervisor } from "./testing/fake-host.ts";
import { Harness } from "./testing/harness.ts";

const rule = (host: string, more: object = {}) => ({
  endpoints: [{ host, port: 443, protocol: "rest", access: 1, enforcement: 1, ...more }],
  binaries: [{ path: "/usr/bin/curl" }],
});
const filesystem = { includeWorkdir: true, readOnly: ["/usr"], readWrite: ["/tmp"] };
const policy = (...hosts: string[]) => ({
  version: 1,
  networkPolicies: Object.fromEntries(hosts.map((host) => [host.split(".")[0]!, rule(host)])),
});
const GLOBAL = { global: true };

describe("the policy of the gateway", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  const set = (wanted: object) => gateway.client.updateConfig({ ...GLOBAL, policy: wanted });
  const remove = () => gateway.client.updateConfig({ ...GLOBAL, settingKey: "policy", deleteSetting: true });
  const box = () => ({ workspaceScope: gateway.scope, sandbox: "box" });
  const config = () => gateway.client.getSandboxConfig({ workspaceScope: gateway.scope, name: "box" });
  const own = { ...policy("own.example.com"), filesystem };

  async function ready(name = "box", spec: object = { policy: own }): Promise<FakeSupervisor> {
    const { metadata } = await gateway.create({ name, spec });
    await gateway.phase(SandboxPhase.READY, name);
    return gateway.host!.attached.get(metadata!.id)!;
  }
  const delivered = (supervisor: FakeSupervisor) =>
    supervisor.updates.flatMap(({ component }) => (component.case === "sandboxConfig" ? [component.value] : []));
  /** Its own first policy is in force. */
  const loaded = (name: string) =>
    gateway.until(async () => {
      const { activeVersion, revision } = await gateway.client.getSandboxPolicyStatus({ ...box(), sandbox: name });
      return activeVersion === 1 && revision?.version === 1 && revision.status === PolicyStatus.LOADED;
    }, `the policy of ${name}`);
  const rules = (message: { networkPolicies: object } | undefined) => Object.keys(message!.networkPolicies);
  const problem = async (promise: Promise<unknown>) => {
    const error = await promise.then(
      () => undefined,
      (thrown: unknown) => thrown as Parameters<typeof readErrorDetails>[0],
    );
    if (error === undefined) throw new Error("it succeeded");
    return {
      code: error.code,
      message: error.rawMessage,
      fields: readErrorDetails(error).violations.map((v) => v.field),
    };
  };

  it("holds in every sandbox in place of its own, which comes back", async () => {
    const one = await ready();
    const two = await ready("two", {});
    const before = await config();
    const { version, policyHash, settingsRevision } = await set(policy("all.example.com"));
    expect([version, settingsRevision]).toEqual([1, 1n]);
    await gateway.until(async () => delivered(one).length === 1 && delivered(two).length === 1, "both have it");
    for (const supervisor of [one, two]) {
      const [config] = delivered(supervisor);
      expect(config).toMatchObject({ policySource: "global", globalPolicyVersion: 1 });
      expect(rules(config!.policy)).toEqual(["all"]);
    }
    // What was fixed at the start stays.
    expect(delivered(one)[0]!.policy!.filesystem).toMatchObject(filesystem);
    const during = await config();
    expect(during).toMatchObject({ policySource: PolicySource.GLOBAL, globalPolicyVersion: 1, version: 1 });
    expect(rules(during.policy)).toEqual(["all"]);
    expect(during.policyHash).not.toBe(before.policyHash);
    const status = await gateway.client.getSandboxPolicyStatus({ ...GLOBAL });
    expect(status).toMatchObject({ activeVersion: 1, revision: { policyHash, status: PolicyStatus.LOADED } });
    // It is no setting.
    expect((await gateway.client.getGatewayConfig({})).settings["policy"]).toBeUndefined();
    expect(during.settings["policy"]).toBeUndefined();

    expect(await remove()).toMatchObject({ deleted: true, settingsRevision: 2n });
    expect(await remove()).toMatchObject({ deleted: false, settingsRevision: 2n });
    await gateway.until(async () => delivered(one).length === 2 && delivered(two).length === 2, "both have their own");
    expect(delivered(one)[1]).toMatchObject({ policySource: "sandbox", globalPolicyVersion: 0 });
    expect(await config()).toMatchObject({ policySource: PolicySource.SANDBOX, policyHash: before.policyHash });
    await loaded("box");
    expect((await gateway.client.getSandboxPolicyStatus({ ...GLOBAL })).activeVersion).toBe(0);
  });

  it("is the same revision when it is set again, and another when it differs; all are kept", async () => {
    expect(await set(policy("a.example.com"))).toMatchObject({ version: 1, settingsRevision: 1n });
    expect(await set(policy("a.example.com"))).toMatchObject({ version: 1, settingsRevision: 1n });
    expect(await set(policy("b.example.com"))).toMatchObject({ version: 2, settingsRevision: 2n });
    await remove();
    expect(await set(policy("b.example.com"))).toMatchObject({ version: 2, settingsRevision: 4n });
    const { revisions } = await gateway.client.listSandboxPolicies({ ...GLOBAL });
    expect(revisions.map(({ version, status }) => [version, status])).toEqual([
      [2, PolicyStatus.LOADED],
      [1, PolicyStatus.SUPERSEDED],
    ]);
  });

  it("keeps sandboxes from changing theirs, and one that starts under it has it from the beginning", async () => {
    await ready();
    await set(policy("all.example.com"));
    const operations = { operation: { case: "removeRule", value: { ruleName: "own" } } } as const;
    for (const change of [{ policy: own }, { mergeOperations: [operations] }])
      expect(await problem(gateway.client.updateConfig({ ...box(), ...change }))).toMatchObject({
        code: Code.FailedPrecondition,
        message: expect.stringMatching(/is managed globally.*openshell policy delete --global/),
      });
    const late = await ready("late", { policy: { ...policy("late.example.com"), filesystem } });
    expect(late.accepted?.sandboxConfig).toMatchObject({ policySource: "global", policy: { filesystem } });
    expect(rules(late.accepted?.sandboxConfig?.policy)).toEqual(["all"]);
    await remove();
    await gateway.until(async () => delivered(late).length === 1, "its own");
    expect(rules(delivered(late)[0]!.policy)).toEqual(["late"]);
    await loaded("late");
  });

  it("has what can hold everywhere alone; the rest is refused by name", async () => {
    const bound = {
      version: 1,
      networkPolicies: { a: rule("a.example.com", { credentialBinding: { provider: "p" } }) },
    };
    const operation = { operation: { case: "removeRule", value: { ruleName: "x" } } } as const;
    const wrong: readonly [object, string][] = [
      [{ policy: own }, "policy.filesystem"],
      [{ policy: { version: 1, process: {} } }, "policy.process"],
      [{ policy: { version: 1, landlock: {} } }, "policy.landlock"],
      [{ policy: bound }, "policy.network_policies[a].endpoints[0].credential_binding"],
      [{ mergeOperations: [operation] }, "merge_operations"],
      [{ settingKey: "policy", settingValue: { value: { case: "stringValue", value: "x" } } }, "setting_key"],
    ];
    for (const [request, field] of wrong)
      expect(await problem(gateway.client.updateConfig({ ...GLOBAL, ...request }))).toMatchObject({
        code: Code.InvalidArgument,
        fields: [field],
      });
    const middlewares = {
      m: { middleware: "nowhere", onError: "fail_closed", endpoints: { include: ["a.example.com"] } },
    };
    expect(await problem(set({ ...policy("a.example.com"), networkMiddlewares: middlewares }))).toMatchObject({
      code: Code.FailedPrecondition,
      message: expect.stringContaining("not registered"),
    });
    const ofSandbox = { ...box(), settingKey: "policy", deleteSetting: true };
    expect((await problem(gateway.client.updateConfig(ofSandbox))).fields).toEqual(["setting_key"]);
    for (const request of [
      { ...GLOBAL, sandbox: "box" },
      { ...GLOBAL, workspaceScope: gateway.scope },
    ])
      for (const rpc of ["getSandboxPolicyStatus", "listSandboxPolicies"] as const)
        expect((await problem(gateway.client[rpc](request))).code).toBe(Code.InvalidArgument);
    expect(await problem(gateway.client.getSandboxPolicyStatus({ ...GLOBAL }))).toMatchObject({ code: Code.NotFound });
    gateway.caller = { ...gateway.caller, admin: false };
    expect((await problem(set(policy("a.example.com")))).code).toBe(Code.PermissionDenied);
  });

  describe("whose revision the database does not have", () => {
    const MISSING = /version 1 of the gateway's policy.*openshell policy set --global/;
    const lose = (): void => {
      using database = new DatabaseSync(gateway.databasePath, { timeout: 5_000 });
      database.exec(`delete from policy_revisions where scope = '${GLOBAL_SCOPE}'`);
    };
    const current = async () => (await gateway.get()).status!.conditions.find(({ type }) => type === "PolicyCurrent");

    it("lets no sandbox start under its own", async () => {
      await set(policy("all.example.com"));
      lose();
      await gateway.create({ spec: { policy: own } });
      const { status } = await gateway.phase(SandboxPhase.ERROR);
      expect(status!.conditions.find(({ type }) => type === "Ready")?.message).toMatch(MISSING);
      expect(await problem(config())).toMatchObject({
        code: Code.FailedPrecondition,
        message: expect.stringMatching(MISSING),
      });
    });

    it("leaves those that run what they have, says why, and is mended by setting it again", async () => {
      const supervisor = await ready();
      await set(policy("all.example.com"));
      await gateway.until(() => delivered(supervisor).length === 1, "it is in force");
      lose();
      await gateway.client.updateConfig({
        ...GLOBAL,
        settingKey: "ocsf_json_enabled",
        settingValue: { value: { case: "boolValue", value: true } },
      });
      await gateway.until(async () => (await current())?.status === "False", "the condition");
      expect(await current()).toMatchObject({ reason: "Undeliverable", message: expect.stringMatching(MISSING) });
      expect(delivered(supervisor)).toHaveLength(1);
      expect((await gateway.get()).status!.phase).toBe(SandboxPhase.READY);

      await set(policy("all.example.com"));
      await gateway.until(async () => (await current())?.status === "True", "the condition is over");
      expect(rules(delivered(supervisor).at(-1)!.policy)).toEqual(["all"]);
    });

    it("keeps what runs from a session under its own when the gateway starts again", async () => {
      const supervisor = await ready();
      await set(policy("all.example.com"));
      await gateway.until(() => delivered(supervisor).length === 1, "it is in force");
      lose();
      await gateway.restart();
      await gateway.until(async () => (await current())?.status === "False", "the condition");
      expect((await current())!.message).toMatch(MISSING);
      expect(gateway.driver.sandboxes.size).toBe(1);
      await remove();
      // A host dials again by itself.
      gateway.startHost();
      await gateway.until(async () => (await current())?.status === "True", "the condition is over");
      await gateway.phase(SandboxPhase.READY);
    });
  });
});
