import { randomUUID } from "node:crypto";
import { Code } from "@connectrpc/connect";
import { DeletionOutcome, SandboxPhase } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "../testing/harness.ts";
import { call, inWorkspace, refusal, requestOf, sampleOf } from "./calls.ts";
import { built, MUTATIONS, policy, ready, requestFor, sandboxId, unary } from "./mutations.ts";

describe("request ids of every mutation", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  it("are tested for every one that is built", () => {
    expect(Object.keys(MUTATIONS).toSorted()).toEqual(unary.toSorted());
  });

  it.each(built)("%s refuses an id that is none before anything else", async (rpc) => {
    const bad = [
      "x",
      "00000000-0000-0000-0000-000000000000",
      randomUUID().replaceAll("-", ""),
      `{${randomUUID()}}`,
      ` ${randomUUID()}`,
      `${randomUUID()}\n`,
      randomUUID().replace("-", "\u2010"),
      "g".repeat(36),
      "x".repeat(100_000),
    ];
    if (!requestOf(rpc).start && MUTATIONS[rpc]?.prepare !== undefined) await MUTATIONS[rpc].prepare(gateway);
    else if (MUTATIONS[rpc] === undefined) await ready(gateway);
    for (const requestId of bad) {
      const { code, fields, message } = await refusal(gateway, rpc, sampleOf(rpc, { requestId }));
      const field = requestOf(rpc).start ? "start.request_id" : "request_id";
      expect([requestId, code, fields]).toEqual([requestId, Code.InvalidArgument, [field]]);
      expect(message.length).toBeLessThan(200);
    }
  });

  describe.each(unary)("%s", (rpc) => {
    const { prepare, request, changed, presence, reordered, same } = MUTATIONS[rpc]!;

    it("is done once; its answer is repeated and marked, in whatever letters the id is written", async () => {
      await prepare?.(gateway);
      const requestId = randomUUID();
      const first = await call(gateway, rpc, requestFor(request, requestId));
      expect([first.error, first.headers.get("openshell-replayed")]).toEqual([undefined, null]);
      const again = [requestId, requestId.toUpperCase()].map((id) => requestFor(request, id));
      if (reordered !== undefined) again.push(requestFor(reordered, requestId));
      for (const repeated of again) {
        const { error, message, headers } = await call(gateway, rpc, repeated);
        expect([error, headers.get("openshell-replayed")]).toEqual([undefined, "true"]);
        expect(same(message as never)).toEqual(same(first.message as never));
      }
    });

    it("is not another request: a changed value or presence is refused", async () => {
      await prepare?.(gateway);
      const requestId = randomUUID();
      expect((await call(gateway, rpc, requestFor(request, requestId))).error).toBeUndefined();
      for (const other of [changed, presence]) {
        if (other === undefined) continue;
        const { code, reason, message } = await refusal(gateway, rpc, requestFor(other, requestId));
        expect([code, reason]).toEqual([Code.FailedPrecondition, "REQUEST_ID_PAYLOAD_MISMATCH"]);
        expect(message).toMatch(/Use a new request_id/);
      }
    });

    it("is done once when it is sent many times at once; the losers are answered like the winner, or told it is uncertain", async () => {
      await prepare?.(gateway);
      const requestId = randomUUID();
      const answers = await Promise.all(
        Array.from({ length: 4 }, () => call(gateway, rpc, requestFor(request, requestId))),
      );
      const won = answers.filter(({ error }) => error === undefined);
      expect(won.length).toBeGreaterThan(0);
      expect(won.filter(({ headers }) => headers.get("openshell-replayed") === null)).toHaveLength(1);
      for (const { error } of answers) {
        if (error !== undefined)
          expect(error).toMatchObject({
            code: Code.FailedPrecondition,
            rawMessage: expect.stringMatching(/its success is not confirmed/),
          });
      }
    });

    it("is of its caller: the same id of somebody else is another request", async () => {
      await prepare?.(gateway);
      const requestId = randomUUID();
      expect((await call(gateway, rpc, requestFor(request, requestId))).error).toBeUndefined();
      gateway.caller = { ...gateway.caller, subject: "somebody else" };
      const { headers, error } = await call(gateway, rpc, requestFor(changed, requestId));
      expect(headers.get("openshell-replayed")).toBeNull();
      if (error !== undefined) expect(error.rawMessage).not.toMatch(/request_id/);
    });
  });

  it("may be the same for other methods and workspaces", async () => {
    await ready(gateway);
    const requestId = randomUUID();
    for (const rpc of ["stopSandbox", "startSandbox", "deleteSandbox"] as const) {
      const { error, headers } = await call(gateway, rpc, requestFor({ name: "x" }, requestId));
      expect([rpc, error, headers.get("openshell-replayed")]).toEqual([rpc, undefined, null]);
    }
    const other = { ...inWorkspace("elsewhere"), name: "x", requestId };
    expect(await refusal(gateway, "deleteSandbox", other)).toMatchObject({ code: Code.NotFound, reason: undefined });
  });

  it("keep the work of a caller who left: it is finished, and a repetition gets its result", async () => {
    const request = requestFor({ spec: {}, name: "x" }, randomUUID());
    // The request has reached the gateway, which is about to ask the driver, when the caller leaves.
    const arrived = Promise.withResolvers<void>();
    const gate = Promise.withResolvers<void>();
    gateway.driver.validate = async () => {
      arrived.resolve();
      await gate.promise;
    };
    const leave = new AbortController();
    const left = gateway.client.createSandbox(request, { signal: leave.signal });
    await arrived.promise;
    leave.abort();
    await expect(left).rejects.toMatchObject({ code: Code.Canceled });
    gateway.driver.validate = async () => {};
    const again = call(gateway, "createSandbox", request);
    gate.resolve();
    const { error, message, headers } = await again;
    expect([error, headers.get("openshell-replayed")]).toEqual([undefined, "true"]);
    const { sandboxes } = await gateway.client.listSandboxes(inWorkspace("default"));
    expect(sandboxes.map(({ metadata }) => metadata!.id)).toEqual([sandboxId(message as never)]);
    await gateway.phase(SandboxPhase.READY, "x");
  });

  it("repeat a deletion although the workspace is gone", async () => {
    const row = { id: randomUUID(), name: "w", createdAt: 1, labels: {}, annotations: {}, phase: "active" } as const;
    await gateway.store.write(gateway.store.workspaces.create(row));
    const requestId = randomUUID();
    const request = { ...inWorkspace("w"), name: "x", allowMissing: true, requestId };
    expect((await gateway.client.deleteSandbox(request)).outcome).toBe(DeletionOutcome.ALREADY_ABSENT);
    await gateway.store.write(gateway.store.workspaces.remove("w"));
    const { message, headers } = await call(gateway, "deleteSandbox", request);
    expect([message!["outcome"], headers.get("openshell-replayed")]).toEqual([DeletionOutcome.ALREADY_ABSENT, "true"]);
  });

  it("do not repeat a change of a sandbox's policy for another sandbox of the same name", async () => {
    await ready(gateway);
    const requestId = randomUUID();
    const request = requestFor({ sandbox: "x", policy: policy("a.example.com") }, requestId);
    expect((await call(gateway, "updateConfig", request)).error).toBeUndefined();
    await gateway.client.deleteSandbox({ ...inWorkspace("default"), name: "x" });
    expect((await refusal(gateway, "updateConfig", request)).reason).toBe("REQUEST_REPLAY_UNAVAILABLE");
    await ready(gateway);
    expect((await refusal(gateway, "updateConfig", request)).reason).toBe("REQUEST_REPLAY_UNAVAILABLE");
    const status = await gateway.client.getSandboxPolicyStatus({ ...inWorkspace("default"), sandbox: "x" });
    expect(status.revision?.version).toBe(1);
  });

  it("hold for settings: of a sandbox and of the gateway", async () => {
    await ready(gateway);
    const setting = { settingKey: "ocsf_json_enabled", settingValue: { value: { case: "boolValue", value: true } } };
    for (const where of [{ ...inWorkspace("default"), sandbox: "x" }, { global: true }]) {
      const request = { ...where, ...setting, requestId: randomUUID() };
      const first = await call(gateway, "updateConfig", request);
      expect([first.error, first.headers.get("openshell-replayed")]).toEqual([undefined, null]);
      const again = await call(gateway, "updateConfig", request);
      expect([again.error, again.headers.get("openshell-replayed")]).toEqual([undefined, "true"]);
      expect(again.message).toEqual(first.message);
      const other = { ...request, settingValue: { value: { case: "boolValue", value: false } } };
      expect((await refusal(gateway, "updateConfig", other)).reason).toBe("REQUEST_ID_PAYLOAD_MISMATCH");
    }
  });

  it("hold for the policy of the gateway, and its removal", async () => {
    const set = { global: true, policy: policy("a.example.com"), requestId: randomUUID() };
    const remove = { global: true, settingKey: "policy", deleteSetting: true, requestId: randomUUID() };
    for (const request of [set, remove]) {
      const first = await call(gateway, "updateConfig", request);
      expect([first.error, first.headers.get("openshell-replayed")]).toEqual([undefined, null]);
      const again = await call(gateway, "updateConfig", request);
      expect([again.error, again.headers.get("openshell-replayed")]).toEqual([undefined, "true"]);
      expect(again.message).toEqual(first.message);
    }
    const other = { ...set, policy: policy("b.example.com") };
    expect((await refusal(gateway, "updateConfig", other)).reason).toBe("REQUEST_ID_PAYLOAD_MISMATCH");
  });

  it("tell an execution whose sandbox was replaced that it is, and never start another", async () => {
    await ready(gateway);
    const request = { ...inWorkspace("default"), sandbox: "x", command: ["true"], requestId: randomUUID() };
    expect((await call(gateway, "execSandbox", request)).error).toBeUndefined();
    await gateway.client.deleteSandbox({ ...inWorkspace("default"), name: "x" });
    await ready(gateway);
    let runs = 0;
    gateway.host!.relay = async () => {
      runs += 1;
    };
    expect((await refusal(gateway, "execSandbox", request)).reason).toBe("REQUEST_REPLAY_UNAVAILABLE");
    expect(runs).toBe(0);
  });

  it("of the two kinds of executions are apart", async () => {
    await ready(gateway);
    const request = { ...inWorkspace("default"), sandbox: "x", command: ["true"], requestId: randomUUID() };
    expect((await call(gateway, "execSandbox", request)).error).toBeUndefined();
    expect((await call(gateway, "execSandboxInteractive", request)).error).toBeUndefined();
  });
});
