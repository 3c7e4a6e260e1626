import { randomUUID } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  ConfigUpdateOperationState as Operation,
  ProviderMutationKind,
  ProviderReadinessReason as Reason,
  SandboxPhase,
  ProviderReadinessState as State,
} from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "./testing/harness.ts";

const refusal = async (call: Promise<unknown>): Promise<[Code, string]> => {
  try {
    await call;
  } catch (error) {
    const { code, rawMessage } = ConnectError.from(error);
    return [code, rawMessage];
  }
  throw new Error("the call succeeded");
};
const provider = (name: string, key = "TOKEN") => ({
  metadata: { name },
  type: "generic",
  credentials: { [key]: "v1" },
});
const binding = (name: string): object => ({
  version: 1,
  networkPolicies: {
    a: {
      endpoints: [
        { host: "a.example.com", port: 443, protocol: "rest", access: 3, credentialBinding: { provider: name } },
      ],
      binaries: [{ path: "/x" }],
    },
  },
});

describe("the providers of a sandbox", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
    for (const [name, key] of [
      ["p", "TOKEN"],
      ["q", "OTHER"],
      ["clash", "TOKEN"],
    ] as const)
      await gateway.client.createProvider({ workspaceScope: gateway.scope, provider: provider(name, key) });
    await gateway.create({ spec: { policy: { version: 1 } } });
    await gateway.phase(SandboxPhase.READY);
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  const target = (name: string) => ({ workspaceScope: gateway.scope, sandbox: "box", provider: name });
  const attach = (name: string, more: object = {}) =>
    gateway.client.attachSandboxProvider({ ...target(name), ...more });
  const detach = (name: string, more: object = {}) =>
    gateway.client.detachSandboxProvider({ ...target(name), ...more });
  const status = async (name: string, receiptId = "") =>
    (await gateway.client.getSandboxProviderStatus({ ...target(name), receiptId })).status!;
  const settled = async (name: string, receiptId: string, state: State) => {
    await gateway.until(async () => (await status(name, receiptId)).state === state, `state ${State[state]}`);
    return await status(name, receiptId);
  };
  const names = async () =>
    (await gateway.client.listSandboxProviders({ workspaceScope: gateway.scope, sandbox: "box" })).providers.map(
      ({ metadata }) => metadata!.name,
    );
  const supervisor = () => [...gateway.host!.attached.values()].at(-1)!;

  it("change while it runs: attached is READY, detached is REVOKED, and each set has an epoch of its own", async () => {
    const epochs = new Set([(await gateway.get()).spec!.providerAttachmentEpoch]);
    const first = await attach("p");
    expect(first).toMatchObject({ attached: true, receipt: { kind: ProviderMutationKind.ATTACH, provider: "p" } });
    epochs.add(first.sandbox!.spec!.providerAttachmentEpoch);
    const ready = await settled("p", first.receipt!.receiptId, State.READY);
    expect(ready).toMatchObject({ reason: Reason.UNSPECIFIED, operation: { state: Operation.APPLIED } });
    expect(ready.observed).toMatchObject({
      credentialsInstalled: true,
      attachmentEpoch: first.receipt!.desired!.attachmentEpoch,
    });
    expect(ready.operation!.operationId).toBe(first.receipt!.receiptId);
    expect(await names()).toEqual(["p"]);

    const gone = await detach("p");
    expect(gone).toMatchObject({ detached: true, receipt: { desired: { providerId: "" } } });
    epochs.add(gone.sandbox!.spec!.providerAttachmentEpoch);
    expect((await settled("p", gone.receipt!.receiptId, State.REVOKED)).operation!.state).toBe(Operation.APPLIED);
    expect(await names()).toEqual([]);
    expect(epochs.size).toBe(3);
    // What was applied stays history, whatever is wanted now.
    expect(await status("p", first.receipt!.receiptId)).toMatchObject({
      state: State.SUPERSEDED,
      operation: { state: Operation.APPLIED },
    });
  });

  it("change only when something changes, and say so", async () => {
    expect((await detach("p")).detached).toBe(false);
    await attach("p");
    const { metadata, spec } = await gateway.get();
    const again = await attach("p");
    expect(again.attached).toBe(false);
    expect(again.sandbox!.spec!.providerAttachmentEpoch).toBe(spec!.providerAttachmentEpoch);
    expect(again.sandbox!.metadata!.id).toBe(metadata!.id);
    await settled("p", again.receipt!.receiptId, State.READY);
  });

  it("are refused when they do not exist, clash, are used by the policy, or were changed by somebody else", async () => {
    await attach("p");
    expect(await refusal(attach("none"))).toEqual([
      Code.FailedPrecondition,
      expect.stringContaining('"none" does not exist'),
    ]);
    expect(await refusal(attach("clash"))).toEqual([
      Code.FailedPrecondition,
      expect.stringContaining("both set TOKEN"),
    ]);
    await gateway.client.updateConfig({ workspaceScope: gateway.scope, sandbox: "box", policy: binding("p") });
    expect(await refusal(detach("p"))).toEqual([Code.FailedPrecondition, expect.stringContaining("a.example.com:443")]);
    expect((await refusal(attach("q", { expectedResourceVersion: 1n })))[0]).toBe(Code.Aborted);
    expect((await refusal(attach("")))[0]).toBe(Code.InvalidArgument);
    expect(await names()).toEqual(["p"]);
  });

  it("survive many changes at once, each of which happens", async () => {
    const results = await Promise.all(["p", "q", "p", "q"].map((name) => attach(name)));
    expect(results.filter(({ attached }) => attached)).toHaveLength(2);
    expect(await names()).toEqual(["p", "q"]);
  });

  it("show a rotation in every sandbox that has the provider, and no other", async () => {
    await attach("p");
    await gateway.create({ name: "other", spec: { policy: { version: 1 } } });
    const updated = await gateway.client.updateProvider({
      workspaceScope: gateway.scope,
      provider: { metadata: { name: "p" }, credentials: { TOKEN: "v2" } },
      requestId: randomUUID(),
    });
    expect(updated.targetReceipts).toMatchObject([
      { kind: ProviderMutationKind.UPDATE, mutationId: updated.mutationId, desired: { sandbox: "box" } },
    ]);
    const [receipt] = updated.targetReceipts;
    expect((await settled("p", receipt!.receiptId, State.READY)).operation!.state).toBe(Operation.APPLIED);
    expect(JSON.stringify(receipt, (_, value) => (typeof value === "bigint" ? String(value) : value))).not.toContain(
      "v2",
    );
  });

  it("are PENDING without evidence: silence, a lost session, a stopped sandbox", async () => {
    gateway.host!.quiet = true;
    const { receipt } = await attach("p");
    expect(await status("p", receipt!.receiptId)).toMatchObject({
      state: State.PENDING,
      operation: { state: Operation.PENDING },
    });
    supervisor().kill();
    await gateway.until(
      async () => (await status("p", receipt!.receiptId)).reason === Reason.SUPERVISOR_DISCONNECTED,
      "the end of the session",
    );
    await gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" }).catch(() => {});
  });

  it("end a change that a later one replaced", async () => {
    gateway.host!.quiet = true;
    const first = await attach("p");
    const second = await attach("q");
    expect(await status("p", first.receipt!.receiptId)).toMatchObject({
      state: State.SUPERSEDED,
      reason: Reason.DESIRED_STATE_CHANGED,
      operation: { state: Operation.SUPERSEDED, sanitizedError: "DESIRED_STATE_CHANGED" },
    });
    expect((await status("q", second.receipt!.receiptId)).state).toBe(State.PENDING);
  });

  it("are looked at without a receipt: one operation for the same wish, however often", async () => {
    await attach("p");
    const first = await status("p");
    expect(first.receipt).toMatchObject({ kind: ProviderMutationKind.OBSERVE, desired: { sandbox: "box" } });
    expect((await status("p")).receipt!.receiptId).toBe(first.receipt!.receiptId);
    expect((await settled("q", "", State.REVOKED)).receipt!.desired!.providerId).toBe("");
    expect(await refusal(status("none"))).toEqual([Code.NotFound, expect.stringContaining("provider")]);
  });

  it("do not tell one sandbox's or provider's receipt to another's caller", async () => {
    const { receipt } = await attach("p");
    const notFound = [
      Code.NotFound,
      "provider operation not found. Leave receipt_id empty to ask for the current state",
    ];
    expect(await refusal(status("q", receipt!.receiptId))).toEqual(notFound);
    expect(await refusal(status("p", randomUUID()))).toEqual(notFound);
  });

  it("are changed once under a request id", async () => {
    const requestId = randomUUID();
    const first = await attach("p", { requestId });
    await detach("p");
    const again = await attach("p", { requestId });
    expect(again).toMatchObject({ attached: true, receipt: { receiptId: first.receipt!.receiptId } });
    expect(await names()).toEqual([]);
  });

  /** Lets `other` happen between the checks of the next change and its transaction. */
  const meanwhile = (other: () => Promise<unknown>): void => {
    gateway.beforeWrite = async (commands) => {
      const subjects = commands.flatMap(({ statements }) => statements.map(({ subject }) => subject));
      if (!subjects.some((subject) => subject === "provider" || subject === "attachment")) return;
      gateway.beforeWrite = async () => {};
      await other();
    };
  };
  const remove = (name: string) => gateway.client.deleteProvider({ workspaceScope: gateway.scope, name });
  const update = (name: string, key: string) =>
    gateway.client.updateProvider({
      workspaceScope: gateway.scope,
      provider: { metadata: { name }, credentials: { [key]: "v2" } },
    });
  const notThere = [Code.FailedPrecondition, expect.stringContaining('"p" does not exist')];
  const clashing = (key: string) => [Code.FailedPrecondition, expect.stringContaining(`both set ${key}`)];

  it("that is deleted while it is being attached is not attached, nor is a later one of its name", async () => {
    meanwhile(() => remove("p"));
    expect(await refusal(attach("p"))).toEqual(notThere);
    await gateway.client.createProvider({ workspaceScope: gateway.scope, provider: provider("p") });
    expect(await names()).toEqual([]);
  });

  it("that is deleted while a sandbox is created with it is not attached to it", async () => {
    meanwhile(() => remove("p"));
    expect(await refusal(gateway.create({ name: "late", spec: { providers: ["p"] } }))).toEqual(notThere);
    expect((await refusal(gateway.get("late")))[0]).toBe(Code.NotFound);
  });

  it("that is attached while it is being deleted stays", async () => {
    meanwhile(() => attach("p"));
    expect(await refusal(remove("p"))).toEqual([
      Code.FailedPrecondition,
      expect.stringContaining("attached to 1 sandboxes: box"),
    ]);
    expect(await names()).toEqual(["p"]);
  });

  it("that is given a variable of another one while it is being attached is not attached", async () => {
    await settled("q", (await attach("q")).receipt!.receiptId, State.READY);
    meanwhile(() => update("p", "OTHER"));
    expect(await refusal(attach("p"))).toEqual(clashing("OTHER"));
    expect(await names()).toEqual(["q"]);
  });

  it("that is attached while it is given a variable of another one is not changed", async () => {
    await settled("q", (await attach("q")).receipt!.receiptId, State.READY);
    meanwhile(() => attach("p"));
    expect(await refusal(update("p", "OTHER"))).toEqual(clashing("OTHER"));
    const { provider: stored } = await gateway.client.getProvider({ workspaceScope: gateway.scope, name: "p" });
    expect(Object.keys(stored!.credentials)).toEqual(["TOKEN"]);
  });

  it("that is changed while it is being attached or changed again is changed and attached", async () => {
    meanwhile(() => update("p", "THIRD"));
    expect((await attach("p")).attached).toBe(true);
    meanwhile(() => detach("p"));
    await update("p", "FOURTH");
    const { provider: stored } = await gateway.client.getProvider({ workspaceScope: gateway.scope, name: "p" });
    expect(Object.keys(stored!.credentials).toSorted()).toEqual(["FOURTH", "THIRD", "TOKEN"]);
  });
});
