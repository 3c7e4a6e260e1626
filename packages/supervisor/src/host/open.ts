import { hostname } from "node:os";
import type { AttachSandbox } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, RuntimeError } from "@openshell/base";
import { attachLocalBoundary } from "@openshell/boundary/local/attach.ts";
import { compileRestrictions } from "@openshell/boundary/local/compile/restrictions.ts";
import type { Addon } from "@openshell/boundary/local/native.ts";
import { CredentialState } from "@openshell/credentials";
import { EventLog } from "@openshell/ocsf";
import type { CompiledConfiguration } from "../config/compile.ts";
import { createCompiler } from "../config/compiler.ts";
import { createConfigEvents } from "../config/config-events.ts";
import { ConfigurationController, type EgressPort } from "../config/controller.ts";
import { ImageRoot } from "../config/image-root.ts";
import { isOn, OCSF_JSON_ENABLED } from "../config/settings.ts";
import { FairShares } from "../egress/fair-share.ts";
import { type ExecutableHasher, WorkerHasher } from "../egress/hash.ts";
import type { EgressLimits } from "../egress/limits.ts";
import { type NetworkSettings, SandboxEgress } from "../egress/sandbox-egress.ts";
import { createSocketTools } from "../egress/socket-tools.ts";
import { LeafMint } from "../egress/tls/leaf.ts";
import { TrustStore } from "../egress/tls/trust.ts";
import { isolationEvent } from "../isolation/findings.ts";
import { createEgressEvents } from "../logs/egress-events.ts";
import { LogPusher } from "../logs/log-pusher.ts";
import { SandboxLog } from "../logs/sandbox-log.ts";
import { MiddlewareConnection } from "../middleware/connection.ts";
import { MiddlewareManager } from "../middleware/manager.ts";
import { ReadinessTracker } from "../session/readiness.ts";
import { SandboxSupervisor } from "../session/supervisor.ts";
import { Workload } from "../session/workload.ts";
import type { HostLogger } from "./host.ts";
import type { GatewayLink } from "./link.ts";

/** What the sandboxes of one host share: read-only things that are dear to make. */
export class SharedResources implements AsyncDisposable {
  readonly trust = new TrustStore();
  readonly hasher: ExecutableHasher = new WorkerHasher();
  readonly shares = new FairShares();
  readonly #mints = new Map<string, Promise<LeafMint>>();

