import { Code } from "@connectrpc/connect";
import { PolicyStatus, SandboxPhase } from "@openshell/api";
import { ConfigApplyOutcome } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { FakeSupervisor } from "./testing/fake-host.ts";
import { Harness } from "./testing/harness.ts";

const rule = (host: string, provider?: string) => ({
  endpoints: [
    {
      host,
      port: 443,
      protocol: "rest",
      access: 1,
      enforcement: 1,
      ...(provider === undefined ? {} : { credentialBinding: { provider } }),
    },
  ],
  binaries: [{ path: "/usr/bin/curl" }],
});
const filesystem = { includeWorkdir: true, readOnly: ["/usr"], readWrite: ["/tmp"] };
const policy = (networkPolicies: Record<string, ReturnType<typeof rule>> = {}) => ({
  version: 1,
  filesystem,
  networkPolicies,
});

describe("the configuration of a sandbox", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  const update = (changed: object) =>
    gateway.client.updateConfig({ workspaceScope: gateway.scope, sandbox: "box", policy: changed });
  const status = (version = 0) =>
    gateway.client.getSandboxPolicyStatus({ workspaceScope: gateway.scope, sandbox: "box", version });
  /** Warnings so far. */
  async function events(): Promise<string[]> {
    const messages: string[] = [];
    const request = { workspaceScope: gateway.scope, sandbox: "box", followEvents: true, eventTail: 50 };
    const stop = AbortSignal.timeout(100);
    try {
      for await (const { payload } of gateway.client.watchSandbox(request, { signal: stop })) {
        if (payload.case === "event" && payload.value.type === "Warning") messages.push(payload.value.message);
      }
    } catch (error) {
      if (!stop.aborted) throw error;
    }
    return messages;
  }
  async function ready(spec: object = {}): Promise<FakeSupervisor> {
    const { metadata } = await gateway.create({ spec });
    await gateway.phase(SandboxPhase.READY);
    return gateway.host!.attached.get(metadata!.id)!;
  }

  it("is refused where it names a middleware that is not registered; built-in ones always are there", async () => {
    await ready({ policy: policy() });
    const named = (middleware: string) => ({
      ...policy(),
      networkMiddlewares: { m: { middleware, endpoints: { include: ["a.example.com"] } } },
    });
    const refused = update(named("guard"));
    await expect(refused).rejects.toMatchObject({ code: Code.FailedPrecondition });
    await expect(refused).rejects.toThrow(/network middleware 'm' names 'guard', which is not registered/);
    await expect(gateway.create({ name: "other", spec: { policy: named("guard") } })).rejects.toMatchObject({
      code: Code.FailedPrecondition,
    });
    expect((await update(named("openshell/regex"))).version).toBe(2);
  });

  it("is the restrictive default when nobody gave a policy, stored as version 1", async () => {
    const supervisor = await ready();
    expect(supervisor.accepted?.sandboxConfig).toMatchObject({ policyVersion: 1 });
    expect(supervisor.accepted?.sandboxConfig?.policy?.networkPolicies).toEqual({});
    const { revision, activeVersion } = await status();
    expect(revision).toMatchObject({ version: 1, status: PolicyStatus.LOADED });
    expect(activeVersion).toBe(1);
  });

  it("is changed in part, all or nothing, and says what was merged otherwise than asked", async () => {
    await ready({ policy: policy({ api: rule("api.example.com") }) });
    const merge = (...mergeOperations: object[]) =>
      gateway.client.updateConfig({ workspaceScope: gateway.scope, sandbox: "box", mergeOperations });
    const add = (ruleName: string, host: string) => ({
      operation: { case: "addRule", value: { ruleName, rule: rule(host) } },
    });
    expect((await merge(add("other", "other.example.com"))).version).toBe(2);
    const { revision } = await status();
    expect(Object.keys(revision!.policy!.networkPolicies)).toEqual(["api", "other"]);
    expect(revision).toMatchObject({ status: PolicyStatus.LOADED, policy: { filesystem } });
    expect((await merge(add("again", "other.example.com"))).version).toBe(2);
    const gone = { operation: { case: "removeRule", value: { ruleName: "gone" } } };
    await expect(merge(add("third", "third.example.com"), gone)).rejects.toMatchObject({
      code: Code.FailedPrecondition,
      rawMessage: "merge_operations[1]: there is no rule 'gone'. Name one of: api, other, third",
    });
    expect((await status()).revision?.version).toBe(2);
    const joined = {
      ...rule("api.example.com"),
      endpoints: [{ ...rule("api.example.com").endpoints[0], port: 443, ports: [443, 8443] }],
    };
    await merge({ operation: { case: "addRule", value: { ruleName: "mine", rule: joined } } });
    expect(await events()).toContain("rule 'mine' became part of rule 'api', which has the same endpoint");
  });

  it("changes live: the answer comes after the supervisor's acknowledgement, both versions stay in the history", async () => {
    const supervisor = await ready({ policy: policy() });
    const before = supervisor.accepted!.sandboxConfig!;
    const { version, policyHash } = await update(policy({ api: rule("api.example.com") }));
    expect(version).toBe(2);
    const [config, ...others] = supervisor.updates.map(({ component }) => component);
    // The providers' credentials are used where they were before.
    expect([config?.case, others]).toEqual(["sandboxConfig", []]);
    expect(config?.value).toMatchObject({
      policyVersion: 2,
      policyHash,
      providerRevision: before.providerRevision,
    });
    expect(await status()).toMatchObject({ activeVersion: 2, revision: { status: PolicyStatus.LOADED } });
    const history = await gateway.client.listSandboxPolicies({ workspaceScope: gateway.scope, sandbox: "box" });
    expect(history.revisions.map((revision) => [revision.version, revision.status])).toEqual([
      [2, PolicyStatus.LOADED],
      [1, PolicyStatus.SUPERSEDED],
    ]);
  });

  it("is stored in one write and its outcome in another, and no environment with it that stays as it was", async () => {
    const supervisor = await ready({ policy: policy() });
    const version = async () => (await gateway.store.sandboxes.byId(supervisor.attach.sandboxId))!.resourceVersion;
    const before = await version();
    await update(policy({ api: rule("api.example.com") }));
    expect(supervisor.updates.map(({ component }) => component.case)).toEqual(["sandboxConfig"]);
    expect((await version()) - before).toBe(2n);
  });

  it("stays as it is when the same policy is sent again", async () => {
    const supervisor = await ready({ policy: policy({ api: rule("api.example.com") }) });
    expect((await update(policy({ api: rule("api.example.com") }))).version).toBe(1);
    expect(supervisor.updates).toEqual([]);
  });

  it("keeps the active version when the supervisor refuses a change, and says why", async () => {
    const supervisor = await ready({ policy: policy() });
    gateway.host!.outcomeOf = ({ component }) =>
      component.case === "sandboxConfig" ? ConfigApplyOutcome.FAILED_CLOSED : ConfigApplyOutcome.APPLIED;
    await update(policy({ api: rule("api.example.com") }));
    expect(supervisor.updates).toHaveLength(1);
    const current = async () => (await gateway.get()).status?.conditions.find(({ type }) => type === "PolicyCurrent");
    expect(await current()).toMatchObject({ status: "False", reason: "RefusedAndClosed" });
    expect(await status()).toMatchObject({ activeVersion: 1, revision: { version: 2, status: PolicyStatus.FAILED } });
    gateway.host!.outcomeOf = () => ConfigApplyOutcome.APPLIED;
    await update(policy({ other: rule("other.example.com") }));
    expect(await status()).toMatchObject({ activeVersion: 3, revision: { version: 3, status: PolicyStatus.LOADED } });
    expect(await current()).toMatchObject({ status: "True", reason: "Applied" });
    const operations = await gateway.store.operations.list(supervisor.attach.sandboxId, { limit: 9 });
    expect(operations.map(({ state }) => state)).toEqual(["applied", "superseded"]);
  });

  it("delivers the newest of many changes made at once, and answers every caller", async () => {
    const supervisor = await ready({ policy: policy() });
    const hosts = Array.from({ length: 10 }, (_, index) => `h${index}.example.com`);
    const versions = await Promise.all(hosts.map(async (host) => (await update(policy({ api: rule(host) }))).version));
    expect(new Set(versions).size).toBe(10);
    expect(await status()).toMatchObject({ activeVersion: 11, revision: { version: 11, status: PolicyStatus.LOADED } });
    const sequences = supervisor.updates.map(({ sequence }) => sequence);
    expect(sequences).toEqual(sequences.toSorted((a, b) => Number(a - b)));
  });

  it("refuses to change what the start fixed", async () => {
    await ready({ policy: policy() });
    const attempts = [
      { ...policy(), filesystem: { ...filesystem, readOnly: [] } },
      { ...policy(), filesystem: undefined },
      { ...policy(), process: { runAsUser: "1234", runAsGroup: "" } },
      { ...policy(), landlock: { compatibility: "hard_requirement" } },
    ];
    for (const attempt of attempts) await expect(update(attempt)).rejects.toMatchObject({ code: Code.InvalidArgument });
    expect((await update({ ...policy(), filesystem: { ...filesystem, readOnly: ["/usr", "/opt"] } })).version).toBe(2);
    expect(await events()).toEqual(["stop and start the sandbox to open these paths: /opt"]);
  });

  it("refuses a change made on an old version of the sandbox", async () => {
    await ready({ policy: policy() });
    const stale = {
      workspaceScope: gateway.scope,
      sandbox: "box",
      policy: policy({ a: rule("a.example.com") }),
      expectedResourceVersion: 1n,
    };
    await expect(gateway.client.updateConfig(stale)).rejects.toMatchObject({ code: Code.Aborted });
  });

  it("is delivered after a reconnect when it changed while nobody was connected", async () => {
    const { metadata } = await gateway.create({ spec: { policy: policy() } });
    await gateway.phase(SandboxPhase.READY);
    gateway.host!.onAttach = () => false;
    gateway.host!.attached.get(metadata!.id)!.kill();
    await update(policy({ api: rule("api.example.com") }));
    expect((await status()).revision?.status).toBe(PolicyStatus.PENDING);
    gateway.killHost();
    await gateway.until(async () => (await status()).activeVersion === 2, "applied by the next host");
    expect((await status()).revision?.status).toBe(PolicyStatus.LOADED);
  });

  it("starts once a refused configuration was repaired", async () => {
    gateway.configureHost = (host) => {
      host.bootstrapOutcome = ConfigApplyOutcome.FAILED_CLOSED;
    };
    const { metadata } = await gateway.create({ spec: { policy: policy() } });
    const reason = async () => (await gateway.get()).status?.conditions.find(({ type }) => type === "Ready")?.reason;
    await gateway.until(async () => (await reason()) === "ConfigurationInvalid", "held");
    expect(gateway.workloads.get(`${metadata!.id}/1`)?.started).toBe(0);
    gateway.host!.bootstrapOutcome = ConfigApplyOutcome.APPLIED;
    await update(policy({ api: rule("api.example.com") }));
    const held = gateway.host!.attached.get(metadata!.id)!;
    await gateway.until(() => held.accepted !== undefined, "accepted once");
    void new FakeSupervisor(gateway.host!, held.attach).run();
    await gateway.phase(SandboxPhase.READY);
  });

  describe("with a provider", () => {
    const make = (value: string) =>
      gateway.client.createProvider({
        workspaceScope: gateway.scope,
        provider: { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: value } },
      });

    it("binds credentials to the endpoints that name their provider, and to no other", async () => {
      await make("first");
      const supervisor = await ready({
        providers: ["p"],
        policy: policy({ api: rule("API.example.com", "p"), other: rule("other.example.com") }),
      });
      expect(supervisor.accepted?.providerEnvironment?.values).toMatchObject([
        {
          name: "TOKEN",
          value: "first",
          classification: 2,
          provider: "p",
          endpoints: [{ host: "api.example.com", port: 443, path: "" }],
        },
      ]);
      expect(supervisor.accepted?.sandboxConfig?.providerRevision).toBe(
        supervisor.accepted?.providerEnvironment?.providerRevision,
      );
    });

    it("keeps the name of an unbound credential, usable nowhere, until a policy binds it", async () => {
      await make("first");
      const supervisor = await ready({ providers: ["p"], policy: policy() });
      expect(supervisor.accepted?.providerEnvironment?.values).toMatchObject([{ name: "TOKEN", endpoints: [] }]);
      expect(await events()).toEqual([expect.stringMatching(/provider "p" is attached, but no endpoint/)]);
      await update(policy({ api: rule("api.example.com", "p") }));
      expect(supervisor.updates.map(({ component }) => component.case)).toEqual([
        "providerEnvironment",
        "sandboxConfig",
      ]);
      expect(supervisor.updates[0]?.component.value).toMatchObject({
        values: [{ endpoints: [{ host: "api.example.com" }] }],
      });
    });

    it("delivers a new value under the same identity, and nothing to sandboxes without it", async () => {
      await make("first");
      const supervisor = await ready({ providers: ["p"], policy: policy({ api: rule("api.example.com", "p") }) });
      const bystander = await gateway.create({ name: "other" });
      await gateway.phase(SandboxPhase.READY, "other");
      const identity = supervisor.accepted!.providerEnvironment!.values[0]!.credentialIdentity;
      const changed = await gateway.client.updateProvider({
        workspaceScope: gateway.scope,
        provider: { metadata: { name: "p" }, credentials: { TOKEN: "second" } },
      });
      expect(changed.mutationId).not.toBe("");
      await gateway.until(() => supervisor.updates.length >= 2, "delivered");
      expect(supervisor.updates[0]?.component.value).toMatchObject({
        values: [{ value: "second", credentialIdentity: identity }],
      });
      expect(gateway.host!.attached.get(bystander.metadata!.id)!.updates).toEqual([]);
      expect(gateway.logLines.join("")).not.toMatch(/first|second/);
    });

    it("sends an environment again that the supervisor held until its policy came", async () => {
      await make("first");
      const supervisor = await ready({ providers: ["p"], policy: policy({ api: rule("api.example.com", "p") }) });
      let held = false;
      gateway.host!.outcomeOf = ({ component }) => {
        if (component.case !== "providerEnvironment" || held) return ConfigApplyOutcome.APPLIED;
        held = true;
        return ConfigApplyOutcome.AWAITING_COMPONENT;
      };
      await gateway.client.updateProvider({
        workspaceScope: gateway.scope,
        provider: { metadata: { name: "p" }, credentials: { TOKEN: "second" } },
      });
      await gateway.until(() => supervisor.updates.length >= 3, "sent again");
      await new Promise((resolve) => setTimeout(resolve, 30));
      expect(supervisor.updates.map(({ component }) => component.case)).toEqual([
        "providerEnvironment",
        "sandboxConfig",
        "providerEnvironment",
      ]);
    });

    it("cannot be deleted while a sandbox has it", async () => {
      await make("first");
      await ready({ providers: ["p"] });
      const remove = () => gateway.client.deleteProvider({ workspaceScope: gateway.scope, name: "p" });
      await expect(remove()).rejects.toMatchObject({ code: Code.FailedPrecondition });
      await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
      await remove();
      await expect(remove()).rejects.toMatchObject({ code: Code.NotFound });
    });

    it("cannot be attached beside another that sets the same variable", async () => {
      await make("first");
      await gateway.client.createProvider({
        workspaceScope: gateway.scope,
        provider: { metadata: { name: "q" }, type: "generic", credentials: { TOKEN: "x" } },
      });
      await expect(gateway.create({ spec: { providers: ["p", "q"] } })).rejects.toMatchObject({
        code: Code.FailedPrecondition,
      });
    });
  });
});
