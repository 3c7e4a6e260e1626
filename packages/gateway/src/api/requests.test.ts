import { randomUUID } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import { DeletionOutcome, SandboxPhase } from "@openshell/api";
import { readErrorDetails } from "@openshell/api/errors.ts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "./testing/harness.ts";

const failed = async (call: Promise<unknown>): Promise<ConnectError> => {
  try {
    await call;
  } catch (error) {
    return ConnectError.from(error);
  }
  throw new Error("the call succeeded");
};
const reason = (error: ConnectError) => readErrorDetails(error).reason;

describe("request ids", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  async function exec(requestId: string, overrides: object = {}): Promise<string[]> {
    const events: string[] = [];
    const request = { workspaceScope: gateway.scope, sandbox: "box", command: ["true"], requestId, ...overrides };
    for await (const event of gateway.client.execSandbox(request)) events.push(event.payload.case!);
    return events;
  }

  it("create once: a repetition gets the same sandbox, marked as replayed", async () => {
    const requestId = randomUUID();
    const request = { workspaceScope: gateway.scope, spec: {}, requestId };
    const headers: (string | null)[] = [];
    const options = { onHeader: (received: Headers) => void headers.push(received.get("openshell-replayed")) };
    const first = await gateway.client.createSandbox(request, options);
    const second = await gateway.client.createSandbox({ ...request, requestId: requestId.toUpperCase() }, options);
    expect(second.sandbox?.metadata?.id).toBe(first.sandbox?.metadata?.id);
    expect(headers).toEqual([null, "true"]);
    expect((await gateway.client.listSandboxes({ workspaceScope: gateway.scope })).sandboxes).toHaveLength(1);
  });

  it("create once: two at the same time make one sandbox", async () => {
    const request = { workspaceScope: gateway.scope, spec: {}, requestId: randomUUID() };
    const results = await Promise.allSettled([1, 2, 3].map(() => gateway.client.createSandbox(request)));
    const ids = results.flatMap((result) =>
      result.status === "fulfilled" ? [result.value.sandbox!.metadata!.id] : [],
    );
    expect(new Set(ids).size).toBe(1);
    for (const result of results) {
      if (result.status === "rejected")
        expect(reason(ConnectError.from(result.reason))).toBe("REQUEST_OUTCOME_UNCERTAIN");
    }
    expect((await gateway.client.listSandboxes({ workspaceScope: gateway.scope })).sandboxes).toHaveLength(1);
  });

  it("refuse another payload, a malformed id and the nil id", async () => {
    const requestId = randomUUID();
    await gateway.client.createSandbox({ workspaceScope: gateway.scope, spec: {}, requestId });
    const other = { workspaceScope: gateway.scope, spec: { environment: { A: "1" } }, requestId };
    expect(reason(await failed(gateway.client.createSandbox(other)))).toBe("REQUEST_ID_PAYLOAD_MISMATCH");
    for (const bad of ["x", "00000000-0000-0000-0000-000000000000"]) {
      const error = await failed(
        gateway.client.createSandbox({ workspaceScope: gateway.scope, spec: {}, requestId: bad }),
      );
      expect(error.code).toBe(Code.InvalidArgument);
    }
  });

  it("say that the created sandbox is gone, and never make another one", async () => {
    const request = { workspaceScope: gateway.scope, spec: {}, name: "box", requestId: randomUUID() };
    await gateway.client.createSandbox(request);
    await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(reason(await failed(gateway.client.createSandbox(request)))).toBe("REQUEST_REPLAY_UNAVAILABLE");
  });

  it("repeat the outcome of a delete although the name is in use again", async () => {
    await gateway.create();
    const request = { workspaceScope: gateway.scope, name: "box", requestId: randomUUID() };
    const first = await gateway.client.deleteSandbox(request);
    expect(first.outcome).toBe(DeletionOutcome.COMPLETED);
    const { metadata } = await gateway.create();
    expect(await gateway.client.deleteSandbox(request)).toMatchObject({
      outcome: first.outcome,
      sandboxId: first.sandboxId,
    });
    expect((await gateway.get()).metadata?.id).toBe(metadata?.id);
  });

  it("run a command once: afterwards its output is said to be gone", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    let runs = 0;
    const script = gateway.host!.relay;
    gateway.host!.relay = (relay, kind) => {
      runs += 1;
      return script(relay, kind);
    };
    const requestId = randomUUID();
    expect(await exec(requestId)).toEqual(["stdout", "exit"]);
    expect(reason(await failed(exec(requestId)))).toBe("REQUEST_STREAM_UNAVAILABLE");
    expect(reason(await failed(exec(requestId, { command: ["false"] })))).toBe("REQUEST_ID_PAYLOAD_MISMATCH");
    expect(runs).toBe(1);
  });

  it("leave a command unresolved whose host died, and one that was ended at its timeout", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    gateway.host!.relay = async (relay) => {
      await relay.down.next();
      relay.kill();
    };
    const lost = randomUUID();
    expect((await failed(exec(lost))).code).toBe(Code.Unavailable);
    expect(reason(await failed(exec(lost)))).toBe("REQUEST_OUTCOME_UNCERTAIN");
    gateway.host!.relay = async (relay) => {
      await relay.down.next();
      await new Promise((resolve) => setTimeout(resolve, 30));
      await relay.send({ case: "exit", value: { exitCode: 124 } });
    };
    const timedOut = randomUUID();
    const timeout = { executionTimeout: { seconds: 0n, nanos: 20_000_000 } };
    expect(await exec(timedOut, timeout)).toEqual(["exit"]);
    expect(reason(await failed(exec(timedOut, timeout)))).toBe("REQUEST_OUTCOME_UNCERTAIN");
    const own = randomUUID();
    expect(await exec(own)).toEqual(["exit"]);
    expect(reason(await failed(exec(own)))).toBe("REQUEST_STREAM_UNAVAILABLE");
  });
});

