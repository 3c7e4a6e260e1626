import { create } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import {
  BootstrapResultSchema,
  ConfigComponent,
  type ConfigUpdate,
  ConfigUpdateResultSchema,
  FailureSchema,
  IsolationLayerSchema,
  type IsolationReport,
  IsolationReportSchema,
  type MainProcessExit,
  MainProcessExitSchema,
  RuntimeReadySchema,
  SandboxEndedSchema,
  type SessionAccepted,
  type StartupConfigCandidate,
  StartupConfigPreparedSchema,
  type SupervisorDownlink,
  SupervisorHelloSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, describeError, RuntimeError, systemCode } from "@openshell/base";
import type { Boundary, ExitStatus } from "@openshell/boundary";
import type { ConfigurationController, UpdateOutcome } from "../config/controller.ts";
import type { ImageRoot } from "../config/image-root.ts";
import { stale, unsupported } from "../config/results.ts";
import { discard, downlinkFrames, RelayChannel } from "../exec/relay.ts";
import { type GatewayLink, SANDBOX_TOKEN_HEADER } from "../host/link.ts";
import { Limits } from "../limits.ts";
import type { LogPusher } from "../logs/log-pusher.ts";
import type { SandboxLog } from "../logs/sandbox-log.ts";
import type { ReadinessTracker } from "./readiness.ts";
import { Uplink } from "./uplink.ts";
import { startInterrupted, type Workload } from "./workload.ts";

export interface SessionIdentity {
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly instanceId: string;
  readonly connectionEpoch: bigint;
  readonly workloadIdentity: string;
  /** The current token; replaced while a session lives, read at each dial. */
  token(): { readonly token: string; readonly epoch: bigint };
}

export interface SessionDeps {
  readonly identity: SessionIdentity;
  readonly link: GatewayLink;
  readonly boundary: Boundary;
  readonly workload: Workload;
  readonly configuration: ConfigurationController;
  readonly root: ImageRoot;
  readonly readiness: ReadinessTracker;
  readonly clock: Clock;
  readonly log: SandboxLog;
  readonly pusher: LogPusher;
}

/** Why a session ended: the gateway rejected it for good, or the connection did. */
export type SessionEnd =
  | { readonly kind: "rejected"; readonly reason: string }
  | { readonly kind: "lost"; readonly error: unknown }
  | { readonly kind: "ended" };

/** Calls off a wait that is over; without a reason, each call would make an error and its stack. */
const DONE = "done";

/**
 * One ConnectSupervisor stream from hello to its end. Messages are handled one after the other, so nothing overtakes an
 * acceptance; relays run beside it.
 */
export class Session {
  readonly #deps: SessionDeps;
  readonly #uplink = new Uplink();
  /** Highest sequence seen, by component. */
  readonly #watermarks = new Map<ConfigComponent, bigint>();
  readonly #relays = new Map<string, RelayChannel>();
  #accepted = false;
  #sessionId = "";
  /** Starts or resumes the workload under the bootstrap that was applied, once the gateway has stored that. */
  #begin: (() => Promise<void>) | undefined;
  /** Ends the stream, so that a refused start is tried again. */
  readonly #again = new AbortController();

  constructor(deps: SessionDeps) {
    this.#deps = deps;
  }

  /** Whether the gateway accepted this session. */
  get accepted(): boolean {
    return this.#accepted;
  }

