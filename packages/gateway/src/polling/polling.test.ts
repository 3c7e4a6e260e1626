import { Code, ConnectError } from "@connectrpc/connect";
import {
  ConfigurationAdmissionState as Admission,
  PolicyStatus,
  ProviderReadinessReason as Reason,
  SandboxPhase,
  ProviderReadinessState as State,
} from "@openshell/api";
import { RuntimeError, systemClock } from "@openshell/base";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "../api/testing/harness.ts";
import { SANDBOX_TOKEN_HEADER } from "../sessions/service.ts";
import { PollingPeer } from "./testing/polling-peer.ts";

const SECRET = "sk-polling-0123456789";
const policy = (host = "a.example.com", provider = "p"): object => ({
  version: 1,
  networkPolicies: {
    a: {
      endpoints: [{ host, port: 443, protocol: "rest", access: 3, credentialBinding: { provider } }],
      binaries: [{ path: "/x" }],
    },
  },
});
const refusal = async (call: Promise<unknown>): Promise<Code> => {
  try {
    await call;
  } catch (error) {
    return ConnectError.from(error).code;
  }
  throw new Error("the call succeeded");
};

let gateway: Harness;
beforeEach(async () => {
  gateway = await Harness.open();
  for (const [name, key] of [
    ["p", "TOKEN"],
    ["q", "OTHER"],
  ] as const) {
    const provider = { metadata: { name }, type: "generic", credentials: { [key]: SECRET } };
    await gateway.client.createProvider({ workspaceScope: gateway.scope, provider });
  }
});
afterEach(() => gateway[Symbol.asyncDispose]());

async function peer(revision = 1, name = "box"): Promise<PollingPeer> {
  gateway.configureHost = (host) => {
    host.protocolRevision = revision;
    host.quiet = true;
  };
  if (gateway.host !== undefined) gateway.configureHost(gateway.host);
  const { metadata } = await gateway.create({ name, spec: { policy: policy(), providers: ["p"] } });
  await gateway.phase(SandboxPhase.READY, name);
  return new PollingPeer(gateway.host!, gateway.host!.attached.get(metadata!.id)!);
}
const target = () => ({ workspaceScope: gateway.scope, sandbox: "box" });
const setPolicy = (host: string) => gateway.client.updateConfig({ ...target(), policy: policy(host) });
const revision = async () => (await gateway.client.getSandboxPolicyStatus(target())).revision!;
const admission = async () => (await gateway.get()).status!.configurationAdmission!;
const version = async () => (await gateway.get()).metadata!.resourceVersion;
const updates = () => [...gateway.host!.attached.values()].flatMap((supervisor) => supervisor.updates);
const warnings = () => gateway.logLines.filter((line) => line.includes("made by an older version"));
const readiness = async (provider = "p", sandbox = "box") =>
  (await gateway.client.getSandboxProviderStatus({ ...target(), sandbox, provider })).status!;

