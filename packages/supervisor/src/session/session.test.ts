import { create, fromBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema } from "@openshell/api";
import { ConfigApplyOutcome, RelayKind } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { registered } from "../middleware/testing/services.ts";
import type { FakeRelay, FakeSession } from "../testing/fake-gateway.ts";
import { config, TestSupervisor } from "../testing/test-supervisor.ts";

describe("supervisor session", () => {
  let box: TestSupervisor;
  beforeEach(async () => {
    box = await TestSupervisor.start();
  });
  afterEach(() => box[Symbol.asyncDispose]());

  it("says which sandbox it speaks for, offers the policy of its root, and prepares the candidate", async () => {
    await box.accept();
    expect(box.hello).toMatchObject({
      sandboxId: "sandbox-1",
      firstStart: true,
      imagePolicy: { case: "missing" },
    });
    expect(box.prepared).toMatchObject({ candidateId: "c1", policyHash: "h", result: { case: "unchanged" } });
  });
  it("starts the workload only after the acceptance, under confirmed restrictions", async () => {
    const session = await box.nextSession();
    await session.expect("hello");
    session.send({ message: { case: "candidate", value: { candidateId: "c1", policyHash: "h" } } });
    await session.expect("prepared");
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(box.boundary.confirmed).toBeUndefined();
    expect(box.published).toHaveLength(0);
  });
  it("starts the workload only after its admission is stored", async () => {
    const session = await box.accept();
    session.admits = false;
    await session.expect("bootstrapResult");
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(box.boundary.confirmed).toBeUndefined();
    session.send({ message: { case: "admitted", value: {} } });
    await session.expect("ready");
    expect(box.boundary.confirmed).toBeDefined();
  });
  it("answers an acceptance with both revisions and reports ready with the isolation in force", async () => {
    const session = await box.accept();
    expect(await session.expect("bootstrapResult")).toMatchObject({
      sessionId: "s1",
      sandboxConfig: { outcome: ConfigApplyOutcome.APPLIED, appliedRevision: "1" },
      providerEnvironment: { outcome: ConfigApplyOutcome.APPLIED, appliedRevision: "p1" },
    });
    const ready = await session.expect("ready");
    expect(ready.workloadIdentity).toBe("1000:1000");
    expect(ready.isolation?.layers.map(({ name }) => name)).toEqual(["fake", "landlock"]);
  });
  it("starts nothing when the isolation demanded is not in force, and says what is", async () => {
    box.assignment.minimumIsolation.push("landlock", "freezer");
    const session = await box.accept();
    await session.expect("bootstrapResult");
    const ended = await session.expect("ended");
    expect(ended.reason).toMatchObject({ code: "isolation_below_minimum" });
    expect(ended.reason?.message).toContain("freezer (this sandbox has no such layer)");
    expect(ended.isolation?.layers.map(({ name, enforced }) => [name, enforced])).toEqual([
      ["fake", false],
      ["landlock", true],
    ]);
    expect(box.boundary.state).toBe("confirmed");
    expect(box.findings).toEqual(["openshell.isolation.below_minimum"]);
  });
  it("called a start failed for good for which the host had no descriptors", async () => {
    box.boundary.confirm = () =>
      Promise.reject(Object.assign(new Error("listen EMFILE: too many open files"), { code: "EMFILE" }));
    const session = await box.accept();
    await session.expect("bootstrapResult");
    expect((await session.expect("ended")).reason).toMatchObject({ code: "start_interrupted" });
  });
  it("starts nothing when a canary gets through a layer that claims to hold", async () => {
    box.boundary.confirmedLayers = [{ name: "no_new_privs", enforced: true, detail: "" }];
    box.boundary.answers = (canaries) => canaries.map(() => 0n);
    const session = await box.accept();
    await session.expect("bootstrapResult");
    const ended = await session.expect("ended");
    expect(ended.reason).toMatchObject({
      code: "isolation_breached",
      message: "the isolation self-test got through: no_new_privs: programs can gain privileges",
    });
    expect(ended.isolation?.layers.at(-1)).toMatchObject({ name: "no_new_privs", enforced: false, tested: false });
    expect(box.boundary.state).toBe("confirmed");
    expect(box.findings).toEqual(["openshell.isolation.breached"]);
  });
  it("starts nothing without Landlock that the policy calls a hard requirement", async () => {
    box.boundary.confirmedLayers = [{ name: "landlock", enforced: false, detail: "abi=0" }];
    const session = await box.nextSession();
    await session.expect("hello");
    const policy = create(SandboxPolicySchema, { version: 1, landlock: { compatibility: "hard_requirement" } });
    session.send({
      message: {
        case: "accepted",
        value: {
          sessionId: "s1",
          sandboxConfig: { ...config("1"), policy },
          providerEnvironment: { providerRevision: "p1" },
          mainProcess: { command: ["true"] },
        },
      },
    });
    await session.expect("bootstrapResult");
    const { reason } = await session.expect("ended");
    expect(reason).toMatchObject({ code: "isolation_below_minimum" });
    expect(reason?.message).toContain("landlock (abi=0)");
    expect(reason?.next).toContain("Linux 6.2");
    expect(box.boundary.state).toBe("confirmed");
  });
  it("tells louder that Landlock is missing where it is not required", async () => {
    box.boundary.confirmedLayers = [{ name: "landlock", enforced: false, detail: "abi=0" }];
    await box.running();
    expect(box.findings).toEqual(["landlock-unavailable"]);
  });
  it("says as a finding what is not in force", async () => {
    await box.running();
    expect(box.findings).toEqual(["openshell.isolation.reduced"]);
  });
  it("starts nothing when the accepted configuration cannot be enforced", async () => {
    const session = await box.nextSession();
    await session.expect("hello");
    session.send({
      message: {
        case: "accepted",
        value: {
          sessionId: "s1",
          sandboxConfig: config("1", 99),
          providerEnvironment: { providerRevision: "p1" },
          mainProcess: { command: ["true"] },
        },
      },
    });
    expect(await session.expect("bootstrapResult")).toMatchObject({
      sandboxConfig: { outcome: ConfigApplyOutcome.FAILED_CLOSED, failure: { code: "invalid_policy" } },
    });
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(box.boundary.confirmed).toBeUndefined();
  });
  it("comes again with a start that was refused for a middleware service, once that answers", async () => {
    const session = await box.nextSession();
    await session.expect("hello");
    session.send({ message: { case: "candidate", value: { candidateId: "c1", policyHash: "h" } } });
    await session.expect("prepared");
    const policy = create(SandboxPolicySchema, { version: 1, networkMiddlewares: { m: { middleware: "guard" } } });
    const sandboxConfig = { ...config("1"), policy, middleware: [registered("guard")] };
    const value = { sessionId: "s1", sandboxConfig, providerEnvironment: { providerRevision: "p1" }, mainProcess: {} };
    session.send({ message: { case: "accepted", value } });
    expect(await session.expect("bootstrapResult")).toMatchObject({
      sandboxConfig: { outcome: ConfigApplyOutcome.FAILED_CLOSED, failure: { code: "middleware_unreachable" } },
    });
    expect(box.boundary.confirmed).toBeUndefined();
    box.services.up.add("guard@1");
    expect(await (await box.nextSession()).expect("hello")).toMatchObject({ firstStart: true, connectionEpoch: 2n });
  });
  it("reports the exact end of the main process, after its output", async () => {
    const session = await box.running(["/bin/sh", "-c", "echo last words; exit 7"]);
    expect((await session.expect("mainExit")).status).toEqual({ case: "exitCode", value: 7 });
  });
  it("gives an awaited attachment everything the main process wrote, then its exit", async () => {
    const session = await box.running(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], true);
    const opened = await box.relay(session, RelayKind.ATTACH);
    opened.send({ message: { case: "attach", value: { stdin: true } } });
    expect(await box.output(opened)).toEqual({ out: "out\n", err: "err\n", exit: 3, failure: undefined });
  });
  it("runs a command with stdin, environment, placeholder and exact code", async () => {
    const session = await box.running();
    const opened = await box.relay(session, RelayKind.EXEC);
    opened.send({
      message: {
        case: "exec",
        value: {
          command: ["/bin/sh", "-c", 'read x; echo "$x $A $KEY"; exit 42'],
          noLoginShell: true,
          environment: { A: "b c" },
        },
      },
    });
    opened.send({ message: { case: "stdin", value: Buffer.from("hello\n") } });
    opened.send({ message: { case: "stdinClosed", value: {} } });
    expect(await box.output(opened)).toEqual({
      out: "hello b c placeholder-KEY\n",
      err: "",
      exit: 42,
      failure: undefined,
    });
  });
  it("reports 124 and ends the whole group at the timeout", async () => {
    const session = await box.running();
    const opened = await box.relay(session, RelayKind.EXEC);
    opened.send({
      message: {
        case: "exec",
        value: {
          command: ["/bin/sh", "-c", "sleep 30 & sleep 30"],
          noLoginShell: true,
          timeout: { seconds: 0n, nanos: 200_000_000 },
        },
      },
    });
    expect(await box.output(opened)).toMatchObject({ exit: 124 });
  });
  it("answers a command that cannot start with a failure, never with a code", async () => {
    const session = await box.running();
    const opened = await box.relay(session, RelayKind.EXEC);
    opened.send({ message: { case: "exec", value: { command: [], noLoginShell: true } } });
    expect(await box.output(opened)).toMatchObject({ exit: undefined, failure: "empty_command" });
  });
  it("takes the input of a command that cannot start off the connection", async () => {
    const session = await box.running();
    const opened = await box.relay(session, RelayKind.EXEC);
    opened.send({ message: { case: "exec", value: { command: [], noLoginShell: true } } });
    for (let frame = 0; frame < 20; frame++)
      opened.send({ message: { case: "stdin", value: Buffer.alloc(256 * 1024) } });
    expect(await box.output(opened)).toMatchObject({ failure: "empty_command" });
    opened.down.close();
    await vi.waitFor(() => expect(opened.down.size).toBe(0));
  });
  it("stops for good when the gateway rejects the session", async () => {
    const session = await box.nextSession();
    await session.expect("hello");
    session.send({
      message: { case: "rejected", value: { failure: { code: "stale", message: "a newer generation runs" } } },
    });
    expect(await box.end).toEqual({ kind: "rejected", reason: "a newer generation runs" });
  });
  it("ends the sandbox when told", async () => {
    const session = await box.running();
    session.send({ message: { case: "end", value: { reason: "stop" } } });
    expect(await box.end).toMatchObject({ kind: "sandbox_ended" });
  });

  /** Starts a command that first writes its process id; gives that and the relay. */
  async function started(session: FakeSession, script: string): Promise<{ opened: FakeRelay; pid: number }> {
    const opened = await box.relay(session, RelayKind.EXEC);
    opened.send({
      message: { case: "exec", value: { command: ["/bin/sh", "-c", `echo $$; ${script}`], noLoginShell: true } },
    });
    const first = (await opened.up.next()).value.message;
    const { payload } = fromBinary(ExecSandboxEventSchema, first.value as Uint8Array);
    return { opened, pid: Number(Buffer.from((payload.value as { data: Uint8Array }).data).toString()) };
  }
  const gone = (pid: number): boolean => {
    try {
      process.kill(pid, 0);
      return false;
    } catch {
      return true;
    }
  };

  it("ends a command whose caller left while it did not read its input", async () => {
    const session = await box.running();
    const { opened, pid } = await started(session, "exec sleep 60");
    for (let i = 0; i < 8; i++) opened.send({ message: { case: "stdin", value: Buffer.alloc(256 * 1024) } });
    await new Promise((resolve) => setTimeout(resolve, 100));
    session.send({ message: { case: "relayCancel", value: { relayId: "r1" } } });
    await vi.waitFor(() => expect(gone(pid)).toBe(true), { timeout: 2_000 });
  });
  it("gives the main process's input to the next attachment when the owner left while it was not read", async () => {
    const session = await box.running(["/bin/sh", "-c", "echo ready; sleep 60"]);
    const owner = await box.relay(session, RelayKind.ATTACH);
    owner.send({ message: { case: "attach", value: { stdin: true } } });
    for (let i = 0; i < 8; i++) owner.send({ message: { case: "stdin", value: Buffer.alloc(256 * 1024) } });
    await new Promise((resolve) => setTimeout(resolve, 100));
    session.send({ message: { case: "relayCancel", value: { relayId: "r1" } } });
    await new Promise((resolve) => setTimeout(resolve, 100));
    const next = await box.relay(session, RelayKind.ATTACH);
    next.send({ message: { case: "attach", value: { stdin: true } } });
    const { payload } = fromBinary(ExecSandboxEventSchema, (await next.up.next()).value.message.value as Uint8Array);
    expect(Buffer.from((payload.value as { data: Uint8Array }).data).toString()).toBe("ready\n");
  });
  it("ends a sandbox whose start was cut off between its restrictions and its main process, instead of calling it ready", async () => {
    await (await box.nextSession()).expect("hello");
    // As a successor finds it.
    box.boundary.state = "confirmed";
    box.gateway.cut();
    const session = await box.nextSession();
    expect((await session.expect("hello")).firstStart).toBe(false);
    session.send({
      message: {
        case: "accepted",
        value: { sessionId: "s1", sandboxConfig: config("1"), providerEnvironment: { providerRevision: "p1" } },
      },
    });
    await session.expect("bootstrapResult");
    expect((await session.expect("ended")).reason).toMatchObject({ code: "start_interrupted" });
    expect(box.boundary.resumed).toBe(0);
  });
  it("tells once that its session was lost, however long the gateway is away", async () => {
    await box.running();
    await box.gateway[Symbol.asyncDispose]();
    await new Promise((resolve) => setTimeout(resolve, 700));
    expect(box.warnings).toHaveLength(1);
    expect(box.warnings[0]).toMatch(/^the session was lost/);
  });
  it("lets go of the boundary even when egress cannot be ended", async () => {
    await box.running();
    box.egressFails = true;
    await expect(box.supervisor[Symbol.asyncDispose]()).rejects.toThrow("stuck");
    box.egressFails = false;
    expect(await box.boundary.ended).toMatchObject({ kind: "terminated" });
  });
});