describe("request ids of other changes", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  /** Sends the same request twice and says what the second answer was marked with. */
  async function twice<T>(
    call: (options: { onHeader: (headers: Headers) => void }) => Promise<T>,
  ): Promise<readonly [T, T]> {
    const marks: (string | null)[] = [];
    const options = { onHeader: (headers: Headers) => void marks.push(headers.get("openshell-replayed")) };
    const answers = [await call(options), await call(options)] as const;
    expect(marks).toEqual([null, "true"]);
    return answers;
  }

  it("stop and start once each", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    const scope = { workspaceScope: gateway.scope, name: "box" };
    const stop = { ...scope, requestId: randomUUID() };
    await twice((options) => gateway.client.stopSandbox(stop, options));
    await twice((options) => gateway.client.startSandbox({ ...scope, requestId: stop.requestId }, options));
    await gateway.phase(SandboxPhase.READY);
    expect((await gateway.client.stopSandbox(stop)).sandbox?.status?.phase).toBe(SandboxPhase.READY);
    expect((await gateway.store.sandboxes.byName("default", "box"))?.generation).toBe(2n);
  });

  it("create, update and delete a provider once, and never repeat an answer that is no longer true", async () => {
    const scope = { workspaceScope: gateway.scope };
    const provider = { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: "first" } };
    const made = { ...scope, provider, requestId: randomUUID() };
    const [first, again] = await twice((options) => gateway.client.createProvider(made, options));
    expect(again).toEqual(first);
    const changed = {
      ...scope,
      provider: { metadata: { name: "p" }, credentials: { TOKEN: "second" } },
      requestId: randomUUID(),
    };
    const [update, repeated] = await twice((options) => gateway.client.updateProvider(changed, options));
    expect(repeated.mutationId).toBe(update.mutationId);
    expect(repeated.provider?.metadata?.resourceVersion).toBe(2n);
    expect(reason(await failed(gateway.client.createProvider(made)))).toBe("REQUEST_REPLAY_UNAVAILABLE");
    const removed = { ...scope, name: "p", requestId: randomUUID() };
    const [outcome] = await twice((options) => gateway.client.deleteProvider(removed, options));
    expect(outcome.outcome).toBe(DeletionOutcome.COMPLETED);
  });

  it("store a policy once", async () => {
    await gateway.create({ spec: { policy: { version: 1 } } });
    await gateway.phase(SandboxPhase.READY);
    const networkPolicies = { a: { endpoints: [{ host: "a.example.com", port: 443 }], binaries: [{ path: "/x" }] } };
    const request = {
      workspaceScope: gateway.scope,
      sandbox: "box",
      policy: { version: 1, networkPolicies },
      requestId: randomUUID(),
    };
    const [first, again] = await twice((options) => gateway.client.updateConfig(request, options));
    expect([first.version, again.version, again.policyHash]).toEqual([2, 2, first.policyHash]);
    await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(reason(await failed(gateway.client.updateConfig(request)))).toBe("REQUEST_REPLAY_UNAVAILABLE");
  });

  it("leave the id of a refused request unused", async () => {
    const requestId = randomUUID();
    const stop = { workspaceScope: gateway.scope, name: "box", requestId };
    expect((await failed(gateway.client.stopSandbox(stop))).code).toBe(Code.NotFound);
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    expect((await gateway.client.stopSandbox(stop)).sandbox?.status?.phase).toBe(SandboxPhase.STOPPED);
  });
});