describe("a supervisor of an older protocol", () => {
  it.each([0, 1])("of revision %i runs, is sent no update, and is warned of once a start", async (number) => {
    await peer(number);
    await setPolicy("b.example.com");
    const { exitCode } = await lastEvent();
    expect(exitCode).toBe(0);
    expect(updates()).toEqual([]);
    expect(warnings()).toHaveLength(1);
    const events = await eventReasons();
    expect(events.filter((reason) => reason === "SupervisorOutdated")).toHaveLength(1);
    // Its host is lost and another one takes the running sandbox: the same start.
    const before = gateway.host;
    gateway.host!.kill();
    gateway.startHost();
    await gateway.until(() => gateway.host !== before && gateway.host!.attached.size === 1, "a new host");
    await gateway.until(() => [...gateway.host!.attached.values()][0]!.accepted !== undefined, "a new session");
    await gateway.until(
      () => gateway.services.delivery.stats.pollingSessions.get(String(number)) === 2,
      "two sessions",
    );
    expect(warnings()).toHaveLength(1);
    // A supervisor of this version after it is pushed to again.
    gateway.host!.kill();
    gateway.configureHost = () => {};
    gateway.startHost();
    await gateway.until(() => [...gateway.host!.attached.values()][0]?.accepted !== undefined, "a new session");
    await setPolicy("c.example.com");
    await gateway.until(() => updates().length > 0, "an update");
    expect(warnings()).toHaveLength(1);
  });

  async function lastEvent(): Promise<{ exitCode: number | undefined }> {
    for await (const { payload } of gateway.client.execSandbox({ ...target(), command: ["x"] }))
      if (payload.case === "exit") return { exitCode: payload.value.exitCode };
    return { exitCode: undefined };
  }
  async function eventReasons(): Promise<string[]> {
    const found: string[] = [];
    for await (const { payload } of gateway.client.watchSandbox({
      ...target(),
      followEvents: true,
      eventTail: 50,
    })) {
      if (payload.case !== "event") continue;
      found.push(payload.value.reason);
      if (payload.value.reason === "Ready") break;
    }
    return found;
  }

  it("that nothing changed for reports nothing, and its polls change nothing", async () => {
    const polling = await peer();
    const before = await version();
    const lines = gateway.logLines.length;
    for (const _ of [1, 2, 3]) expect(await polling.poll()).toBe("nothing");
    expect(polling.reports).toEqual([]);
    // Reports of what is stored already are no news either.
    const config = await polling.config();
    await polling.judge(Admission.ACCEPTED, config);
    await polling.judge(Admission.PENDING, config);
    await polling.policy(1, PolicyStatus.LOADED);
    expect(await version()).toBe(before);
    expect(gateway.logLines.slice(lines).filter((line) => !line.includes('"level":10'))).toEqual([]);
  });

  it("finds a change at its first poll, and what it reports is stored", async () => {
    const polling = await peer();
    await setPolicy("b.example.com");
    expect(await revision()).toMatchObject({ version: 2, status: PolicyStatus.PENDING });
    expect(await polling.poll()).toBe("both");
    expect(polling.reports).toEqual(["policy 2 LOADED", "configuration ACCEPTED", "readiness"]);
    expect(await revision()).toMatchObject({ version: 2, status: PolicyStatus.LOADED });
    const config = await polling.config();
    expect(await admission()).toMatchObject({
      state: Admission.ACCEPTED,
      policyVersion: 2,
      configRevision: config.configRevision,
      providerEnvRevision: config.providerEnvRevision,
    });
    expect((await gateway.get()).status!.currentPolicyVersion).toBe(2);
    expect(await polling.poll()).toBe("nothing");
  });

  it("acknowledges a newer revision of the same policy", async () => {
    const polling = await peer();
    await gateway.client.updateConfig({ ...target(), policy: policy(), annotations: { why: "again" } });
    expect(await polling.poll()).toBe("configuration");
    expect(await revision()).toMatchObject({ version: 2, status: PolicyStatus.LOADED });
    expect((await gateway.get()).status!.currentPolicyVersion).toBe(2);
  });

  it("that refuses a revision is shown, once, and one that accepts it later too", async () => {
    const polling = await peer();
    await setPolicy("b.example.com");
    const config = await polling.config();
    for (const _ of [1, 2]) await polling.judge(Admission.REJECTED, config, { error: "no\nway" });
    expect(await revision()).toMatchObject({ status: PolicyStatus.FAILED, loadError: "no\\x0away" });
    expect(gateway.logLines.filter((line) => line.includes("refused a change"))).toHaveLength(1);
    expect(await polling.poll()).toBe("both");
    expect(await revision()).toMatchObject({ status: PolicyStatus.LOADED, loadError: "" });
  });

  it("reports failures of a policy, and nothing of one that was replaced or never was", async () => {
    const polling = await peer();
    await setPolicy("b.example.com");
    await polling.policy(2, PolicyStatus.FAILED, "bad");
    expect(await revision()).toMatchObject({ status: PolicyStatus.FAILED, loadError: "bad" });
    await setPolicy("c.example.com");
    await polling.policy(2, PolicyStatus.LOADED);
    expect((await gateway.get()).status!.currentPolicyVersion).toBe(1);
    expect(await refusal(polling.policy(9, PolicyStatus.LOADED))).toBe(Code.NotFound);
    expect(await refusal(polling.policy(0, PolicyStatus.LOADED))).toBe(Code.InvalidArgument);
    expect(await refusal(polling.policy(3, PolicyStatus.PENDING))).toBe(Code.InvalidArgument);
  });

  it("may judge only what it is served now, as the instance that it is", async () => {
    const polling = await peer();
    const old = await polling.config();
    await setPolicy("b.example.com");
    expect(await refusal(polling.judge(Admission.ACCEPTED, old))).toBe(Code.FailedPrecondition);
    const now = await polling.config();
    const wrong = [{ policyHash: "00" }, { configRevision: 1n }, { providerEnvRevision: 1n }, { instanceId: "x" }];
    for (const more of wrong)
      expect(await refusal(polling.judge(Admission.ACCEPTED, now, more)), JSON.stringify(more, String)).toBe(
        Code.FailedPrecondition,
      );
    expect(await refusal(polling.judge(Admission.UNSPECIFIED, now))).toBe(Code.InvalidArgument);
    expect(await admission()).toMatchObject({ policyVersion: 1 });
  });

  it("gets credentials that are bound, with where they go, and no others", async () => {
    const polling = await peer();
    await gateway.client.attachSandboxProvider({ ...target(), provider: "q" });
    expect(await polling.poll()).toBe("both");
    expect(polling.environment).toMatchObject({
      environment: { TOKEN: SECRET },
      staticCredentialBindings: { TOKEN: { endpoints: [{ host: "a.example.com", port: 443 }] } },
      stablePlaceholderEnvironmentKeys: ["TOKEN"],
      readinessReason: Reason.CREDENTIALS_WITHHELD,
    });
    // Whatever it claims of them: what it was not given is not in force.
    await polling.observe();
    expect(await readiness("q")).toMatchObject({ state: State.WITHHELD, reason: Reason.CREDENTIALS_WITHHELD });
    expect((await readiness()).state).toBe(State.READY);
    const unable = await polling.fetchEnvironment(false);
    expect(unable).toMatchObject({ environment: {}, readinessReason: Reason.UNSUPPORTED_SUPERVISOR });
    expect(gateway.logLines.join("")).not.toContain(SECRET);
  });

  it("is ready by what it reports, no longer than that is valid", async () => {
    const polling = await peer();
    expect(await readiness()).toMatchObject({ state: State.PENDING, reason: Reason.WAITING_FOR_SUPERVISOR });
    const first = await polling.observe();
    expect(first).toMatchObject({
      acceptedSequence: 1n,
      reportInterval: { seconds: 5n },
      observationTtl: { seconds: 15n },
    });
    expect((await readiness()).state).toBe(State.READY);
    // The same again is answered; other content under its number, and older numbers, are refused.
    expect(await polling.report(polling.observation({ sequence: 1n }))).toMatchObject({ acceptedSequence: 1n });
    const other = polling.observation({ sequence: 1n, policyActive: false });
    expect(await refusal(polling.report(other))).toBe(Code.FailedPrecondition);
    await polling.observe({ credentialsInstalled: false, reason: Reason.CREDENTIAL_INSTALL_FAILED });
    expect(await readiness()).toMatchObject({ state: State.FAILED, reason: Reason.CREDENTIAL_INSTALL_FAILED });
    const late = polling.observation({ sequence: 1n });
    expect(await refusal(polling.report(late))).toBe(Code.FailedPrecondition);
    const bad = [
      { sessionId: "x" },
      { sequence: 0n },
      { policyHash: "g" },
      { policyHash: "a".repeat(129) },
      { attachmentEpoch: "x" },
      { processInstanceId: "x" },
      { reason: 99 },
    ];
    for (const changes of bad)
      expect(await refusal(polling.report(polling.observation(changes))), JSON.stringify(changes, String)).toBe(
        Code.InvalidArgument,
      );
    expect(await refusal(polling.report(undefined))).toBe(Code.InvalidArgument);
    const foreign = polling.observation({ sessionId: crypto.randomUUID() });
    expect(await refusal(polling.report(foreign))).toBe(Code.FailedPrecondition);
  });
});

