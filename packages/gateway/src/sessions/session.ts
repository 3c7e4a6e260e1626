import { randomUUID } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { unavailable } from "@openshell/api/errors.ts";
import {
  type BootstrapResult,
  ConfigurationAdmittedSchema,
  type Failure,
  MainProcessExitRecordedSchema,
  SessionAcceptedSchema,
  SessionRejectedSchema,
  StartupConfigCandidateSchema,
  type StartupConfigPrepared,
  type SupervisorDownlink,
  SupervisorDownlinkSchema,
  type SupervisorHello,
  type SupervisorUplink,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { toDuration } from "@openshell/api/times.ts";
import type { Clock } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import type { SessionDelivery } from "../delivery/delivery.ts";
import { isInForce, verdictOf } from "../delivery/outcome.ts";
import { fits } from "../delivery/size.ts";
import type { AppliedComponents, Bootstrap, SessionBackend, SessionIdentity, StartupCandidate } from "./backend.ts";
import { failure, failureText, SessionRefused } from "./failure.ts";
import {
  BOOTSTRAP_BUILD_MS,
  BOOTSTRAP_TIMEOUT_MS,
  HEARTBEAT_INTERVAL_MS,
  MAX_CONFIG_BYTES,
  PREPARE_TIMEOUT_MS,
  PROTOCOL_REVISION,
  SESSION_QUEUE,
} from "./limits.ts";
import { DONE, readWithin } from "./reader.ts";

export interface SessionDeps {
  readonly clock: Clock;
  readonly backend: SessionBackend;
  /** Changes of configuration that were announced so far: read before anything that they may overtake. */
  readonly publications: () => number;
  /** Makes the delivery of live changes for a session whose bootstrap was read after `publications` was. */
  readonly openDelivery: (session: SupervisorSession, bootstrap: Bootstrap, publications: number) => SessionDelivery;
  readonly closeDelivery: (delivery: SessionDelivery) => void;
  /** How a bootstrap ended. */
  readonly onBootstrap?: (end: "applied" | "refused" | "failed" | "mismatch") => void;
}

/** How far a session has come. Relays are opened from `ready` on. */
export type SessionState = "starting" | "held" | "accepted" | "ready" | "closed";

/**
 * One supervisor's stream for one sandbox: hello → candidate → prepared → SessionAccepted → bootstrap result →
 * RuntimeReady, then live traffic. On a reconnect of a running sandbox the candidate is left out.
 *
 * Whoever holds the object may `send` control messages and `close` it; everything else happens in `run`.
 */
export class SupervisorSession implements SessionIdentity {
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly instanceId: string;
  readonly connectionEpoch: bigint;
  readonly protocolRevision: number;
  readonly sessionId = randomUUID();
  readonly #deps: SessionDeps;
  /** Dropped after the start: it may carry a policy. */
  #hello: SupervisorHello | undefined;
  readonly #firstStart: boolean;
  readonly #outbound = new BoundedQueue<SupervisorDownlink>(SESSION_QUEUE);
  readonly #stateListeners = new Set<() => void>();
  #state: SessionState = "starting";
  #delivery: SessionDelivery | undefined;
  /** A read that nobody has taken yet. */
  #reading: Promise<IteratorResult<SupervisorUplink>> | undefined;
  #changed: (() => void) | undefined;

  constructor(hello: SupervisorHello, deps: SessionDeps) {
    this.#hello = hello;
    this.#firstStart = hello.firstStart;
    this.#deps = deps;
    this.sandboxId = hello.sandboxId;
    this.generation = hello.generation;
    this.instanceId = hello.instanceId;
    this.connectionEpoch = hello.connectionEpoch;
    this.protocolRevision = hello.protocolRevision;
  }

  /** The supervisor asks for changes itself (`polling/`): none is sent to it. */
  get polls(): boolean {
    return this.protocolRevision < PROTOCOL_REVISION;
  }

  get state(): SessionState {
    return this.#state;
  }

  get delivery(): SessionDelivery | undefined {
    return this.#delivery;
  }

  /** Messages to the supervisor; ends when the session does. */
  get outbound(): AsyncIterable<SupervisorDownlink> {
    return this.#outbound;
  }

  /** Calls back at each change of state until the returned function is called. */
  onState(listener: () => void): () => void {
    this.#stateListeners.add(listener);
    return () => this.#stateListeners.delete(listener);
  }

  /** Queues a message. A supervisor that does not read its stream loses it: false then, and always after the end. */
  send(message: SupervisorDownlink["message"]): boolean {
    if (this.#outbound.offer(create(SupervisorDownlinkSchema, { message }))) return true;
    this.close(unavailable(`more than ${SESSION_QUEUE} messages wait for the supervisor`));
    return false;
  }

  /** Ends the session; the supervisor reconnects unless it was told otherwise. Harmless when repeated. */
  close(error?: unknown): void {
    if (this.#state === "closed") return;
    this.#setState("closed");
    if (this.#delivery !== undefined) this.#deps.closeDelivery(this.#delivery);
    // A supervisor that is rejected gives up for good; whatever may pass only breaks the stream, and it comes back.
    if (error instanceof SessionRefused && !error.failure.retryable) {
      const message = create(SessionRejectedSchema, { failure: error.failure });
      this.#outbound.offer(create(SupervisorDownlinkSchema, { message: { case: "rejected", value: message } }));
      this.#outbound.close();
    } else {
      this.#outbound.close(error instanceof SessionRefused ? unavailable(error.message) : error);
    }
  }

  /** The configuration may be another one: a start that waits for that goes on. */
  configurationChanged(): void {
    this.#changed?.();
  }

  /** Carries the session from the hello to its end. Resolves when the supervisor ended the stream or `close` was called. */
  async run(uplink: AsyncIterator<SupervisorUplink>): Promise<void> {
    const { backend } = this.#deps;
    const reader = { next: () => this.#take(uplink) };
    let admitted = false;
    try {
      const hello = this.#hello!;
      await backend.admit(hello);
      admitted = true;
      if (this.#firstStart && !(await this.#prepare(hello, reader))) return;
      this.#hello = undefined;
      if (!(await this.#accept(reader))) return;
      await this.#serve(reader);
      this.close();
    } catch (error) {
      await this.#endStart(admitted, error);
      this.close(error);
    } finally {
      this.#hello = undefined;
    }
  }

  /** A start that is rejected for good ends: its host would come back with the same. */
  async #endStart(admitted: boolean, error: unknown): Promise<void> {
    const over = this.#state === "accepted" || this.#state === "ready" || this.#state === "closed";
    if (!this.#firstStart || !admitted || over || !(error instanceof SessionRefused) || error.failure.retryable) return;
    // What the store cannot take now is decided when the host comes back.
    await this.#deps.backend.startFailed(this, error.failure).catch(() => {});
  }

  /** Candidate → prepared. False: the stream ended. */
  async #prepare(hello: SupervisorHello, uplink: AsyncIterator<SupervisorUplink>): Promise<boolean> {
    const { backend } = this.#deps;
    for (;;) {
      const seen = this.#deps.publications();
      const candidate = await backend.candidate(this, hello);
      if (candidate.source === "invalid") {
        if (!(await this.#hold(uplink, candidate.reason, seen))) return false;
        this.#setState("starting");
        continue;
      }
      const prepared = await this.#ask(candidate, uplink);
      if (prepared === undefined) return false;
      if (prepared.case === "failure") throw preparationFailed(prepared.value);
      await backend.adoptPolicy(this, candidate, prepared.case === "policy" ? prepared.value : undefined);
      return true;
    }
  }

  /** What the supervisor made of a candidate. Undefined: the stream ended. */
  async #ask(
    candidate: StartupCandidate,
    uplink: AsyncIterator<SupervisorUplink>,
  ): Promise<StartupConfigPrepared["result"] | undefined> {
    const candidateId = randomUUID();
    const { hash: policyHash, policy, source, version } = candidate;
    const value = create(StartupConfigCandidateSchema, { candidateId, policyHash, policy, source, version });
    if (!fits(StartupConfigCandidateSchema, value, MAX_CONFIG_BYTES)) {
      throw new SessionRefused("payload_too_large", `the start-up policy exceeds ${MAX_CONFIG_BYTES} bytes`);
    }
    this.send({ case: "candidate", value });
    const message = await this.#readStartup(uplink, PREPARE_TIMEOUT_MS, "prepared policy");
    if (message === undefined) return undefined;
    if (message.case !== "prepared") throw unexpected(message.case, "prepared");
    const prepared = message.value;
    if (prepared.candidateId !== candidateId || prepared.policyHash !== policyHash) {
      throw new SessionRefused("candidate_mismatch", "the answer belongs to another candidate");
    }
    if (prepared.result.case === undefined) throw new SessionRefused("invalid_message", "prepared without a result");
    return prepared.result;
  }

  /** SessionAccepted → bootstrap result → admitted. False: the stream ended, or starts over. */
  async #accept(uplink: AsyncIterator<SupervisorUplink>): Promise<boolean> {
    const { backend } = this.#deps;
    const seen = this.#deps.publications();
    const bootstrap = await this.#within(backend.bootstrap(this, this.#firstStart), BOOTSTRAP_BUILD_MS);
    const { config: sandboxConfig, environment: providerEnvironment, mainProcess } = bootstrap;
    const value = create(SessionAcceptedSchema, {
      sessionId: this.sessionId,
      sandboxConfig,
      providerEnvironment,
      ...(this.#firstStart ? { mainProcess } : {}),
      heartbeatInterval: toDuration(HEARTBEAT_INTERVAL_MS),
    });
    if (!fits(SessionAcceptedSchema, value, 2 * MAX_CONFIG_BYTES)) {
      throw new SessionRefused("payload_too_large", "the sandbox's configuration is too large to be delivered");
    }
    if (this.#state === "closed") return false;
    // From here on changes are noticed; they are sent once the bootstrap has been answered.
    const delivery = this.polls ? undefined : this.#deps.openDelivery(this, bootstrap, seen);
    this.#delivery = delivery;
    this.send({ case: "accepted", value });
    const message = await this.#readStartup(uplink, BOOTSTRAP_TIMEOUT_MS, "bootstrap result");
    if (message === undefined) return false;
    if (message.case !== "bootstrapResult") throw unexpected(message.case, "bootstrap result");
    const results = this.#checkBootstrap(message.value, bootstrap);
    const refused = [results.config, results.environment].find((result) => !isInForce(result.outcome));
    if (refused !== undefined) this.#deps.onBootstrap?.("refused");
    if (refused !== undefined && this.#firstStart) {
      const reason = refused.failure ?? failure("configuration_rejected", "the supervisor refused the configuration");
      // The supervisor starts over with whatever it is then.
      if (await this.#hold(uplink, reason, seen)) this.close();
      return false;
    }
    if (refused === undefined) {
      // Nothing counts as acknowledged before this is durable: when it fails, the session ends and the next one begins anew.
      await backend.configurationApplied(this, bootstrap, results);
      this.#deps.onBootstrap?.("applied");
    } else {
      // A workload that runs goes on under what is in force, which may be that everything is denied.
      await backend.configurationRefused(this, bootstrap, results);
    }
    const { configRevision } = sandboxConfig;
    const { providerRevision } = providerEnvironment;
    this.send({ case: "admitted", value: create(ConfigurationAdmittedSchema, { configRevision, providerRevision }) });
    this.#setState("accepted");
    delivery?.bootstrapDone(results);
    return true;
  }

  #checkBootstrap(result: BootstrapResult, bootstrap: Bootstrap): AppliedComponents {
    const { sandboxConfig: config, providerEnvironment: environment } = result;
    if (result.sessionId !== this.sessionId || config === undefined || environment === undefined) {
      this.#deps.onBootstrap?.("failed");
      throw new SessionRefused("invalid_message", "a bootstrap result must name this session and both components");
    }
    const verdicts = [
      verdictOf(config, bootstrap.config.configRevision),
      verdictOf(environment, bootstrap.environment.providerRevision),
    ];
    if (verdicts.includes("invalid")) {
      this.#deps.onBootstrap?.("mismatch");
      throw new SessionRefused("revision_mismatch", "the bootstrap was applied at another revision");
    }
    return { config, environment };
  }

  /** Live traffic, in order, each message handled before the next is read: a slow store slows the supervisor down. */
  async #serve(uplink: AsyncIterator<SupervisorUplink>): Promise<void> {
    for (;;) {
      const next = await uplink.next();
      if (next.done || this.#state === "closed") return;
      await this.#handle(next.value.message);
    }
  }

  async #handle(message: SupervisorUplink["message"]): Promise<void> {
    const { backend } = this.#deps;
    switch (message.case) {
      case "updateResult":
        await this.#delivery?.result(message.value);
        return;
      case "ready":
        this.#setState("ready");
        await backend.runtimeReady(this, message.value);
        return;
      case "mainExit":
        await backend.mainProcessExited(this, message.value);
        this.send({ case: "mainExitRecorded", value: create(MainProcessExitRecordedSchema) });
        return;
      case "logs":
        backend.logs(this, message.value);
        return;
      case "ended":
        await backend.sandboxEnded(this, message.value.reason, message.value.isolation);
        return;
      case "readiness":
        // Whoever polls reports it with an RPC, in a sequence of its own.
        if (this.polls) return;
        backend.readiness(this, message.value);
        return;
      case undefined:
        // A message of a newer host: additive, so it may be ignored.
        return;
      default:
        throw unexpected(message.case, "live message");
    }
  }

  /** The next message; a read that was begun and not taken comes first. */
  #take(uplink: AsyncIterator<SupervisorUplink>): Promise<IteratorResult<SupervisorUplink>> {
    const reading = this.#reading ?? uplink.next();
    this.#reading = undefined;
    return reading;
  }

  /** @throws SessionRefused snapshot_timeout, retryable, when `work` takes longer than the limit. */
  async #within<T>(work: Promise<T>, limitMs: number): Promise<T> {
    const timer = new AbortController();
    const late = this.#deps.clock.sleep(limitMs, { signal: timer.signal, unref: true }).then(() => {
      const message = `the configuration was not read within ${limitMs / 1000} s`;
      throw new SessionRefused("snapshot_timeout", message, { retryable: true });
    });
    late.catch(() => {});
    try {
      return await Promise.race([work, late]);
    } finally {
      timer.abort(DONE);
    }
  }

  /** The next message that is not one of those that may come at any time. */
  async #readStartup(
    uplink: AsyncIterator<SupervisorUplink>,
    timeoutMs: number,
    what: string,
  ): Promise<SupervisorUplink["message"] | undefined> {
    const limit = this.#deps.clock.monotonic() + timeoutMs;
    for (;;) {
      const left = Math.max(1, limit - this.#deps.clock.monotonic());
      const next = await readWithin(uplink, this.#deps.clock, left, what);
      if (next === undefined || this.#state === "closed") return undefined;
      const { message } = next;
      if (message.case === "logs") this.#deps.backend.logs(this, message.value);
      else if (message.case === "ended") {
        await this.#deps.backend.sandboxEnded(this, message.value.reason, message.value.isolation);
        return undefined;
      } else if (message.case !== undefined) return message;
    }
  }

  /**
   * The start waits, visibly, for another configuration than the one that was refused. `seen`: publications before that
   * one was read. False: the stream ended first.
   *
   * @throws SessionRefused configuration_deadline when nobody changed it in time.
   */
  async #hold(uplink: AsyncIterator<SupervisorUplink>, reason: Failure, seen: number): Promise<boolean> {
    const { backend, clock, publications } = this.#deps;
    const deadline = await backend.configurationRejected(this, reason);
    const change = Promise.withResolvers<"changed">();
    this.#changed = () => change.resolve("changed");
    this.#setState("held");
    // It may have been changed between being read and being refused.
    if (publications() !== seen) this.#changed();
    const timer = new AbortController();
    const leftMs = Math.max(0, deadline - clock.now());
    const late = clock.sleep(leftMs, { signal: timer.signal, unref: true }).then(() => "late" as const);
    late.catch(() => {});
    try {
      for (;;) {
        this.#reading ??= uplink.next();
        const next = await Promise.race([late, change.promise, this.#reading]);
        if (next === "changed") return true;
        if (next === "late") {
          const text = `the configuration was refused, and not corrected in time: ${failureText(reason)}`;
          throw new SessionRefused("configuration_deadline", text);
        }
        this.#reading = undefined;
        if (next.done) return false;
        const { message } = next.value;
        if (message.case === "logs") backend.logs(this, message.value);
        if (message.case === "ended") {
          await backend.sandboxEnded(this, message.value.reason, message.value.isolation);
          return false;
        }
      }
    } finally {
      timer.abort(DONE);
      this.#changed = undefined;
    }
  }

  #setState(state: SessionState): void {
    this.#state = state;
    for (const listener of [...this.#stateListeners]) listener();
  }
}

/** A preparation that failed: for good, or worth another attempt. */
function preparationFailed(reason: Failure): SessionRefused {
  const text = `the start-up policy cannot be prepared: ${failureText(reason)}`;
  return new SessionRefused("configuration_rejected", text, { retryable: reason.retryable });
}

/** Out of turn: the stream ends, and the next one begins anew. Nothing is lost for good by what a stream did. */
function unexpected(got: string | undefined, wanted: string): SessionRefused {
  const text = `expected ${wanted}, got ${got ?? "an unknown message"}`;
  return new SessionRefused("unexpected_message", text, { retryable: true });
}
