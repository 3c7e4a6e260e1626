import { Code } from "@connectrpc/connect";
import { SandboxPhase, SettingScope } from "@openshell/api";
import { readErrorDetails } from "@openshell/api/errors.ts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { FakeSupervisor } from "./testing/fake-host.ts";
import { Harness } from "./testing/harness.ts";

const JSON_RECORDS = "ocsf_json_enabled";
const bool = (value: boolean) => ({ value: { case: "boolValue" as const, value } });
const string = (value: string) => ({ value: { case: "stringValue" as const, value } });

describe("settings", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  const sandbox = (name = "box") => ({ workspaceScope: gateway.scope, sandbox: name });
  const update = (request: object) => gateway.client.updateConfig(request);
  const set = (settingKey: string, settingValue: object, where: object = sandbox()) =>
    update({ ...where, settingKey, settingValue });
  const remove = (settingKey: string, where: object = sandbox()) =>
    update({ ...where, settingKey, deleteSetting: true });
  const config = (name = "box") => gateway.client.getSandboxConfig({ workspaceScope: gateway.scope, name });
  const GLOBAL = { global: true };

  async function ready(name = "box"): Promise<FakeSupervisor> {
    const { metadata } = await gateway.create({ name, spec: { policy: { version: 1 } } });
    await gateway.phase(SandboxPhase.READY, name);
    return gateway.host!.attached.get(metadata!.id)!;
  }
  const delivered = (supervisor: FakeSupervisor) =>
    supervisor.updates.flatMap(({ component }) =>
      component.case === "sandboxConfig" ? [component.value.settings] : [],
    );
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

  it("of a sandbox reach it before the caller is answered, and are shown with their scope", async () => {
    const supervisor = await ready();
    const { resourceVersion } = (await gateway.get()).metadata!;
    const before = await config();
    expect(before.settings).toMatchObject({
      agent_policy_proposals_enabled: { scope: SettingScope.UNSPECIFIED },
      ocsf_json_enabled: { scope: SettingScope.UNSPECIFIED },
      proposal_approval_mode: { scope: SettingScope.UNSPECIFIED },
      providers_v2_enabled: { scope: SettingScope.UNSPECIFIED },
    });
    expect(before.settings[JSON_RECORDS]?.value).toBeUndefined();
    const annotations = { why: "audit" };
    const answer = await update({ ...sandbox(), settingKey: JSON_RECORDS, settingValue: bool(true), annotations });
    expect(answer).toMatchObject({ settingsRevision: 1n, deleted: false, version: 0, annotations });
    expect(delivered(supervisor)).toEqual([{ [JSON_RECORDS]: "true" }]);
    const after = await config();
    expect(after.settings[JSON_RECORDS]).toMatchObject({ value: bool(true), scope: SettingScope.SANDBOX });
    expect(after).toMatchObject({ settingsRevision: 1n, version: 1, policyHash: before.policyHash });
    expect(after.configRevision).not.toBe(before.configRevision);
    const { metadata } = await gateway.get();
    expect(metadata?.annotations).toMatchObject(annotations);
    expect(metadata!.resourceVersion).toBeGreaterThan(resourceVersion);
    const operations = await gateway.store.operations.list(metadata!.id, { limit: 9 });
    expect(operations.map(({ state }) => state)).toEqual(["applied"]);
    const line = gateway.logLines.find((text) => text.includes('"setting changed"'));
    expect(JSON.parse(line ?? "{}")).toMatchObject({
      sandbox_id: metadata!.id,
      setting: JSON_RECORDS,
      setting_value: "true",
    });
  });

  it("that are so already change nothing; unset ones are told apart", async () => {
    const supervisor = await ready();
    await set(JSON_RECORDS, bool(true));
    expect(await set(JSON_RECORDS, bool(true))).toMatchObject({ settingsRevision: 1n });
    expect(delivered(supervisor)).toHaveLength(1);
    expect(await remove(JSON_RECORDS)).toMatchObject({ settingsRevision: 2n, deleted: true });
    expect(await remove(JSON_RECORDS)).toMatchObject({ settingsRevision: 2n, deleted: false });
    expect(delivered(supervisor)).toEqual([{ [JSON_RECORDS]: "true" }, {}]);
  });

  it("of the gateway win, block those of sandboxes, and give them back", async () => {
    const first = await ready("one");
    const second = await ready("two");
    await set(JSON_RECORDS, bool(false), sandbox("one"));
    expect(await set(JSON_RECORDS, bool(true), GLOBAL)).toMatchObject({ settingsRevision: 1n });
    const on = { [JSON_RECORDS]: "true" };
    await gateway.until(async () => delivered(first).length === 2 && delivered(second).length === 1, "both are told");
    expect([delivered(first).at(-1), delivered(second).at(-1)]).toEqual([on, on]);
    const managed = { value: bool(true), scope: SettingScope.GLOBAL };
    expect((await config("one")).settings[JSON_RECORDS]).toMatchObject(managed);
    const whole = await gateway.client.getGatewayConfig({});
    expect(whole.settingsRevision).toBe(1n);
    expect(whole.settings[JSON_RECORDS]).toMatchObject(bool(true));
    expect(whole.settings["proposal_approval_mode"]?.value.case).toBeUndefined();
    for (const attempt of [set(JSON_RECORDS, bool(false), sandbox("one")), remove(JSON_RECORDS, sandbox("one"))])
      expect(await problem(attempt)).toMatchObject({
        code: Code.FailedPrecondition,
        message: expect.stringMatching(/is managed globally\. Unset it there first: openshell settings delete/),
      });
    // Another key is free.
    await set("proposal_approval_mode", string("auto"), sandbox("one"));
    expect(await remove(JSON_RECORDS, GLOBAL)).toMatchObject({ settingsRevision: 2n, deleted: true });
    await gateway.until(async () => delivered(second).length === 2, "it is unset");
    expect(delivered(second).at(-1)).toEqual({});
    expect((await config("one")).settings[JSON_RECORDS]).toMatchObject({
      value: bool(false),
      scope: SettingScope.SANDBOX,
    });
    await set(JSON_RECORDS, bool(true), sandbox("one"));
  });

  it("are known by key and type; what is wrong is told before anything is stored", async () => {
    await ready();
    const unknown = await problem(set("colour", string("red")));
    expect(unknown).toMatchObject({ code: Code.InvalidArgument, fields: ["setting_key"] });
    expect(unknown.message).toContain(
      "agent_policy_proposals_enabled, ocsf_json_enabled, proposal_approval_mode, providers_v2_enabled",
    );
    const wrong: readonly [object, string][] = [
      [{ settingKey: JSON_RECORDS, settingValue: string("true") }, "setting_value.string_value"],
      [
        { settingKey: JSON_RECORDS, settingValue: { value: { case: "intValue", value: 1n } } },
        "setting_value.int_value",
      ],
      [{ settingKey: JSON_RECORDS, settingValue: {} }, "setting_value"],
      [{ settingKey: JSON_RECORDS }, "setting_value"],
      [{ settingKey: JSON_RECORDS, settingValue: bool(true), deleteSetting: true }, "setting_value"],
      [{ settingKey: "proposal_approval_mode", settingValue: string("maybe") }, "setting_value.string_value"],
      [{ settingKey: "proposal_approval_mode", settingValue: bool(true) }, "setting_value.bool_value"],
      [{ settingKey: JSON_RECORDS, deleteSetting: true, policy: { version: 1 } }, "policy"],
    ];
    for (const [request, field] of wrong)
      for (const where of [sandbox(), GLOBAL])
        expect(await problem(update({ ...where, ...request }))).toMatchObject({
          code: Code.InvalidArgument,
          fields: [field],
        });
    const own = { ...sandbox(), annotations: { a: "1" }, expectedResourceVersion: 1n };
    expect((await problem(remove(JSON_RECORDS, { ...own, ...GLOBAL }))).fields).toEqual([
      "workspace_scope",
      "sandbox",
      "annotations",
      "expected_resource_version",
    ]);
    expect((await config()).settingsRevision).toBe(0n);
    expect((await gateway.client.getGatewayConfig({})).settingsRevision).toBe(0n);
  });

  it("are changed on the version that was looked at, and of the gateway by administrators alone", async () => {
    await ready();
    const { resourceVersion } = (await gateway.get()).metadata!;
    const stale = { ...sandbox(), expectedResourceVersion: resourceVersion + 5n };
    expect(await problem(set(JSON_RECORDS, bool(true), stale))).toMatchObject({ code: Code.Aborted });
    await set(JSON_RECORDS, bool(true), { ...sandbox(), expectedResourceVersion: resourceVersion });
    gateway.caller = { ...gateway.caller, admin: false };
    expect(await problem(set(JSON_RECORDS, bool(true), GLOBAL))).toMatchObject({ code: Code.PermissionDenied });
  });

  it("changed at once are all counted, and the sandbox ends with the last of them", async () => {
    const supervisor = await ready();
    const answers = await Promise.all(Array.from({ length: 9 }, (_, n) => set(JSON_RECORDS, bool(n % 2 === 0))));
    expect(answers.map(({ settingsRevision }) => settingsRevision).toSorted((a, b) => Number(a - b))).toEqual(
      Array.from({ length: 9 }, (_, n) => BigInt(n + 1)),
    );
    const { settings } = await config();
    expect(delivered(supervisor).at(-1)).toEqual({
      [JSON_RECORDS]: String(settings[JSON_RECORDS]!.value!.value.value),
    });
    const { metadata } = await gateway.get();
    const operations = await gateway.store.operations.list(metadata!.id, { limit: 20 });
    expect(operations.filter(({ state }) => state === "pending")).toEqual([]);
  });

  it("wait for a sandbox that does not run, and hold over its start", async () => {
    await ready();
    await gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.phase(SandboxPhase.STOPPED);
    await set(JSON_RECORDS, bool(true));
    await gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
    const { metadata } = await gateway.phase(SandboxPhase.READY);
    const { accepted } = gateway.host!.attached.get(metadata!.id)!;
    expect(accepted?.sandboxConfig?.settings).toEqual({ [JSON_RECORDS]: "true" });
  });
});