describe("what a polling supervisor has in force", () => {
  let ahead = 0;
  beforeEach(async () => {
    ahead = 0;
    await gateway[Symbol.asyncDispose]();
    gateway = await Harness.open({ ...systemClock, monotonic: () => systemClock.monotonic() + ahead });
    const provider = { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: SECRET } };
    await gateway.client.createProvider({ workspaceScope: gateway.scope, provider });
  });

  it("is renewed by its own reports only: by no heartbeat, and by no retry", async () => {
    const polling = await peer(1, "box");
    const pushed = await peer(2, "other");
    gateway.host!.quiet = false;
    gateway.host!.attached.get(pushed.sandboxId)!.observe();
    await gateway.until(async () => (await readiness("p", "other")).state === State.READY, "readiness of the other");
    await polling.observe();
    ahead = 14_000;
    await polling.report(polling.observation({ sequence: 1n }));
    gateway.host!.send({ case: "heartbeat", value: {} });
    ahead = 16_000;
    await gateway.until(async () => (await readiness("p", "other")).state === State.READY, "the heartbeat");
    expect(await readiness()).toMatchObject({ state: State.PENDING, reason: Reason.SUPERVISOR_LEASE_EXPIRED });
    await polling.observe();
    expect((await readiness()).state).toBe(State.READY);
  });

  it("is no credential whose stored value cannot be opened, and it says so", async () => {
    const polling = await peer();
    const { vault } = gateway.deps;
    const { open } = vault;
    await gateway.client.updateProvider({
      workspaceScope: gateway.scope,
      provider: { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: `${SECRET}-2` } },
    });
    vault.open = () => {
      throw new RuntimeError("secret_unreadable", "the stored value cannot be opened");
    };
    expect(await refusal(polling.fetchEnvironment())).toBe(Code.FailedPrecondition);
    expect(await polling.poll()).toBe("environment unavailable");
    expect(await readiness()).toMatchObject({ state: State.FAILED, reason: Reason.CREDENTIAL_INSTALL_FAILED });
    vault.open = open;
    expect(await polling.poll()).toBe("both");
    expect(polling.environment!.environment).toEqual({ TOKEN: `${SECRET}-2` });
    expect((await readiness()).state).toBe(State.READY);
    expect(gateway.logLines.join("")).not.toContain(SECRET);
  });
});

