import { create, fromBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema } from "@openshell/api";
import {
  type AttachSandbox,
  AttachSandboxSchema,
  ConfigApplyOutcome,
  ConfigComponent,
  RelayKind,
  WorkloadLayoutSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import { systemClock } from "@openshell/base";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { CompiledConfiguration, ConfigurationCompiler } from "../config/compile.ts";
import type { ConfigEvents } from "../config/config-events.ts";
import { ConfigurationController } from "../config/controller.ts";
import { ImageRoot } from "../config/image-root.ts";
import { NO_CREDENTIALS } from "../egress/credential-source.ts";
import { GatewayLink } from "../host/link.ts";
import { Limits } from "../limits.ts";
import { LogPusher } from "../logs/log-pusher.ts";
import { SandboxLog } from "../logs/sandbox-log.ts";
import { FakeBoundary } from "../testing/fake-boundary.ts";
import { FakeGateway, type FakeRelay, type FakeSession } from "../testing/fake-gateway.ts";
import { ReadinessTracker } from "./readiness.ts";
import { SandboxSupervisor, type SupervisorEnd } from "./supervisor.ts";
import { Workload } from "./workload.ts";

const layout = create(WorkloadLayoutSchema, {
  home: "/tmp",
  workingDirectory: "/tmp",
  uid: 1000,
  gid: 1000,
  environment: { PATH: "/usr/bin:/bin", SHELL: "/bin/sh" },
});

/** What compiling waits for. */
let hold: Promise<void> | undefined;

/** Policies with version 99 count as unusable. */
const compile: ConfigurationCompiler = {
  policy: async ({ policyVersion }) => {
    await hold;
    return policyVersion === 99
      ? { ok: false, problem: { code: "invalid_policy", message: "no good", next: "repair it" } }
      : { ok: true, policy: undefined as never };
  },
  check: () => undefined,
  install: ({ values }) => ({
    credentials: NO_CREDENTIALS,
    childEnvironment: Object.fromEntries(values.map(({ name }) => [name, `placeholder-${name}`])),
  }),
  revoke: () => ({ credentials: NO_CREDENTIALS, childEnvironment: {} }),
};
const silent: ConfigEvents = {
  detected: () => {},
  policyLoaded: () => {},
  environmentLoaded: () => {},
  rejected: () => {},
  environmentRejected: () => {},
  setting: () => {},
};

const config = (revision: string, policyVersion = 1) => ({
  configRevision: revision,
  policyVersion,
  policyHash: `h${revision}`,
  policy: create(SandboxPolicySchema, { version: 1 }),
  providerRevision: "p1",
});

describe("supervisor session", () => {
  let gateway: FakeGateway;
  let boundary: FakeBoundary;
  let supervisor: SandboxSupervisor;
  let published: CompiledConfiguration[];
  let end: Promise<SupervisorEnd>;
  let egressFails: boolean;
  let warnings: string[];
  let findings: string[];
  let assignment: AttachSandbox;

  beforeEach(async () => {
    gateway = await FakeGateway.start();
    boundary = new FakeBoundary();
    published = [];
    egressFails = false;
    warnings = [];
    findings = [];
    assignment = create(AttachSandboxSchema, {
      sandboxId: "sandbox-1",
      generation: 1n,
      token: { sandboxId: "sandbox-1", token: "token-1", epoch: 1n },
      local: { layout },
    });
    const pusher = new LogPusher();
    const log = new SandboxLog(
      pusher,
      systemClock,
      (text) => text,
      (level, message) => {
        if (level === "warn") warnings.push(message);
      },
    );
    const egress = {
      publish: async (configuration: CompiledConfiguration) => void published.push(configuration),
      [Symbol.asyncDispose]: async () => {
        if (egressFails) throw new Error("stuck");
      },
    };
    const readiness = new ReadinessTracker();
    const onSettings = () => {};
    const configuration = new ConfigurationController({ egress, compile, events: silent, readiness, onSettings });
    const workload = new Workload({
      assignment,
      layout,
      boundary,
      clock: systemClock,
      configuration,
      readiness,
      egress,
      restrictions: async () => ({ landlock: undefined, seccomp: new Uint8Array(), rlimits: [], umask: 0o022 }),
      finding: ({ uid }) => void findings.push(uid),
    });
    supervisor = new SandboxSupervisor({
      assignment,
      link: new GatewayLink(gateway.socketPath),
      clock: systemClock,
      log,
      pusher,
      boundary,
      workload,
      configuration,
      root: new ImageRoot("", layout),
      readiness,
    });
    end = supervisor.run();
  });
  afterEach(async () => {
    await supervisor[Symbol.asyncDispose]();
    await gateway[Symbol.asyncDispose]();
  });

  async function nextSession(): Promise<FakeSession> {
    return (await gateway.sessions.next()).value!;
  }
  async function accept(
    command: readonly string[] = ["/bin/sh", "-c", "sleep 60"],
    awaitAttachment = false,
  ): Promise<FakeSession> {
    const session = await nextSession();
    expect(await session.expect("hello")).toMatchObject({
      sandboxId: "sandbox-1",
      firstStart: true,
      imagePolicy: { case: "missing" },
    });
    session.send({
      message: { case: "candidate", value: { candidateId: "c1", policyHash: "h", policy: config("1").policy } },
    });
    expect(await session.expect("prepared")).toMatchObject({ candidateId: "c1", result: { case: "unchanged" } });
    session.send({
      message: {
        case: "accepted",
        value: {
          sessionId: "s1",
          sandboxConfig: config("1"),
          providerEnvironment: { providerRevision: "p1", values: [{ name: "KEY", value: "real secret" }] },
          mainProcess: { command: [...command], awaitAttachment },
        },
      },
    });
    return session;
  }
  async function running(command?: readonly string[], awaitAttachment?: boolean): Promise<FakeSession> {
    const session = await accept(command, awaitAttachment);
    await session.expect("bootstrapResult");
    await session.expect("ready");
    return session;
  }
  async function relay(session: FakeSession, kind: RelayKind): Promise<FakeRelay> {
    session.send({ message: { case: "relayOpen", value: { relayId: "r1", kind } } });
    const opened = (await gateway.relays.next()).value as FakeRelay;
    expect((await opened.up.next()).value.message).toMatchObject({
      case: "hello",
      value: { relayId: "r1", sandboxId: "sandbox-1" },
    });
    return opened;
  }
  async function events(
    opened: FakeRelay,
  ): Promise<{ out: string; err: string; exit: number | undefined; failure: string | undefined }> {
    const seen = { out: "", err: "", exit: undefined as number | undefined, failure: undefined as string | undefined };
    for (;;) {
      const { done, value } = await opened.up.next();
      if (done) return seen;
      if (value.message.case === "failure") seen.failure = value.message.value.code;
      if (value.message.case !== "execEvent") continue;
      const event = fromBinary(ExecSandboxEventSchema, value.message.value).payload;
      if (event.case === "stdout") seen.out += Buffer.from(event.value.data).toString();
      if (event.case === "stderr") seen.err += Buffer.from(event.value.data).toString();
      if (event.case === "exit") {
        seen.exit = event.value.exitCode;
        // Ends the call, and its uplink with it.
        opened.down.close();
        return seen;
      }
    }
  }

  it("starts the workload only after the acceptance, under confirmed restrictions", async () => {
    const session = await nextSession();
    await session.expect("hello");
    session.send({ message: { case: "candidate", value: { candidateId: "c1", policyHash: "h" } } });
    await session.expect("prepared");
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(boundary.confirmed).toBeUndefined();
    expect(published).toHaveLength(0);
  });
  it("starts the workload only after its admission is stored", async () => {
    const session = await accept();
    session.admits = false;
    await session.expect("bootstrapResult");
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(boundary.confirmed).toBeUndefined();
    session.send({ message: { case: "admitted", value: {} } });
    await session.expect("ready");
    expect(boundary.confirmed).toBeDefined();
  });
  it("answers an acceptance with both revisions and reports ready with the isolation in force", async () => {
    const session = await accept();
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
    assignment.minimumIsolation.push("landlock", "freezer");
    const session = await accept();
    await session.expect("bootstrapResult");
    const ended = await session.expect("ended");
    expect(ended.reason).toMatchObject({ code: "isolation_below_minimum" });
    expect(ended.reason?.message).toContain("freezer (this sandbox has no such layer)");
    expect(ended.isolation?.layers.map(({ name, enforced }) => [name, enforced])).toEqual([
      ["fake", false],
      ["landlock", true],
    ]);
    expect(boundary.state).toBe("confirmed");
    expect(findings).toEqual(["openshell.isolation.below_minimum"]);
  });
  it("called a start failed for good for which the host had no descriptors", async () => {
    boundary.confirm = () =>
      Promise.reject(Object.assign(new Error("listen EMFILE: too many open files"), { code: "EMFILE" }));
    const session = await accept();
    await session.expect("bootstrapResult");
    expect((await session.expect("ended")).reason).toMatchObject({ code: "start_interrupted" });
  });
  it("starts nothing when a canary gets through a layer that claims to hold", async () => {
    boundary.confirmedLayers = [{ name: "no_new_privs", enforced: true, detail: "" }];
    boundary.answers = (canaries) => canaries.map(() => 0n);
    const session = await accept();
    await session.expect("bootstrapResult");
    const ended = await session.expect("ended");
    expect(ended.reason).toMatchObject({
      code: "isolation_breached",
      message: "the isolation self-test got through: no_new_privs: programs can gain privileges",
    });
    expect(ended.isolation?.layers.at(-1)).toMatchObject({ name: "no_new_privs", enforced: false, tested: false });
    expect(boundary.state).toBe("confirmed");
    expect(findings).toEqual(["openshell.isolation.breached"]);
  });
  it("starts nothing without Landlock that the policy calls a hard requirement", async () => {
    boundary.confirmedLayers = [{ name: "landlock", enforced: false, detail: "abi=0" }];
    const session = await nextSession();
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
    expect(boundary.state).toBe("confirmed");
  });
  it("tells louder that Landlock is missing where it is not required", async () => {
    boundary.confirmedLayers = [{ name: "landlock", enforced: false, detail: "abi=0" }];
    await running();
    expect(findings).toEqual(["landlock-unavailable"]);
  });
  it("says as a finding what is not in force", async () => {
    await running();
    expect(findings).toEqual(["openshell.isolation.reduced"]);
  });
  it("starts nothing when the accepted configuration cannot be enforced", async () => {
    const session = await nextSession();
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
    expect(boundary.confirmed).toBeUndefined();
  });
  it("reports the exact end of the main process, after its output", async () => {
    const session = await running(["/bin/sh", "-c", "echo last words; exit 7"]);
    expect((await session.expect("mainExit")).status).toEqual({ case: "exitCode", value: 7 });
  });
  it("gives an awaited attachment everything the main process wrote, then its exit", async () => {
    const session = await running(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], true);
    const opened = await relay(session, RelayKind.ATTACH);
    opened.send({ message: { case: "attach", value: { stdin: true } } });
    expect(await events(opened)).toEqual({ out: "out\n", err: "err\n", exit: 3, failure: undefined });
  });
  it("runs a command with stdin, environment, placeholder and exact code", async () => {
    const session = await running();
    const opened = await relay(session, RelayKind.EXEC);
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
    expect(await events(opened)).toEqual({ out: "hello b c placeholder-KEY\n", err: "", exit: 42, failure: undefined });
  });
  it("reports 124 and ends the whole group at the timeout", async () => {
    const session = await running();
    const opened = await relay(session, RelayKind.EXEC);
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
    expect(await events(opened)).toMatchObject({ exit: 124 });
  });
  it("answers a command that cannot start with a failure, never with a code", async () => {
    const session = await running();
    const opened = await relay(session, RelayKind.EXEC);
    opened.send({ message: { case: "exec", value: { command: [], noLoginShell: true } } });
    expect(await events(opened)).toMatchObject({ exit: undefined, failure: "empty_command" });
  });
  it("takes the input of a command that cannot start off the connection", async () => {
    const session = await running();
    const opened = await relay(session, RelayKind.EXEC);
    opened.send({ message: { case: "exec", value: { command: [], noLoginShell: true } } });
    for (let frame = 0; frame < 20; frame++)
      opened.send({ message: { case: "stdin", value: Buffer.alloc(256 * 1024) } });
    expect(await events(opened)).toMatchObject({ failure: "empty_command" });
    opened.down.close();
    await vi.waitFor(() => expect(opened.down.size).toBe(0));
  });
  const update = (updateId: string, sequence: bigint, value: ReturnType<typeof config> | undefined) => {
    const component = value === undefined ? { case: undefined, value } : { case: "sandboxConfig" as const, value };
    return { message: { case: "update" as const, value: { updateId, sequence, component } } };
  };
  it("applies a newer snapshot with a gap before it, and none that went back or came twice", async () => {
    const session = await running();
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
    expect(published).toHaveLength(2);
  });
  it.each([
    ["identity", "", 3n, config("2")],
    ["sequence", "u", 0n, config("2")],
    ["component", "u", 3n, undefined],
  ])("calls an update without its %s unsupported", async (_, updateId, sequence, value) => {
    const session = await running();
    session.send(update(updateId, sequence, value));
    expect(await session.expect("updateResult")).toMatchObject({
      updateId,
      sequence,
      result: { outcome: ConfigApplyOutcome.UNSUPPORTED, appliedRevision: "", failure: { code: "invalid_update" } },
    });
    expect(published).toHaveLength(1);
  });
  it("gives up an update that takes too long, and nothing of it takes effect later", async () => {
    const session = await running();
    const slow = Promise.withResolvers<void>();
    hold = slow.promise;
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
    hold = undefined;
    slow.resolve();
    session.send(update("u2", 2n, config("3")));
    expect((await session.expect("updateResult")).result).toMatchObject({ appliedRevision: "3" });
    expect(published).toHaveLength(2);
  });
  it("shows what is in force with each session from sequence 1 on, and again when it changes", async () => {
    const session = await accept();
    await session.expect("bootstrapResult");
    const inForce = { sessionId: "s1", providerRevision: "p1", credentialsInstalled: true, policyActive: true };
    const first = await session.expect("readiness");
    expect(first).toMatchObject({ ...inForce, sequence: 1n, configRevision: "1", processInstanceId: "" });
    await session.expect("ready");
    session.send(update("u1", 1n, config("2")));
    await session.expect("updateResult");
    gateway.cut();
    const next = await nextSession();
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
    expect(supervisor.readinessLapsed).toBe(false);
    gateway.cut();
    await vi.waitFor(() => expect(supervisor.readinessLapsed).toBe(true));
  });
  it("answers an unchanged snapshot as duplicate and publishes nothing", async () => {
    const session = await running();
    session.send({
      message: {
        case: "update",
        value: { updateId: "u1", sequence: 1n, component: { case: "sandboxConfig", value: config("1") } },
      },
    });
    expect(await session.expect("updateResult")).toMatchObject({
      result: { outcome: ConfigApplyOutcome.IGNORED_DUPLICATE },
    });
    expect(published).toHaveLength(1);
  });
  it("reconnects after the gateway died, without preparing again, and lets the workload run on", async () => {
    await running();
    gateway.cut();
    const session = await nextSession();
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
    expect(boundary.resumed).toBe(1);
  });
  it("repeats no start-up exchange on a reconnect: a candidate ends the session, and the workload runs on (GATOR-c10f3724-01)", async () => {
    await running();
    gateway.cut();
    const session = await nextSession();
    await session.expect("hello");
    session.send({
      message: { case: "candidate", value: { candidateId: "c2", policyHash: "h", policy: config("1").policy } },
    });
    const next = await nextSession();
    expect(await next.expect("hello")).toMatchObject({ firstStart: false, connectionEpoch: 3n });
    await expect(session.expect("prepared")).rejects.toThrow("session ended");
    expect(boundary.state).toBe("main_started");
    expect(published).toHaveLength(1);
  });
  it("stops for good when the gateway rejects the session", async () => {
    const session = await nextSession();
    await session.expect("hello");
    session.send({
      message: { case: "rejected", value: { failure: { code: "stale", message: "a newer generation runs" } } },
    });
    expect(await end).toEqual({ kind: "rejected", reason: "a newer generation runs" });
  });
  it("ends the sandbox when told", async () => {
    const session = await running();
    session.send({ message: { case: "end", value: { reason: "stop" } } });
    expect(await end).toMatchObject({ kind: "sandbox_ended" });
  });

  /** Starts a command that first writes its process id; gives that and the relay. */
  async function started(session: FakeSession, script: string): Promise<{ opened: FakeRelay; pid: number }> {
    const opened = await relay(session, RelayKind.EXEC);
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
    const session = await running();
    const { opened, pid } = await started(session, "exec sleep 60");
    for (let i = 0; i < 8; i++) opened.send({ message: { case: "stdin", value: Buffer.alloc(256 * 1024) } });
    await new Promise((resolve) => setTimeout(resolve, 100));
    session.send({ message: { case: "relayCancel", value: { relayId: "r1" } } });
    await vi.waitFor(() => expect(gone(pid)).toBe(true), { timeout: 2_000 });
  });
  it("gives the main process's input to the next attachment when the owner left while it was not read", async () => {
    const session = await running(["/bin/sh", "-c", "echo ready; sleep 60"]);
    const owner = await relay(session, RelayKind.ATTACH);
    owner.send({ message: { case: "attach", value: { stdin: true } } });
    for (let i = 0; i < 8; i++) owner.send({ message: { case: "stdin", value: Buffer.alloc(256 * 1024) } });
    await new Promise((resolve) => setTimeout(resolve, 100));
    session.send({ message: { case: "relayCancel", value: { relayId: "r1" } } });
    await new Promise((resolve) => setTimeout(resolve, 100));
    const next = await relay(session, RelayKind.ATTACH);
    next.send({ message: { case: "attach", value: { stdin: true } } });
    const { payload } = fromBinary(ExecSandboxEventSchema, (await next.up.next()).value.message.value as Uint8Array);
    expect(Buffer.from((payload.value as { data: Uint8Array }).data).toString()).toBe("ready\n");
  });
  it("ends a sandbox whose start was cut off between its restrictions and its main process, instead of calling it ready", async () => {
    await (await nextSession()).expect("hello");
    // As a successor finds it.
    boundary.state = "confirmed";
    gateway.cut();
    const session = await nextSession();
    expect((await session.expect("hello")).firstStart).toBe(false);
    session.send({
      message: {
        case: "accepted",
        value: { sessionId: "s1", sandboxConfig: config("1"), providerEnvironment: { providerRevision: "p1" } },
      },
    });
    await session.expect("bootstrapResult");
    expect((await session.expect("ended")).reason).toMatchObject({ code: "start_interrupted" });
    expect(boundary.resumed).toBe(0);
  });
  it("tells once that its session was lost, however long the gateway is away", async () => {
    await running();
    await gateway[Symbol.asyncDispose]();
    await new Promise((resolve) => setTimeout(resolve, 700));
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toMatch(/^the session was lost/);
  });
  it("lets go of the boundary even when egress cannot be ended", async () => {
    await running();
    egressFails = true;
    await expect(supervisor[Symbol.asyncDispose]()).rejects.toThrow("stuck");
    egressFails = false;
    expect(await boundary.ended).toMatchObject({ kind: "terminated" });
  });
});
