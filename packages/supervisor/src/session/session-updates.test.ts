import { create } from "@bufbuild/protobuf";
import {
  ConfigApplyOutcome,
  ConfigComponent,
  SandboxTokenSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Limits } from "../limits.ts";
import { config, TestSupervisor } from "../testing/test-supervisor.ts";

describe("configuration over a session", () => {
  let box: TestSupervisor;
  beforeEach(async () => {
    box = await TestSupervisor.start();
  });
  afterEach(() => box[Symbol.asyncDispose]());

  const update = (updateId: string, sequence: bigint, value: ReturnType<typeof config> | undefined) => {
    const component = value === undefined ? { case: undefined, value } : { case: "sandboxConfig" as const, value };
    return { message: { case: "update" as const, value: { updateId, sequence, component } } };
  };
  it("applies a newer snapshot with a gap before it, and none that went back or came twice", async () => {
    const session = await box.running();
    session.send(update("u1", 2n, config("2")));
    expect(await session.expect("updateResult")).toMatchObject({
      updateId: "u1",
      component: ConfigComponent.SANDBOX_CONFIG,
      sequence: 2n,
      result: { outcome: ConfigApplyOutcome.APPLIED, appliedRevision: "2" },
    });
    for (const sequence of [1n, 2n]) {
      session.send(update("u2", sequence, config("3")));
      expect(await session.expect("updateResult")).toMatchObject({
        updateId: "u2",
        sequence,
        result: {
          outcome: ConfigApplyOutcome.IGNORED_STALE,
          appliedRevision: "",
          failure: { code: "stale_sequence" },
        },
      });
    }
    expect(box.published).toHaveLength(2);
  });
  it.each([
    ["identity", "", 3n, config("2")],
    ["sequence", "u", 0n, config("2")],
    ["component", "u", 3n, undefined],
  ])("calls an update without its %s unsupported", async (_, updateId, sequence, value) => {
    const session = await box.running();
    session.send(update(updateId, sequence, value));
    expect(await session.expect("updateResult")).toMatchObject({
      updateId,
      sequence,
      result: { outcome: ConfigApplyOutcome.UNSUPPORTED, appliedRevision: "", failure: { code: "invalid_update" } },
    });
    expect(box.published).toHaveLength(1);
  });
  it("gives up an update that takes too long, and nothing of it takes effect later", async () => {
    const session = await box.running();
    const slow = Promise.withResolvers<void>();
    box.hold = slow.promise;
    const limit = vi.spyOn(Limits, "applyTimeoutMs", "get").mockReturnValue(20 as 60_000);
    session.send(update("u1", 1n, config("2")));
    expect(await session.expect("updateResult")).toMatchObject({
      result: {
        outcome: ConfigApplyOutcome.FAILED_RETAINED_LAST_KNOWN_GOOD,
        appliedRevision: "1",
        failure: { code: "apply_timeout" },
      },
    });
    limit.mockRestore();
    box.hold = undefined;
    slow.resolve();
    session.send(update("u2", 2n, config("3")));
    expect((await session.expect("updateResult")).result).toMatchObject({ appliedRevision: "3" });
    expect(box.published).toHaveLength(2);
  });
  it("shows what is in force with each session from sequence 1 on, and again when it changes", async () => {
    const session = await box.accept();
    await session.expect("bootstrapResult");
    const inForce = { sessionId: "s1", providerRevision: "p1", credentialsInstalled: true, policyActive: true };
    const first = await session.expect("readiness");
    expect(first).toMatchObject({ ...inForce, sequence: 1n, configRevision: "1", processInstanceId: "" });
    await session.expect("ready");
    session.send(update("u1", 1n, config("2")));
    await session.expect("updateResult");
    box.gateway.cut();
    const next = await box.nextSession();
    await next.expect("hello");
    next.send({
      message: {
        case: "accepted",
        value: { sessionId: "s2", sandboxConfig: config("2"), providerEnvironment: { providerRevision: "p1" } },
      },
    });
    await next.expect("bootstrapResult");
    const again = await next.expect("readiness");
    expect(again).toMatchObject({ ...inForce, sessionId: "s2", sequence: 1n, configRevision: "2" });
    expect(again.processInstanceId).toMatch(/^[0-9a-f-]{36}$/);
    expect(box.supervisor.readinessLapsed).toBe(false);
    box.gateway.cut();
    await vi.waitFor(() => expect(box.supervisor.readinessLapsed).toBe(true));
  });
  it("answers an unchanged snapshot as duplicate and publishes nothing", async () => {
    const session = await box.running();
    session.send({
      message: {
        case: "update",
        value: { updateId: "u1", sequence: 1n, component: { case: "sandboxConfig", value: config("1") } },
      },
    });
    expect(await session.expect("updateResult")).toMatchObject({
      result: { outcome: ConfigApplyOutcome.IGNORED_DUPLICATE },
    });
    expect(box.published).toHaveLength(1);
  });
  it("reconnects after the gateway died, without preparing again, and lets the workload run on", async () => {
    await box.running();
    box.gateway.cut();
    const session = await box.nextSession();
    expect(await session.expect("hello")).toMatchObject({
      firstStart: false,
      connectionEpoch: 2n,
      imagePolicy: { case: undefined },
    });
    session.send({
      message: {
        case: "accepted",
        value: { sessionId: "s2", sandboxConfig: config("1"), providerEnvironment: { providerRevision: "p1" } },
      },
    });
    await session.expect("bootstrapResult");
    await session.expect("ready");
    expect(box.boundary.resumed).toBe(1);
  });
  it("reconnects with the token that was renewed meanwhile (#3409, #3411)", async () => {
    const session = await box.running();
    expect(session.token).toBe("token-1");
    box.supervisor.renew(create(SandboxTokenSchema, { sandboxId: "sandbox-1", token: "token-2", epoch: 1n }));
    box.gateway.cut();
    const next = await box.nextSession();
    expect(next.token).toBe("token-2");
    expect(await next.expect("hello")).toMatchObject({ epoch: 1n, firstStart: false });
  });
  it("goes on in quarantine when a reconnect brings a policy that cannot be enforced, and takes the next one live", async () => {
    await box.running();
    box.gateway.cut();
    const session = await box.nextSession();
    await session.expect("hello");
    const sandboxConfig = config("2", 99);
    session.send({
      message: {
        case: "accepted",
        value: { sessionId: "s2", sandboxConfig, providerEnvironment: { providerRevision: "p1", policyHash: "h2" } },
      },
    });
    expect(await session.expect("bootstrapResult")).toMatchObject({
      sandboxConfig: { outcome: ConfigApplyOutcome.FAILED_CLOSED },
    });
    session.send({ message: { case: "admitted", value: {} } });
    await session.expect("ready");
    expect(box.boundary.resumed).toBe(1);
    session.send(update("u1", 1n, config("1")));
    expect(await session.expect("updateResult")).toMatchObject({ result: { appliedRevision: "1" } });
  });
  it("repeats no start-up exchange on a reconnect: a candidate ends the session, and the workload runs on (GATOR-c10f3724-01)", async () => {
    await box.running();
    box.gateway.cut();
    const session = await box.nextSession();
    await session.expect("hello");
    session.send({
      message: { case: "candidate", value: { candidateId: "c2", policyHash: "h", policy: config("1").policy } },
    });
    await expect(session.expect("prepared")).rejects.toThrow("session ended");
    const next = await box.nextSession();
    expect(await next.expect("hello")).toMatchObject({ firstStart: false, connectionEpoch: 3n });
    expect(box.boundary.state).toBe("main_started");
    expect(box.published).toHaveLength(1);
  });
});
