import { randomUUID } from "node:crypto";
import { create, toBinary } from "@bufbuild/protobuf";
import { unavailable } from "@openshell/api/errors.ts";
import {
  type BootstrapResult,
  ConfigApplyOutcome,
  ConfigurationAdmittedSchema,
  MainProcessExitRecordedSchema,
  SessionAcceptedSchema,
  SessionRejectedSchema,
  StartupConfigCandidateSchema,
  type SupervisorDownlink,
  SupervisorDownlinkSchema,
  type SupervisorHello,
  type SupervisorUplink,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { toDuration } from "@openshell/api/times.ts";
import type { Clock } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import type { SessionDelivery } from "../delivery/delivery.ts";
import type { AppliedComponents, Bootstrap, SessionBackend, SessionIdentity } from "./backend.ts";
import { failure, SessionRefused } from "./failure.ts";
import {
  BOOTSTRAP_TIMEOUT_MS,
  HEARTBEAT_INTERVAL_MS,
  MAX_CONFIG_BYTES,
  PREPARE_TIMEOUT_MS,
  SESSION_QUEUE,
} from "./limits.ts";
import { readWithin } from "./reader.ts";

export interface SessionDeps {
  readonly clock: Clock;
  readonly backend: SessionBackend;
  /** Makes the delivery of live changes for a session whose bootstrap was just built. */
  readonly openDelivery: (session: SupervisorSession, bootstrap: Bootstrap) => SessionDelivery;
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
  readonly sessionId = randomUUID();
  readonly #deps: SessionDeps;
  readonly #hello: SupervisorHello;
  readonly #outbound = new BoundedQueue<SupervisorDownlink>(SESSION_QUEUE);
  readonly #stateListeners = new Set<() => void>();
  #state: SessionState = "starting";
  #delivery: SessionDelivery | undefined;

  constructor(hello: SupervisorHello, deps: SessionDeps) {
    this.#hello = hello;
    this.#deps = deps;
    this.sandboxId = hello.sandboxId;
    this.generation = hello.generation;
    this.instanceId = hello.instanceId;
    this.connectionEpoch = hello.connectionEpoch;
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
    this.#delivery?.close();
    // A supervisor that is rejected gives up for good; whatever may pass only breaks the stream, and it comes back.
    if (error instanceof SessionRefused && !error.failure.retryable) {
      const message = create(SessionRejectedSchema, { failure: error.failure });
      this.#outbound.offer(create(SupervisorDownlinkSchema, { message: { case: "rejected", value: message } }));
      this.#outbound.close();
    } else {
      this.#outbound.close(error instanceof SessionRefused ? unavailable(error.message) : error);
    }
  }

  /** Carries the session from the hello to its end. Resolves when the supervisor ended the stream or `close` was called. */
  async run(uplink: AsyncIterator<SupervisorUplink>): Promise<void> {
    try {
      await this.#deps.backend.admit(this.#hello);
      if (this.#hello.firstStart && !(await this.#prepare(uplink))) return;
      if (!(await this.#accept(uplink))) return;
      await this.#serve(uplink);
      this.close();
    } catch (error) {
      this.close(error);
    }
  }

  /** Candidate → prepared. False: the stream ended, or the configuration was refused and the session is held. */
  async #prepare(uplink: AsyncIterator<SupervisorUplink>): Promise<boolean> {
    const { backend } = this.#deps;
    const candidate = await backend.candidate(this, this.#hello);
    const candidateId = randomUUID();
    const { hash: policyHash, policy, source, version } = candidate;
    const value = create(StartupConfigCandidateSchema, { candidateId, policyHash, policy, source, version });
    if (toBinary(StartupConfigCandidateSchema, value).length > MAX_CONFIG_BYTES) {
      throw new SessionRefused("payload_too_large", `the start-up policy exceeds ${MAX_CONFIG_BYTES} bytes`);
    }
    this.send({ case: "candidate", value });
    const message = await this.#readStartup(uplink, PREPARE_TIMEOUT_MS, "prepared policy");
    if (message === undefined) return false;
    if (message.case !== "prepared") throw unexpected(message.case, "prepared");
    const prepared = message.value;
    if (prepared.candidateId !== candidateId || prepared.policyHash !== policyHash) {
      throw new SessionRefused("candidate_mismatch", "the answer belongs to another candidate");
    }
    if (prepared.result.case === "failure") {
      await backend.configurationRejected(this, prepared.result.value);
      return await this.#hold(uplink);
    }
    if (prepared.result.case === undefined) throw new SessionRefused("invalid_message", "prepared without a result");
    await backend.adoptPolicy(this, candidate, prepared.result.case === "policy" ? prepared.result.value : undefined);
    return true;
  }

  /** SessionAccepted → bootstrap result. False as in `#prepare`. */
  async #accept(uplink: AsyncIterator<SupervisorUplink>): Promise<boolean> {
    const { backend } = this.#deps;
    const bootstrap = await backend.bootstrap(this);
    const { config: sandboxConfig, environment: providerEnvironment, mainProcess } = bootstrap;
    const value = create(SessionAcceptedSchema, {
      sessionId: this.sessionId,
      sandboxConfig,
      providerEnvironment,
      ...(this.#hello.firstStart ? { mainProcess } : {}),
      heartbeatInterval: toDuration(HEARTBEAT_INTERVAL_MS),
    });
    if (toBinary(SessionAcceptedSchema, value).length > 2 * MAX_CONFIG_BYTES) {
      throw new SessionRefused("payload_too_large", "the sandbox's configuration is too large to be delivered");
    }
    if (this.#state === "closed") return false;
    // From here on changes are noticed; they are sent once the bootstrap has been answered.
    this.#delivery = this.#deps.openDelivery(this, bootstrap);
    this.send({ case: "accepted", value });
    const message = await this.#readStartup(uplink, BOOTSTRAP_TIMEOUT_MS, "bootstrap result");
    if (message === undefined) return false;
    if (message.case !== "bootstrapResult") throw unexpected(message.case, "bootstrap result");
    const results = this.#checkBootstrap(message.value, bootstrap);
    const refused = [results.config, results.environment].find((result) => !isApplied(result.outcome));
    if (refused !== undefined) {
      const reason = refused.failure ?? failure("configuration_rejected", "the supervisor refused the configuration");
      await backend.configurationRejected(this, reason);
      return await this.#hold(uplink);
    }
    await backend.configurationApplied(this, bootstrap, results);
    const { configRevision } = sandboxConfig;
    const { providerRevision } = providerEnvironment;
    this.send({ case: "admitted", value: create(ConfigurationAdmittedSchema, { configRevision, providerRevision }) });
    this.#setState("accepted");
    this.#delivery.bootstrapDone();
    return true;
  }

  #checkBootstrap(result: BootstrapResult, bootstrap: Bootstrap): AppliedComponents {
    const { sandboxConfig: config, providerEnvironment: environment } = result;
    if (result.sessionId !== this.sessionId || config === undefined || environment === undefined) {
      throw new SessionRefused("invalid_message", "a bootstrap result must name this session and both components");
    }
    const wrong =
      (isApplied(config.outcome) && config.appliedRevision !== bootstrap.config.configRevision) ||
      (isApplied(environment.outcome) && environment.appliedRevision !== bootstrap.environment.providerRevision);
    if (wrong) throw new SessionRefused("revision_mismatch", "the bootstrap was applied at another revision");
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
        backend.readiness(this, message.value);
        return;
      case undefined:
        // A message of a newer host: additive, so it may be ignored.
        return;
      default:
        throw unexpected(message.case, "live message");
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

  /** Keeps the stream open until a change of configuration closes it: the supervisor then starts over. */
  async #hold(uplink: AsyncIterator<SupervisorUplink>): Promise<false> {
    this.#setState("held");
    for (;;) {
      const next = await uplink.next();
      if (next.done) return false;
      if (next.value.message.case === "logs") this.#deps.backend.logs(this, next.value.message.value);
      if (next.value.message.case === "ended") {
        await this.#deps.backend.sandboxEnded(
          this,
          next.value.message.value.reason,
          next.value.message.value.isolation,
        );
        return false;
      }
    }
  }

  #setState(state: SessionState): void {
    this.#state = state;
    for (const listener of [...this.#stateListeners]) listener();
  }
}

/** Outcomes that count as acknowledged. */
export function isApplied(outcome: ConfigApplyOutcome): boolean {
  return (
    outcome === ConfigApplyOutcome.APPLIED ||
    outcome === ConfigApplyOutcome.IGNORED_DUPLICATE ||
    outcome === ConfigApplyOutcome.DEGRADED
  );
}

function unexpected(got: string | undefined, wanted: string): SessionRefused {
  return new SessionRefused("unexpected_message", `expected ${wanted}, got ${got ?? "an unknown message"}`);
}