describe("the RPCs of supervisors that poll", () => {
  /** Every one of them, for a sandbox, with these headers. */
  const calls = (
    polling: PollingPeer,
    headers: Record<string, string>,
    name = "box",
    sandboxId = polling.sandboxId,
  ) => {
    const client = gateway.host!.publicClient;
    return [
      client.getSandboxConfig({ workspaceScope: gateway.scope, name }, { headers }),
      client.getSandboxProviderEnvironment({ sandboxId, supportsStaticCredentialBindings: true }, { headers }),
      client.reportPolicyStatus({ sandboxId, version: 1, status: PolicyStatus.FAILED }, { headers }),
      client.reportSandboxConfiguration({ sandboxId, admission: { state: Admission.REJECTED } }, { headers }),
      client.reportProviderReadiness({ sandboxId, observation: polling.observation() }, { headers }),
    ];
  };
  const codes = (all: Promise<unknown>[]) => Promise.all(all.map(refusal));
  const five = (code: Code) => Array.from({ length: 5 }, () => code);

  it("answer no token, a made-up one, the host's secret and one of an earlier epoch with UNAUTHENTICATED", async () => {
    const polling = await peer();
    const stale = polling.options.headers;
    expect(await codes(calls(polling, {}))).toEqual(five(Code.Unauthenticated));
    for (const token of ["made-up", gateway.hostSecret])
      expect(await codes(calls(polling, { [SANDBOX_TOKEN_HEADER]: token }))).toEqual(five(Code.Unauthenticated));
    gateway.host!.kill();
    gateway.startHost();
    await gateway.until(() => [...gateway.host!.attached.values()][0]?.accepted !== undefined, "a new session");
    expect(await codes(calls(polling, stale))).toEqual(five(Code.Unauthenticated));
  });

  it("answer the token of another sandbox with PERMISSION_DENIED, whether the sandbox exists or not", async () => {
    const [mine, theirs] = [await peer(1, "box"), await peer(1, "other")];
    const { headers } = theirs.options;
    expect(await codes(calls(mine, headers))).toEqual(five(Code.PermissionDenied));
    const nowhere = calls(mine, headers, "nowhere", crypto.randomUUID());
    expect(await codes(nowhere)).toEqual(five(Code.PermissionDenied));
    expect(await admission()).toMatchObject({ state: Admission.ACCEPTED });
  });

  it("give secrets to no supervisor that is pushed to, and take no reports of it", async () => {
    const polling = await peer(2);
    const [config, ...others] = calls(polling, polling.options.headers);
    expect((await config)!).toMatchObject({ version: 1 });
    expect(await codes(others)).toEqual(five(Code.FailedPrecondition).slice(1));
  });

  it("are not offered to users, whatever they send", async () => {
    const polling = await peer();
    const { headers } = polling.options;
    const { sandboxId } = polling;
    const { client } = gateway;
    const all = [
      client.getSandboxProviderEnvironment({ sandboxId }, { headers }),
      client.reportPolicyStatus({ sandboxId, version: 1, status: PolicyStatus.FAILED }, { headers }),
      client.reportSandboxConfiguration({ sandboxId }, { headers }),
      client.reportProviderReadiness({ sandboxId, observation: polling.observation() }, { headers }),
    ];
    expect(await codes(all)).toEqual(five(Code.Unimplemented).slice(1));
    // Nor are the RPCs of users to hosts.
    const listing = gateway.host!.publicClient.listSandboxes({ workspaceScope: gateway.scope }, { headers });
    expect(await refusal(listing)).toBe(Code.Unimplemented);
  });
});
