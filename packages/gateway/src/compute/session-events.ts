import { SandboxPhase, type SandboxPolicy } from "@openshell/api";
import type {
  Failure,
  IsolationReport,
  LogBatch,
  MainProcessExit,
  ReadinessObservation,
  RuntimeReady,
  SupervisorHello,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { timestampMs, toTimestamp } from "@openshell/api/times.ts";
import { type Clock, LogField } from "@openshell/base";
import type { Logger } from "pino";
import type { DeliveryOutcome } from "../delivery/delivery.ts";
import type { ConfigOperations } from "../delivery/operations.ts";
import type { GatewayDeps } from "../deps.ts";
import type { Observations } from "../readiness/observations.ts";
import type { ReadinessTracker } from "../readiness/tracker.ts";
import type {
  AppliedComponents,
  Bootstrap,
  SessionBackend,
  SessionIdentity,
  StartupCandidate,
  UnusableCandidate,
} from "../sessions/backend.ts";
import { failureText, SessionRefused } from "../sessions/failure.ts";
import type { SessionRegistry } from "../sessions/registry.ts";
import { isStoreError } from "../store/errors.ts";
import type { SandboxChange, SandboxRecord, Store } from "../store/types.ts";
import type { Vault } from "../store/vault.ts";
import { ConfigurationEvents } from "./configuration-events.ts";
import type { SandboxController } from "./controller.ts";
import { isolationCondition, isolationReason, storedIsolation } from "./isolation.ts";
import { DISCONNECT_GRACE_MS } from "./limits.ts";
import { mainEnded } from "./restart.ts";
import { encodeRuntimeFacts, runtimeFacts } from "./runtime-record.ts";
import type { SandboxFeeds } from "./sandbox-feed.ts";
import { publicExitCode, restartPending, wantsToRun, withCondition, withPhase } from "./status.ts";

/** Ends of a start that say nothing about what was to be started: the supervisor lost its hold on init before the main process ran. */
const START_CUT_OFF: ReadonlySet<string> = new Set(["start_interrupted", "boundary_lost", "boundary_timeout"]);

export interface SessionEventsDeps {
  readonly store: Store;
  readonly vault: Vault;
  readonly clock: Clock;
  readonly log: Logger;
  readonly config: GatewayDeps["config"];
  readonly feeds: SandboxFeeds;
  readonly sessions: SessionRegistry;
  readonly controller: () => SandboxController;
  readonly operations: ConfigOperations;
  readonly observations: Observations;
  readonly readiness: () => ReadinessTracker;
  /** Checks a policy as if its owner had sent it; throws what is wrong. */
  readonly checkPolicy: (record: SandboxRecord, policy: SandboxPolicy) => Promise<void>;
}

/** What sessions report, as changes of the store. */
export class SessionEvents implements SessionBackend {
  readonly #deps: SessionEventsDeps;
  readonly #configuration: ConfigurationEvents;

  constructor(deps: SessionEventsDeps) {
    this.#deps = deps;
    this.#configuration = new ConfigurationEvents({
      ...deps,
      change: (identity, mutate) => this.#change(identity, mutate),
    });
  }

  async admit(hello: SupervisorHello): Promise<void> {
    const record = await this.#deps.store.sandboxes.byId(hello.sandboxId);
    if (record === undefined) throw new SessionRefused("sandbox_not_found", "the sandbox was deleted");
    if (record.generation !== hello.generation) {
      throw new SessionRefused("generation_mismatch", `the sandbox runs generation ${record.generation}`);
    }
    // After the end of its main process a supervisor may come back to deliver the output that is still held.
    const { phase } = record.status;
    const ended = phase === SandboxPhase.COMPLETED || phase === SandboxPhase.ERROR;
    if (!wantsToRun(phase) && phase !== SandboxPhase.STOPPING && !(ended && !hello.firstStart)) {
      throw new SessionRefused("not_wanted", "the sandbox is not meant to run");
    }
  }

  candidate(identity: SessionIdentity, hello: SupervisorHello): Promise<StartupCandidate | UnusableCandidate> {
    return this.#configuration.candidate(identity, hello);
  }

  adoptPolicy(
    identity: SessionIdentity,
    candidate: StartupCandidate,
    prepared: SandboxPolicy | undefined,
  ): Promise<void> {
    return this.#configuration.adoptPolicy(identity, candidate, prepared);
  }

  bootstrap(identity: SessionIdentity, first: boolean): Promise<Bootstrap> {
    return this.#configuration.bootstrap(identity, first);
  }

  configurationApplied(identity: SessionIdentity, bootstrap: Bootstrap, results: AppliedComponents): Promise<void> {
    return this.#configuration.applied(identity, bootstrap, results);
  }

  configurationRefused(identity: SessionIdentity, bootstrap: Bootstrap, results: AppliedComponents): Promise<void> {
    return this.#configuration.refused(identity, bootstrap, results);
  }

  configurationRejected(identity: SessionIdentity, reason: Failure): Promise<number> {
    return this.#configuration.rejected(identity, reason);
  }

  startFailed(identity: SessionIdentity, reason: Failure): Promise<void> {
    return this.#configuration.startFailed(identity, reason);
  }

  /** The durable part of a live delivery. */
  recordDelivery(identity: SessionIdentity, outcomes: readonly DeliveryOutcome[]): Promise<void> {
    return this.#configuration.delivered(identity, outcomes);
  }

  /** A delivery that is tried again. */
  deliveryDelayed(identity: SessionIdentity, error: unknown, first: boolean): void {
    this.#configuration.delayed(identity, error, first);
  }

  async runtimeReady(identity: SessionIdentity, ready: RuntimeReady): Promise<void> {
    const now = this.#deps.clock.now();
    let version = 0;
    let before: SandboxPhase | undefined;
    await this.#change(identity, (record) => {
      const { status: current } = record;
      if (!wantsToRun(current.phase) || restartPending(current)) return undefined;
      before = current.phase;
      version = current.currentPolicyVersion;
      const facts = runtimeFacts(record);
      // The report of a start holds for its generation: a later host cannot test a sandbox in which the agent lives.
      const known = facts.isolation?.generation === identity.generation.toString();
      const report = known ? undefined : ready.isolation;
      let status = withPhase(current, SandboxPhase.READY, "DependenciesReady", "the workload runs", now);
      const conditions = [
        { type: "ConfigurationReady", status: "True" as const, reason: "Applied", message: "" },
        ...(report === undefined ? [] : [isolationCondition(report)]),
        ...(ready.workloadIdentity === ""
          ? []
          : [
              {
                type: "WorkloadIdentity",
                status: "True" as const,
                reason: "Resolved",
                message: ready.workloadIdentity.slice(0, 64),
              },
            ]),
      ];
      for (const condition of conditions) status = withCondition(status, condition, now);
      status.mainProcessInstanceId = identity.instanceId;
      status.configurationActivated = true;
      if (ready.mainProcessStartedTime !== undefined) status.mainProcessStartedTime = ready.mainProcessStartedTime;
      else status.mainProcessStartedTime ??= toTimestamp(now);
      const isolation = report && storedIsolation(report, identity.generation);
      const stored = isolation && { runtimeRecord: encodeRuntimeFacts({ ...facts, isolation }) };
      return { patch: { status, ...stored } };
    });
    if (before !== undefined && before !== SandboxPhase.READY) {
      const message = `the workload runs under policy version ${version}`;
      this.#deps.feeds.of(identity.sandboxId).addEvent({ type: "Normal", reason: "Ready", message }, now);
    }
    this.#deps.controller().started(identity.sandboxId);
  }

  async mainProcessExited(identity: SessionIdentity, exit: MainProcessExit): Promise<void> {
    const { clock, log, feeds } = this.#deps;
    const { status: ended } = exit;
    if (ended.case === undefined) throw new SessionRefused("invalid_message", "an exit without code and signal");
    const code = publicExitCode(ended);
    const how = ended.case === "signal" ? `was ended by signal ${ended.value}` : `exited with code ${code}`;
    const now = clock.now();
    const at = exit.exitTime === undefined ? now : timestampMs(exit.exitTime);
    let changed = false;
    const record = await this.#change(identity, (current) => {
      changed = wantsToRun(current.status.phase) && current.status.exitCode === undefined;
      return changed ? { patch: mainEnded(current, { code, how, at }, now) } : undefined;
    });
    if (!changed || record === undefined) return;
    log.info({ [LogField.sandboxId]: identity.sandboxId, [LogField.exitCode]: code }, "main process ended");
    const reason = code === 0 ? "MainProcessCompleted" : "MainProcessFailed";
    feeds
      .of(identity.sandboxId)
      .addEvent({ type: code === 0 ? "Normal" : "Warning", reason, message: `the main process ${how}` }, clock.now());
    this.#deps.controller().mainProcessEnded(record);
  }

  async sandboxEnded(
    identity: SessionIdentity,
    reason: Failure | undefined,
    report?: IsolationReport | undefined,
  ): Promise<void> {
    const isolation = isolationReason(reason?.code);
    if (isolation !== undefined && report !== undefined) {
      await this.#change(identity, (record) => {
        const facts = { ...runtimeFacts(record), isolation: storedIsolation(report, identity.generation) };
        const status = withCondition(record.status, isolationCondition(report), this.#deps.clock.now());
        return { patch: { status, runtimeRecord: encodeRuntimeFacts(facts) } };
      });
    }
    const again =
      START_CUT_OFF.has(reason?.code ?? "") &&
      (await this.#deps.controller().repeatStart(identity.sandboxId, identity.generation));
    if (again) return void this.#deps.sessions.get(identity.sandboxId)?.close();
    const text = failureText(reason);
    const message =
      isolation === undefined ? `the sandbox ended before its main process reported an exit status: ${text}` : text;
    await this.#deps.controller().fail(identity.sandboxId, identity.generation, isolation ?? "SandboxEnded", message);
    this.#deps.sessions.get(identity.sandboxId)?.close();
  }

  readiness(identity: SessionIdentity, observation: ReadinessObservation): void {
    if (!this.#deps.observations.accept(identity, observation)) return;
    void this.#deps.readiness().observed(identity.sandboxId);
  }

  logs(identity: SessionIdentity, batch: LogBatch): void {
    // The last words of a sandbox that was deleted are nobody's.
    const session = this.#deps.sessions.get(identity.sandboxId);
    if (session === undefined || session.state === "closed") return;
    this.#deps.feeds.of(identity.sandboxId).addLines(batch);
  }

  disconnected(identity: SessionIdentity): void {
    this.#deps.observations.forget(identity);
    void this.showDisconnected(identity.sandboxId, identity.generation).catch((error: unknown) => {
      this.#deps.log.warn({ [LogField.sandboxId]: identity.sandboxId, err: error }, "cannot record a lost session");
    });
  }

  /** A sandbox that is READY without a session for longer than a re-attachment takes is shown as PROVISIONING again. */
  async showDisconnected(sandboxId: string, generation: bigint): Promise<void> {
    const { clock, sessions } = this.#deps;
    await clock.sleep(DISCONNECT_GRACE_MS, { unref: true });
    if (sessions.get(sandboxId) !== undefined) return;
    await this.#change({ sandboxId, generation }, ({ status }) => {
      if (status.phase !== SandboxPhase.READY) return undefined;
      const message = "the sandbox's supervisor is not connected; its workload is frozen until it is";
      return {
        patch: { status: withPhase(status, SandboxPhase.PROVISIONING, "SupervisorNotConnected", message, clock.now()) },
      };
    });
  }

  /** A conditional change of the record of this generation; watchers are told. Undefined: the record is gone or another generation's. */
  async #change(
    identity: Pick<SessionIdentity, "sandboxId" | "generation">,
    mutate: (record: SandboxRecord) => SandboxChange | undefined,
  ): Promise<SandboxRecord | undefined> {
    const { store, feeds, sessions } = this.#deps;
    try {
      const record = await store.modifySandbox(identity.sandboxId, (current) =>
        current.generation === identity.generation ? mutate(current) : undefined,
      );
      feeds.of(identity.sandboxId).changed();
      sessions.notify(identity.sandboxId);
      return record.generation === identity.generation ? record : undefined;
    } catch (error) {
      if (isStoreError(error, "store_not_found")) return undefined;
      throw error;
    }
  }
}
