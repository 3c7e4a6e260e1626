import { create, fromBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema } from "@openshell/api";
import {
  type AttachSandbox,
  AttachSandboxSchema,
  type RelayKind,
  type StartupConfigPrepared,
  type SupervisorHello,
  WorkloadLayoutSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import { systemClock } from "@openshell/base";
import type { CompiledConfiguration, ConfigurationCompiler } from "../config/compile.ts";
import type { ConfigEvents } from "../config/config-events.ts";
import { ConfigurationController } from "../config/controller.ts";
import { ImageRoot } from "../config/image-root.ts";
import { NO_CREDENTIALS } from "../egress/credential-source.ts";
import { GatewayLink } from "../host/link.ts";
import { LogPusher } from "../logs/log-pusher.ts";
import { SandboxLog } from "../logs/sandbox-log.ts";
import { Services } from "../middleware/testing/services.ts";
import { ReadinessTracker } from "../session/readiness.ts";
import { SandboxSupervisor, type SupervisorEnd } from "../session/supervisor.ts";
import { Workload } from "../session/workload.ts";
import { FakeBoundary } from "./fake-boundary.ts";
import { FakeGateway, type FakeRelay, type FakeSession } from "./fake-gateway.ts";

const layout = create(WorkloadLayoutSchema, {
  home: "/tmp",
  workingDirectory: "/tmp",
  uid: 1000,
  gid: 1000,
  environment: { PATH: "/usr/bin:/bin", SHELL: "/bin/sh" },
});

const silent: ConfigEvents = {
  detected: () => {},
  policyLoaded: () => {},
  environmentLoaded: () => {},
  rejected: () => {},
  environmentRejected: () => {},
  middleware: () => {},
  middlewareLink: () => {},
  setting: () => {},
};

/** A configuration of the provider revision `p1`, with a policy of its own; the policy version 99 counts as unusable. */
export const config = (revision: string, policyVersion = 1) => ({
  configRevision: revision,
  policyVersion,
  policyHash: `h${revision}`,
  policy: create(SandboxPolicySchema, { version: 1 }),
  providerRevision: "p1",
});

/** What a relay brought. */
export interface RelayOutput {
  out: string;
  err: string;
  exit: number | undefined;
  failure: string | undefined;
}

/** A supervisor over a boundary without a sandbox, connected to a gateway that a test plays. */
export class TestSupervisor implements AsyncDisposable {
  readonly gateway: FakeGateway;
  readonly boundary = new FakeBoundary();
  readonly services = new Services();
  readonly assignment: AttachSandbox;
  readonly supervisor: SandboxSupervisor;
  readonly end: Promise<SupervisorEnd>;
  readonly published: CompiledConfiguration[] = [];
  readonly warnings: string[] = [];
  readonly findings: string[] = [];
  egressFails = false;
  /** What compiling waits for. */
  hold: Promise<void> | undefined;
  /** What `accept` was told. */
  hello: SupervisorHello | undefined;
  prepared: StartupConfigPrepared | undefined;

  static async start(): Promise<TestSupervisor> {
    return new TestSupervisor(await FakeGateway.start());
  }

  private constructor(gateway: FakeGateway) {
    this.gateway = gateway;
    const { boundary, published, findings } = this;
    this.assignment = create(AttachSandboxSchema, {
      sandboxId: "sandbox-1",
      generation: 1n,
      token: { sandboxId: "sandbox-1", token: "token-1", epoch: 1n },
      local: { layout },
    });
    const { assignment } = this;
    const pusher = new LogPusher();
    const log = new SandboxLog(pusher, systemClock, String, (level, message) => {
      if (level === "warn") this.warnings.push(message);
    });
    const egress = {
      publish: async (configuration: CompiledConfiguration) => void published.push(configuration),
      [Symbol.asyncDispose]: async () => {
        if (this.egressFails) throw new Error("stuck");
      },
    };
    const readiness = new ReadinessTracker();
    const configuration = new ConfigurationController({
      egress,
      middleware: this.services.manager,
      compile: this.#compiler(),
      events: silent,
      readiness,
      onSettings: () => {},
    });
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
    this.supervisor = new SandboxSupervisor({
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
    this.end = this.supervisor.run();
  }

  async nextSession(): Promise<FakeSession> {
    return (await this.gateway.sessions.next()).value!;
  }

  /** The start-up exchange up to the acceptance. */
  async accept(
    command: readonly string[] = ["/bin/sh", "-c", "sleep 60"],
    awaitAttachment = false,
  ): Promise<FakeSession> {
    const session = await this.nextSession();
    this.hello = await session.expect("hello");
    session.send({
      message: { case: "candidate", value: { candidateId: "c1", policyHash: "h", policy: config("1").policy } },
    });
    this.prepared = await session.expect("prepared");
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

  /** A session whose main process runs. */
  async running(command?: readonly string[], awaitAttachment?: boolean): Promise<FakeSession> {
    const session = await this.accept(command, awaitAttachment);
    await session.expect("bootstrapResult");
    await session.expect("ready");
    return session;
  }

  /** The relay `r1`, after its hello. */
  async relay(session: FakeSession, kind: RelayKind): Promise<FakeRelay> {
    session.send({ message: { case: "relayOpen", value: { relayId: "r1", kind } } });
    const opened = (await this.gateway.relays.next()).value as FakeRelay;
    const { message } = (await opened.up.next()).value;
    if (message.case !== "hello" || message.value.relayId !== "r1" || message.value.sandboxId !== "sandbox-1")
      throw new Error("the relay did not say which one it is");
    return opened;
  }

  /** Everything that a relay brings, to its end. */
  async output(opened: FakeRelay): Promise<RelayOutput> {
    const seen: RelayOutput = { out: "", err: "", exit: undefined, failure: undefined };
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

  async [Symbol.asyncDispose](): Promise<void> {
    await this.supervisor[Symbol.asyncDispose]();
    await this.gateway[Symbol.asyncDispose]();
  }

  #compiler(): ConfigurationCompiler {
    return {
      policy: async ({ policyVersion }) => {
        await this.hold;
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
  }
}