  /** One mint a CA: a host of one workspace has one. */
  leaves(certificatePem: string, privateKeyPem: string): Promise<LeafMint> {
    let mint = this.#mints.get(certificatePem);
    if (mint === undefined) {
      mint = LeafMint.create({ certificatePem, privateKeyPem });
      mint.catch(() => this.#mints.delete(certificatePem));
      this.#mints.set(certificatePem, mint);
    }
    return mint;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.hasher[Symbol.asyncDispose]();
  }
}

export interface OpenDeps {
  readonly addon: Addon;
  readonly link: GatewayLink;
  readonly clock: Clock;
  readonly log: HostLogger;
  readonly shared: SharedResources;
  readonly instanceId: string;
  readonly version: string;
}

/** Attaches to a sandbox's boundary and puts together everything that serves it. Nothing is left behind on failure. */
export async function openSandbox(deps: OpenDeps, assignment: AttachSandbox): Promise<SandboxSupervisor> {
  const { addon, clock, link } = deps;
  const { local, inspectionCa, sandboxId, generation } = assignment;
  if (local?.layout === undefined || inspectionCa === undefined) {
    throw new RuntimeError(
      "incomplete_assignment",
      "the gateway's assignment lacks the boundary, its layout or the inspection CA",
      {
        next: "Gateway and host must be of one build",
      },
    );
  }
  const { layout } = local;
  await using stack = new AsyncDisposableStack();
  const boundary = stack.use(
    await attachLocalBoundary({
      socketPath: local.socketPath,
      nonce: local.nonce,
      instanceId: deps.instanceId,
      expected: { sandboxId, generation, netnsCookie: local.netnsCookie, pid: local.initPid || undefined },
      addon,
    }),
  );
  const credentials = new CredentialState();
  const redact = (text: string): string => credentials.redact(text);
  const pusher = new LogPusher();
  const eventLog = stack.use(
    new EventLog({
      directory: assignment.logDirectory,
      context: { sandboxId, sandboxName: assignment.sandboxName, productVersion: deps.version, hostname: hostname() },
      clock,
      json: false,
      onLine: ({ time, text }) => pusher.add({ timeMs: time, level: "OCSF", target: "ocsf", message: text }),
      onError: () => deps.log.warn({ sandbox_id: sandboxId }, "the sandbox's event files cannot be written"),
    }),
  );
  const log = new SandboxLog(pusher, clock, redact, (level, message, fields) => {
    eventLog.line(clock.now(), level.toUpperCase(), "openshell::supervisor", message);
    deps.log[level]({ sandbox_id: sandboxId, ...fields }, message);
  });
  const egress = stack.use(
    new SandboxEgress({
      boundary,
      events: createEgressEvents(eventLog, clock, redact),
      leaves: await deps.shared.leaves(inspectionCa.certificatePem, inspectionCa.privateKeyPem),
      trust: deps.shared.trust,
      hasher: deps.shared.hasher,
      network: networkOf(assignment),
      limits: limitsOf(assignment),
      share: stack.use(deps.shared.shares.open()),
      tools: createSocketTools(addon),
      state: await boundary.loadState(),
      // Only its name and place in the code: the message may quote what a client sent.
      onError: (error) =>
        deps.log.error(
          { sandbox_id: sandboxId, error: error instanceof Error ? error.name : typeof error, at: placeOf(error) },
          "a connection ended because of a defect",
        ),
      clock,
    }),
  );
  const root = new ImageRoot(layout.imageRoot, layout);
  const readiness = new ReadinessTracker();
  const served = new ServedOnPublication(egress);
  const events = createConfigEvents((event) => eventLog.emit(event), clock, redact);
  const connectionDeps = {
    clock,
    roots: () => deps.shared.trust.context(""),
    onLink: (name: string, problem: RuntimeError | undefined) => events.middlewareLink({ name, problem }),
  };
  const middleware = stack.use(
    new MiddlewareManager({
      clock,
      connect: (service, signal) => MiddlewareConnection.open(service, connectionDeps, signal),
    }),
  );
  const configuration = new ConfigurationController({
    egress: served,
    middleware,
    compile: createCompiler(
      credentials,
      () => clock.now(),
      (path) => root.realPath(path),
    ),
    events,
    readiness,
    onSettings: (settings) => {
      eventLog.json = isOn(settings, OCSF_JSON_ENABLED);
    },
  });
  const workload = new Workload({
    assignment,
    layout,
    boundary,
    egress: served,
    configuration,
    readiness,
    clock,
    restrictions: async (filesystem, processLimit) =>
      compileRestrictions({ filesystem, arch: process.arch, pids: processLimit || undefined }),
    finding: (finding) => eventLog.emit(isolationEvent(finding, clock.now(), redact)),
    dispose: async () => {
      await middleware[Symbol.asyncDispose]();
      await eventLog[Symbol.asyncDispose]();
    },
  });
  const supervisor = new SandboxSupervisor({
    assignment,
    link,
    clock,
    log,
    pusher,
    boundary,
    workload,
    configuration,
    root,
    readiness,
  });
  stack.move();
  return supervisor;
}

/** The innermost line of a stack. */
function placeOf(error: unknown): string {
  return (error instanceof Error ? error.stack : undefined)?.match(/^\s+at .*$/m)?.[0].trim() ?? "";
}

/** The sandbox's sockets are not served before the first accepted configuration: until then connections wait in the kernel. */
class ServedOnPublication implements EgressPort {
  readonly #egress: SandboxEgress;
  #served: Promise<void> | undefined;

  constructor(egress: SandboxEgress) {
    this.#egress = egress;
  }

  async publish(configuration: CompiledConfiguration): Promise<void> {
    this.#egress.publish(configuration);
    // Sockets that cannot be served fail the publication: a workload never runs with a dead network unnoticed. The next one tries again.
    this.#served ??= this.#egress.start().catch((error: unknown) => {
      this.#served = undefined;
      throw error;
    });
    await this.#served;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#egress[Symbol.asyncDispose]();
  }
}

function networkOf(assignment: AttachSandbox): NetworkSettings {
  const network = assignment.network;
  return {
    additionalCaPem: network?.additionalCaPem ?? "",
    resolvers: network?.resolvers ?? [],
    alwaysDenied: network?.alwaysDenied ?? [],
  };
}

/** Limits that the gateway names; 0 is the default. */
function limitsOf(assignment: AttachSandbox): Partial<EgressLimits> {
  const { limits } = assignment;
  if (limits === undefined) return {};
  const named = {
    flows: limits.flows,
    pendingHandshakes: limits.pendingHandshakes,
    bufferedBytes: Number(limits.bufferedBytes),
    dnsQueriesPerSecond: limits.dnsQueriesPerSecond,
    dnsNames: limits.dnsNames,
    newFlowsPerSecond: limits.newFlowsPerSecond,
  };
  return Object.fromEntries(Object.entries(named).filter(([, value]) => value > 0));
}
