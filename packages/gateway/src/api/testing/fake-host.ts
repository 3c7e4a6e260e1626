import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { ExecSandboxEventSchema, OpenShell } from "@openshell/api";
import {
  type AttachSandbox,
  ConfigApplyOutcome,
  ConfigComponent,
  type ConfigUpdate,
  type HostDownlink,
  type HostUplinkSchema,
  type MainProcess,
  type ProviderEnvironment,
  type ReadinessObservationSchema,
  type RelayDownlink,
  type RelayKind,
  type RelayUplinkSchema,
  type SandboxConfig,
  type SessionAccepted,
  type SupervisorDownlink,
  SupervisorGateway,
  type SupervisorUplinkSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { HOST_SECRET_HEADER, SANDBOX_TOKEN_HEADER } from "../../sessions/service.ts";

/** What a boundary keeps over the life of hosts: one a sandbox and generation. */
export interface FakeWorkload {
  started: number;
  running: boolean;
  exitCode: number | undefined;
}

export type RelayScript = (relay: FakeRelay, kind: RelayKind) => Promise<void>;

/** The host's end of a relay. */
export interface FakeRelay {
  readonly down: AsyncIterator<RelayDownlink>;
  send(event: MessageInitShape<typeof ExecSandboxEventSchema>["payload"]): Promise<void>;
  end(): void;
  /** Breaks the stream, as a killed host does. */
  kill(): void;
}

/** A supervisor host that speaks the protocol and runs nothing. Behaviour is changed by replacing its members. */
export class FakeHost {
  readonly client: Client<typeof SupervisorGateway>;
  /** The public service, as it is offered to hosts. */
  readonly publicClient: Client<typeof OpenShell>;
  readonly hostId: string;
  readonly instanceId = crypto.randomUUID();
  readonly attached = new Map<string, FakeSupervisor>();
  readonly workloads: Map<string, FakeWorkload>;
  readonly #secret: string;
  readonly #up = new BoundedQueue<MessageInitShape<typeof HostUplinkSchema>>(100);
  readonly #abort = new AbortController();
  /** Called for each relay; the default runs `echo`: output "out", exit 0. */
  relay: RelayScript = async (relay) => {
    await relay.down.next();
    await relay.send({ case: "stdout", value: { data: Buffer.from("out") } });
    await relay.send({ case: "exit", value: { exitCode: 0 } });
  };
  outcomeOf: (update: ConfigUpdate) => ConfigApplyOutcome = () => ConfigApplyOutcome.APPLIED;
  /** What its supervisors speak. */
  protocolRevision = 2;
  bootstrapOutcome: ConfigApplyOutcome = ConfigApplyOutcome.APPLIED;
  /** So many first starts end between the restrictions and the main process, as when a host is killed there. */
  interruptedStarts = 0;
  /** Shows no evidence of readiness. */
  quiet = false;
  onAttach: (attach: AttachSandbox) => boolean = () => true;

  constructor(transport: Transport, hostId: string, secret: string, workloads: Map<string, FakeWorkload>) {
    this.client = createClient(SupervisorGateway, transport);
    this.publicClient = createClient(OpenShell, transport);
    this.hostId = hostId;
    this.#secret = secret;
    this.workloads = workloads;
  }

  async run(): Promise<void> {
    this.#up.offer({
      message: {
        case: "hello",
        value: { protocolRevision: 2, hostId: this.hostId, instanceId: this.instanceId, pid: 1 },
      },
    });
    const headers = { [HOST_SECRET_HEADER]: this.#secret };
    for await (const down of this.client.connectHost(this.#up, { headers, signal: this.#abort.signal }))
      this.#handle(down);
  }

  #handle({ message }: HostDownlink): void {
    if (message.case === "attach") {
      if (!this.onAttach(message.value)) return;
      this.attached.get(message.value.sandboxId)?.kill();
      const supervisor = new FakeSupervisor(this, message.value);
      this.attached.set(message.value.sandboxId, supervisor);
      void supervisor.run();
    } else if (message.case === "detach") {
      this.attached.get(message.value.sandboxId)?.kill();
      this.attached.delete(message.value.sandboxId);
    }
  }

  send(message: MessageInitShape<typeof HostUplinkSchema>["message"]): void {
    this.#up.offer({ message: message! });
  }

  /** The process dies: every stream breaks. */
  kill(): void {
    this.#abort.abort();
    this.#up.close(new Error("killed"));
    for (const supervisor of this.attached.values()) supervisor.kill();
  }
}

/** One sandbox of a fake host. */
export class FakeSupervisor {
  readonly attach: AttachSandbox;
  readonly instanceId = crypto.randomUUID();
  readonly updates: ConfigUpdate[] = [];
  accepted: SessionAccepted | undefined;
  mainProcess: MainProcess | undefined;
  rejected = "";
  readonly #host: FakeHost;
  #active: { config: SandboxConfig; environment: ProviderEnvironment } | undefined;
  #sequence = 0n;
  readonly #up = new BoundedQueue<MessageInitShape<typeof SupervisorUplinkSchema>>(100);
  readonly #abort = new AbortController();

  constructor(host: FakeHost, attach: AttachSandbox) {
    this.#host = host;
    this.attach = attach;
  }

  get workload(): FakeWorkload {
    const key = `${this.attach.sandboxId}/${this.attach.generation}`;
    let workload = this.#host.workloads.get(key);
    if (workload === undefined) {
      workload = { started: 0, running: false, exitCode: undefined };
      this.#host.workloads.set(key, workload);
    }
    return workload;
  }

  send(message: MessageInitShape<typeof SupervisorUplinkSchema>["message"]): void {
    this.#up.offer({ message: message! });
  }

  exit(code: number): void {
    this.workload.running = false;
    this.workload.exitCode = code;
    this.send({ case: "mainExit", value: { status: { case: "exitCode", value: code } } });
  }

  kill(): void {
    this.#abort.abort();
    this.#up.close(new Error("killed"));
  }

  async run(): Promise<void> {
    const { sandboxId, generation, token } = this.attach;
    const firstStart = this.workload.started === 0;
    this.send({
      case: "hello",
      value: {
        protocolRevision: this.#host.protocolRevision,
        sandboxId,
        generation,
        epoch: token!.epoch,
        instanceId: this.instanceId,
        connectionEpoch: 1n,
        firstStart,
        ...(firstStart ? { imagePolicy: { case: "missing", value: {} } } : {}),
      },
    });
    const headers = { [SANDBOX_TOKEN_HEADER]: token!.token };
    try {
      for await (const down of this.#host.client.connectSupervisor(this.#up, { headers, signal: this.#abort.signal }))
        this.#handle(down);
    } catch {
      // Broken by kill() or by the gateway's end.
    }
  }

  #handle({ message }: SupervisorDownlink): void {
    switch (message.case) {
      case "candidate": {
        const { candidateId, policyHash } = message.value;
        this.send({ case: "prepared", value: { candidateId, policyHash, result: { case: "unchanged", value: {} } } });
        return;
      }
      case "accepted":
        this.#accept(message.value);
        return;
      case "admitted":
        this.#begin();
        return;
      case "rejected":
        this.rejected = message.value.failure?.code ?? "";
        return;
      case "update":
        this.#update(message.value);
        return;
      case "relayOpen":
        void this.#relay(message.value.relayId, message.value.kind);
        return;
      case "end":
        this.workload.running = false;
        this.send({ case: "ended", value: {} });
        return;
      default:
    }
  }

  #accept(accepted: SessionAccepted): void {
    this.accepted = accepted;
    const outcome = this.#host.bootstrapOutcome;
    const applied = outcome === ConfigApplyOutcome.APPLIED;
    this.send({
      case: "bootstrapResult",
      value: {
        sessionId: accepted.sessionId,
        sandboxConfig: { outcome, appliedRevision: applied ? accepted.sandboxConfig!.configRevision : "" },
        providerEnvironment: {
          outcome,
          appliedRevision: applied ? accepted.providerEnvironment!.providerRevision : "",
        },
      },
    });
  }

  #begin(): void {
    const accepted = this.accepted!;
    if (accepted.mainProcess !== undefined && this.#host.interruptedStarts > 0) {
      this.#host.interruptedStarts--;
      this.send({ case: "ended", value: { reason: { code: "start_interrupted", message: "it was cut off" } } });
      return;
    }
    if (accepted.mainProcess !== undefined) {
      this.mainProcess = accepted.mainProcess;
      this.workload.started += 1;
      this.workload.running = true;
    }
    this.send({ case: "ready", value: { workloadIdentity: "1000:1000" } });
    this.#active = { config: accepted.sandboxConfig!, environment: accepted.providerEnvironment! };
    this.observe();
    if (this.workload.exitCode !== undefined) this.exit(this.workload.exitCode);
  }

  #update(update: ConfigUpdate): void {
    this.updates.push(update);
    const outcome = this.#host.outcomeOf(update);
    const { component } = update;
    const revision =
      component.case === "sandboxConfig"
        ? component.value.configRevision
        : component.case === "providerEnvironment"
          ? component.value.providerRevision
          : "";
    const good = outcome === ConfigApplyOutcome.APPLIED;
    this.send({
      case: "updateResult",
      value: {
        updateId: update.updateId,
        sequence: update.sequence,
        component:
          component.case === "sandboxConfig" ? ConfigComponent.SANDBOX_CONFIG : ConfigComponent.PROVIDER_ENVIRONMENT,
        result: { outcome, appliedRevision: good ? revision : "" },
      },
    });
    if (!good || this.#active === undefined) return;
    if (component.case === "sandboxConfig") this.#active.config = component.value;
    if (component.case === "providerEnvironment") this.#active.environment = component.value;
    this.observe();
  }

  /** Shows what is in force, unless the host is told to keep quiet. */
  observe(changes: MessageInitShape<typeof ReadinessObservationSchema> = {}): void {
    if (this.#active === undefined || this.#host.quiet) return;
    const { config, environment } = this.#active;
    this.#sequence += 1n;
    this.send({
      case: "readiness",
      value: {
        sessionId: this.accepted!.sessionId,
        sequence: this.#sequence,
        attachmentEpoch: environment.attachmentEpoch,
        providerRevision: environment.providerRevision,
        configRevision: config.configRevision,
        policyHash: config.policyHash,
        credentialsInstalled: true,
        policyActive: true,
        launchEnvironmentInstalled: true,
        processInstanceId: this.instanceId,
        ...changes,
      },
    });
  }

  async #relay(relayId: string, kind: RelayKind): Promise<void> {
    const up = new BoundedQueue<MessageInitShape<typeof RelayUplinkSchema>>(8);
    const abort = new AbortController();
    up.offer({ message: { case: "hello", value: { relayId, sandboxId: this.attach.sandboxId } } });
    const headers = { [SANDBOX_TOKEN_HEADER]: this.attach.token!.token };
    const stream = this.#host.client.relay(up, {
      headers,
      signal: AbortSignal.any([abort.signal, this.#abort.signal]),
    });
    const relay: FakeRelay = {
      down: stream[Symbol.asyncIterator](),
      send: async (payload) => {
        const value = toBinary(ExecSandboxEventSchema, create(ExecSandboxEventSchema, { payload: payload! }));
        if (!(await up.push({ message: { case: "execEvent", value } }))) throw new Error("the caller left");
      },
      end: () => up.close(),
      kill: () => abort.abort(),
    };
    try {
      await this.#host.relay(relay, kind);
    } catch {
      // The caller left.
    }
    up.close();
  }
}