describe("CreateSandbox", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  it("reports every violation at once and stores nothing", async () => {
    const error = await failed(
      gateway.create({
        name: "Not_A_Label",
        labels: { "bad key": "x" },
        spec: {
          command: [""],
          environment: { OPENSHELL_X: "1" },
          template: { image: "ubuntu", driverConfig: { local: { volumes: ["x"], other: 1 } } },
        },
      }),
    );
    expect(error.code).toBe(Code.InvalidArgument);
    expect(readErrorDetails(error).violations.map(({ field }) => field)).toEqual([
      "name",
      "labels[bad key]",
      "spec.environment[OPENSHELL_X]",
      "spec.command",
      "spec.template.image",
      "spec.template.driver_config.local.other",
    ]);
    expect((await gateway.client.listSandboxes({ workspaceScope: gateway.scope })).sandboxes).toEqual([]);
  });

  it("refuses a name in use, a provider that does not exist and a policy that binds an unattached one", async () => {
    await gateway.create();
    expect((await failed(gateway.create())).code).toBe(Code.AlreadyExists);
    expect((await failed(gateway.create({ name: "b", spec: { providers: ["none"] } }))).code).toBe(
      Code.FailedPrecondition,
    );
    const endpoint = {
      host: "api.example.com",
      port: 443,
      protocol: "rest",
      access: 1,
      credentialBinding: { provider: "p" },
    };
    const networkPolicies = { api: { endpoints: [endpoint], binaries: [{ path: "/usr/bin/curl" }] } };
    const error = await failed(gateway.create({ name: "b", spec: { policy: { version: 1, networkPolicies } } }));
    expect(error).toMatchObject({ code: Code.FailedPrecondition });
    expect(error.rawMessage).toMatch(/provider 'p', which is not attached/);
  });

  it("passes the volumes of the machine's owner to the driver, with its ids, and nobody else's", async () => {
    const spec = { template: { driverConfig: { local: { volumes: ["/src:/work", "/etc/x:/x:ro"] } } } };
    const intents: unknown[] = [];
    gateway.driver.validate = async (...args: unknown[]) => void intents.push(args[0]);
    await gateway.create({ spec });
    gateway.caller = { ...gateway.caller, ownerOfMachineFiles: false };
    await gateway.create({ name: "other", spec });
    expect(intents).toMatchObject([
      {
        caller: { uid: process.getuid!(), gid: process.getgid!() },
        volumes: [{ source: "/src", target: "/work", access: "rw" }, { access: "ro" }],
      },
      { caller: undefined },
    ]);
  });

  it("never tells the nonce or a credential, in answers or logs", async () => {
    const provider = { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: "very-secret-value" } };
    const made = await gateway.client.createProvider({ workspaceScope: gateway.scope, provider });
    expect(made.provider?.credentials).toEqual({ TOKEN: "REDACTED" });
    await gateway.create({ spec: { providers: ["p"] } });
    await gateway.phase(SandboxPhase.READY);
    expect(gateway.logLines.join("")).not.toContain("very-secret-value");
    const { providers } = await gateway.client.listSandboxProviders({ workspaceScope: gateway.scope, sandbox: "box" });
    expect(providers.map(({ credentials }) => credentials)).toEqual([{ TOKEN: "REDACTED" }]);
  });
});