  /** Runs until the stream ends; `signal` ends it from this side. */
  async run(signal: AbortSignal): Promise<SessionEnd> {
    const { identity, link, pusher } = this.#deps;
    const { token, epoch } = identity.token();
    const firstStart = this.#deps.boundary.state === "fresh" && this.#deps.workload.main === undefined;
    this.#uplink.send({
      case: "hello",
      value: create(SupervisorHelloSchema, {
        protocolRevision: Limits.protocolRevision,
        sandboxId: identity.sandboxId,
        generation: identity.generation,
        epoch,
        instanceId: identity.instanceId,
        connectionEpoch: identity.connectionEpoch,
        firstStart,
        imagePolicy: firstStart ? this.#deps.root.policy : { case: undefined },
      }),
    });
    try {
      const stream = link.sessions.connectSupervisor(this.#uplink.messages, {
        signal: AbortSignal.any([signal, this.#again.signal]),
        headers: { [SANDBOX_TOKEN_HEADER]: token },
      });
      for await (const message of stream) {
        const end = await this.#handle(message, firstStart, signal);
        if (end !== undefined) return end;
      }
      return { kind: "lost", error: new RuntimeError("session_closed", "the gateway closed the session") };
    } catch (error) {
      return signal.aborted ? { kind: "ended" } : { kind: "lost", error };
    } finally {
      pusher.connect(undefined);
      this.#deps.readiness.unobserve(this.#sessionId);
      this.#uplink.end();
    }
  }

  async #handle(
    downlink: SupervisorDownlink,
    firstStart: boolean,
    signal: AbortSignal,
  ): Promise<SessionEnd | undefined> {
    const { message } = downlink;
    switch (message.case) {
      case "candidate":
        if (!firstStart || this.#accepted)
          throw new RuntimeError("unexpected_candidate", "a start-up candidate came outside a first start");
        this.#prepare(message.value);
        return undefined;
      case "accepted":
        if (this.#accepted) throw new RuntimeError("accepted_twice", "the gateway accepted one session twice");
        await this.#accept(message.value, firstStart);
        return undefined;
      case "admitted": {
        const begin = this.#begin;
        if (begin === undefined)
          throw new RuntimeError("unexpected_message", "an admission came without an applied bootstrap");
        this.#begin = undefined;
        await begin();
        return undefined;
      }
      case "rejected":
        return { kind: "rejected", reason: message.value.failure?.message ?? "no reason given" };
      case "update":
        if (!this.#accepted)
          throw new RuntimeError("update_before_acceptance", "a configuration update came before the acceptance");
        await this.#update(message.value);
        return undefined;
      case "relayOpen":
        this.#relay(message.value.relayId, signal);
        return undefined;
      case "relayCancel":
        this.#relays.get(message.value.relayId)?.abort(new RuntimeError("relay_cancelled", "the caller left"));
        return undefined;
      case "mainExitRecorded":
        await this.#deps.workload.main?.acknowledgeExit();
        return undefined;
      case "end": {
        const grace = message.value.grace;
        const milliseconds = grace === undefined ? 0 : Number(grace.seconds) * 1000 + grace.nanos / 1e6;
        void this.#deps.boundary
          .terminate(milliseconds)
          .catch((error: unknown) => this.#deps.log.error(`ending the sandbox failed: ${describeError(error)}`));
        return undefined;
      }
      default:
        return undefined;
    }
  }

  /** The candidate, made complete against the sandbox's root. */
  #prepare({ candidateId, policyHash, policy }: StartupConfigCandidate): void {
    const result = this.#deps.root.prepare(policy);
    this.#uplink.send({
      case: "prepared",
      value: create(StartupConfigPreparedSchema, { candidateId, policyHash, result }),
    });
  }

  async #accept(accepted: SessionAccepted, firstStart: boolean): Promise<void> {
    const { configuration, identity, pusher, readiness } = this.#deps;
    const { sandboxConfig, providerEnvironment } = accepted;
    if (sandboxConfig === undefined || providerEnvironment === undefined) {
      throw new RuntimeError("incomplete_acceptance", "the acceptance lacks a component");
    }
    this.#accepted = true;
    pusher.connect((batch) => this.#uplink.sendLogs(batch));
    const outcome = await configuration.bootstrap(sandboxConfig, providerEnvironment);
    this.#uplink.send({
      case: "bootstrapResult",
      value: create(BootstrapResultSchema, {
        sessionId: accepted.sessionId,
        sandboxConfig: outcome.sandboxConfig,
        providerEnvironment: outcome.providerEnvironment,
      }),
    });
    readiness.observe({
      sessionId: accepted.sessionId,
      instanceId: identity.instanceId,
      send: (value) => this.#uplink.send({ case: "readiness", value }),
    });
    this.#sessionId = accepted.sessionId;
    void outcome.again?.then(() => this.#again.abort(new RuntimeError("session_closed", "the start is tried again")));
    // A configuration that cannot be applied starts nothing and thaws nothing: the gateway decides what comes next.
    // A workload that runs goes on under what is in force, which may be that everything is denied.
    const goesOn = outcome.accepted || (!firstStart && configuration.config !== undefined);
    this.#begin = goesOn ? () => this.#startOrResume(accepted, firstStart) : async () => {};
  }

  async #startOrResume(accepted: SessionAccepted, firstStart: boolean): Promise<void> {
    const { workload, boundary, clock, pusher } = this.#deps;
    if (firstStart) {
      if (accepted.mainProcess === undefined)
        throw new RuntimeError("main_process_missing", "the acceptance of a first start names no main process");
      try {
        await workload.startFirst(accepted.mainProcess);
      } catch (error) {
        this.#sendEnded(error);
        return;
      }
    } else if (workload.main === undefined) {
      this.#sendEnded(startInterrupted());
      return;
    } else {
      await boundary.resume();
    }
    this.#uplink.send({
      case: "ready",
      value: create(RuntimeReadySchema, {
        mainProcessStartedTime: timestampFromMs(workload.startedAtMs || clock.now()),
        workloadIdentity: this.#deps.identity.workloadIdentity,
        isolation: this.#isolation(),
      }),
    });
    void workload.main?.exit.then(
      (status) => {
        pusher.flush();
        this.#uplink.send({ case: "mainExit", value: mainExit(status, clock.now()) });
      },
      () => {},
    );
  }

  async #update(update: ConfigUpdate): Promise<void> {
    const { updateId, sequence, component } = update;
    const kind =
      component.case === "sandboxConfig"
        ? ConfigComponent.SANDBOX_CONFIG
        : component.case === "providerEnvironment"
          ? ConfigComponent.PROVIDER_ENVIRONMENT
          : ConfigComponent.UNSPECIFIED;
    const outcome = await this.#apply(update, kind);
    this.#uplink.send({
      case: "updateResult",
      value: create(ConfigUpdateResultSchema, { updateId, component: kind, sequence, ...outcome }),
    });
  }

  async #apply({ updateId, sequence, component }: ConfigUpdate, kind: ConfigComponent): Promise<UpdateOutcome> {
    const { clock, configuration } = this.#deps;
    if (component.case === undefined || updateId === "" || sequence === 0n) {
      const message = "the update names no component, no identity or no sequence";
      const next = "Update gateway and hosts to the same version";
      return { result: unsupported({ code: "invalid_update", message, next }) };
    }
    const seen = this.#watermarks.get(kind) ?? 0n;
    if (sequence <= seen) {
      const message = `the update's sequence ${sequence} is not beyond ${seen}`;
      return { result: stale({ code: "stale_sequence", message, next: "" }) };
    }
    this.#watermarks.set(kind, sequence);
    const snapshot =
      component.case === "sandboxConfig" ? { config: component.value } : { environment: component.value };
    const late = new AbortController();
    const done = new AbortController();
    const timeout = clock.sleep(Limits.applyTimeoutMs, { signal: done.signal, unref: true }).then(() => {
      late.abort();
      const message = `the update was not applied within ${Limits.applyTimeoutMs / 1_000} s`;
      return { result: configuration.unapplied(snapshot, { code: "apply_timeout", message, next: "" }) };
    });
    try {
      return await Promise.race([configuration.update(snapshot, late.signal), timeout]);
    } finally {
      timeout.catch(() => {});
      done.abort(DONE);
    }
  }

  #relay(relayId: string, signal: AbortSignal): void {
    const { identity, link, workload, log } = this.#deps;
    const channel = new RelayChannel(relayId, identity.sandboxId);
    const gone = AbortSignal.any([signal, channel.signal]);
    const frames = link.bulk.relay(channel.uplink, {
      signal: gone,
      headers: { [SANDBOX_TOKEN_HEADER]: identity.token().token },
    });
    const input = downlinkFrames(frames, channel);
    if (this.#relays.size >= Limits.relays) {
      void channel.fail(
        new RuntimeError("too_many_relays", `the sandbox serves ${Limits.relays} commands and attachments already`, {
          next: "Wait for one to end",
        }),
      );
      void discard(input);
      return;
    }
    this.#relays.set(relayId, channel);
    void workload
      .serve(input, channel)
      .catch(async (error: unknown) => {
        // A caller who left is no failure, and there is nobody to tell.
        if (channel.signal.aborted) return;
        log.warn(`relay failed: ${describeError(error)}`);
        await channel.fail(error);
      })
      .finally(() => {
        this.#relays.delete(relayId);
        return discard(input);
      });
  }

  #isolation(): IsolationReport {
    const { boundary, workload } = this.#deps;
    return create(IsolationReportSchema, {
      captureMode: boundary.capture.mode,
      layers: workload.layers.map((layer) => create(IsolationLayerSchema, layer)),
    });
  }

  #sendEnded(error: unknown): void {
    const known = error instanceof RuntimeError;
    const unknown = SHORTAGES.has(systemCode(error)) ? "start_interrupted" : "start_failed";
    // The session goes with this message; what was said before it is said.
    this.#deps.pusher.flush();
    this.#uplink.send({
      case: "ended",
      value: create(SandboxEndedSchema, {
        isolation: this.#isolation(),
        reason: create(FailureSchema, {
          code: known ? error.code : unknown,
          message: known ? error.message : "starting the main process failed",
          next: known ? error.next : "See the supervisor's log",
        }),
      }),
    });
    if (!known) this.#deps.log.error(`starting the main process failed: ${describeError(error)}`);
  }
}

/** The machine, or this process, is short of something for the moment: what was to be started is not the reason. */
const SHORTAGES: ReadonlySet<string | undefined> = new Set(["EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "ENOSPC"]);

function mainExit(status: ExitStatus, nowMs: number): MainProcessExit {
  return create(MainProcessExitSchema, {
    status:
      status.kind === "exited" ? { case: "exitCode", value: status.code } : { case: "signal", value: status.signal },
    exitTime: timestampFromMs(nowMs),
  });
}
