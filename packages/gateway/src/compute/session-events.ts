import { create } from "@bufbuild/protobuf";
import {
  ConfigurationAdmissionState,
  SandboxConfigurationAdmissionSchema,
  SandboxPhase,
  type SandboxPolicy,
  type SandboxStatus,
} from "@openshell/api";
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
import { type Clock, describeError, LogField, RuntimeError } from "@openshell/base";
import type { Logger } from "pino";
import type { DeliveryOutcome } from "../delivery/delivery.ts";
import { buildSnapshot, effectivePolicy, revisionNumber } from "../delivery/snapshot.ts";
import type { GatewayDeps } from "../deps.ts";
import { policyHash, withoutGatewayMarks } from "../policies/rules.ts";
import type { Observations } from "../readiness/observations.ts";
import type { ReadinessTracker } from "../readiness/tracker.ts";
import type {
  AppliedComponents,
  Bootstrap,
  SessionBackend,
  SessionIdentity,
  StartupCandidate,
} from "../sessions/backend.ts";
import { failureText, SessionRefused } from "../sessions/failure.ts";
import type { SessionRegistry } from "../sessions/registry.ts";
import { isStoreError } from "../store/errors.ts";
import type { SandboxChange, SandboxRecord, Store } from "../store/types.ts";
import type { Vault } from "../store/vault.ts";
import type { SandboxController } from "./controller.ts";
import { isolationCondition, isolationReason, storedIsolation } from "./isolation.ts";
import { mainProcess } from "./launch.ts";
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
  readonly observations: Observations;
  readonly readiness: () => ReadinessTracker;
  /** Checks a policy as if its owner had sent it; throws what is wrong. */
  readonly checkPolicy: (record: SandboxRecord, policy: SandboxPolicy) => Promise<void>;
}

/** What sessions report, as changes of the store. */
export class SessionEvents implements SessionBackend {
  readonly #deps: SessionEventsDeps;
  /** What was applied at the start of a session; stored together with the readiness that follows it. */
  readonly #applied = new Map<string, Bootstrap>();

  constructor(deps: SessionEventsDeps) {
    this.#deps = deps;
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

  async candidate(identity: SessionIdentity, hello: SupervisorHello): Promise<StartupCandidate> {
    const { policy, version, hash, stored } = await effectivePolicy(this.#deps.store, identity.sandboxId);
    if (stored) return { policy, version, hash, source: "gateway" };
    if (hello.imagePolicy.case === "policy") {
      const image = withoutGatewayMarks(hello.imagePolicy.value);
      return { policy: image, version: 0, hash: policyHash(image), source: "image" };
    }
    if (hello.imagePolicy.case === "invalid") {
      throw new SessionRefused(
        "image_policy_invalid",
        `the policy in the image is invalid: ${failureText(hello.imagePolicy.value)}`,
        {
          next: "Fix the image, or give the sandbox a policy",
        },
      );
    }
    return { policy, version, hash, source: "default" };
  }

  async adoptPolicy(
    identity: SessionIdentity,
    candidate: StartupCandidate,
    prepared: SandboxPolicy | undefined,
  ): Promise<void> {
    const { store, clock } = this.#deps;
    if (prepared === undefined && candidate.source === "gateway") return;
    const policy = prepared === undefined ? candidate.policy : withoutGatewayMarks(prepared);
    const hash = policyHash(policy);
    if (hash === candidate.hash && candidate.source === "gateway") return;
    const record = await store.sandboxes.byId(identity.sandboxId);
    if (record === undefined) throw new SessionRefused("sandbox_not_found", "the sandbox was deleted");
    // Whatever comes out of a sandbox's start is a proposal, checked like anybody's.
    if (prepared !== undefined) {
      await this.#deps.checkPolicy(record, policy).catch((error: unknown) => {
        throw new SessionRefused(
          "policy_refused",
          `the prepared policy is refused: ${String((error as Error).message)}`,
        );
      });
    }
    await store.modifySandbox(identity.sandboxId, (current) => ({
      patch: current.spec.policy === undefined ? { spec: { ...current.spec, policy } } : {},
      also: [
        store.policies.append({
          scope: identity.sandboxId,
          hash,
          policy,
          status: "pending",
          createdAt: clock.now(),
          provenance: {},
          expectedLatest: candidate.version,
        }),
      ],
    }));
  }

  async bootstrap(identity: SessionIdentity): Promise<Bootstrap> {
    // The workload may start right after this answer: that it was launched must be durable by then.
    await this.#deps.controller().launchRecorded(identity.sandboxId);
    const record = await this.#deps.store.sandboxes.byId(identity.sandboxId);
    if (record === undefined) throw new SessionRefused("sandbox_not_found", "the sandbox was deleted");
    try {
      const { config, environment } = await buildSnapshot(this.#deps, record);
      return { config, environment: environment(), mainProcess: mainProcess(record) };
    } catch (error) {
      if (!(error instanceof RuntimeError) || error.code !== "secret_unreadable") throw error;
      // Coming back would not help: somebody has to set the value again.
      await this.#deps.controller().fail(identity.sandboxId, identity.generation, "StartFailed", describeError(error));
      throw new SessionRefused(error.code, error.message, { next: error.next });
    }
  }

  async configurationApplied(
    identity: SessionIdentity,
    bootstrap: Bootstrap,
    _results: AppliedComponents,
  ): Promise<void> {
    this.#applied.set(identity.sandboxId, bootstrap);
  }

  async configurationRejected(identity: SessionIdentity, reason: Failure): Promise<void> {
    const message = `the configuration is refused: ${failureText(reason)}`;
    await this.#change(identity, (record) => {
      if (!wantsToRun(record.status.phase) || restartPending(record.status)) return undefined;
      const now = this.#deps.clock.now();
      const status = withCondition(
        record.status,
        { type: "ConfigurationReady", status: "False", reason: "ConfigurationInvalid", message },
        now,
      );
      const ready = withPhase(status, record.status.phase, "ConfigurationInvalid", message, now);
      ready.configurationAdmission = create(SandboxConfigurationAdmissionSchema, {
        instanceId: identity.instanceId,
        state: ConfigurationAdmissionState.REJECTED,
        error: failureText(reason),
      });
      return { patch: { status: ready } };
    });
    this.#deps.feeds
      .of(identity.sandboxId)
      .addEvent({ type: "Warning", reason: "ConfigurationInvalid", message }, this.#deps.clock.now());
  }

  async runtimeReady(identity: SessionIdentity, ready: RuntimeReady): Promise<void> {
    const { store, clock } = this.#deps;
    const now = clock.now();
    const bootstrap = this.#applied.get(identity.sandboxId);
    this.#applied.delete(identity.sandboxId);
    const version = bootstrap?.config.policyVersion ?? 0;
    let before: SandboxPhase | undefined;
    await this.#change(identity, (record) => {
      const { status: current } = record;
      if (!wantsToRun(current.phase) || restartPending(current)) return undefined;
      before = current.phase;
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
      if (bootstrap !== undefined) accepted(status, identity, bootstrap);
      const also = version > 0 ? [store.policies.setStatus(identity.sandboxId, version, "loaded", now)] : [];
      const isolation = report && storedIsolation(report, identity.generation);
      const stored = isolation && { runtimeRecord: encodeRuntimeFacts({ ...facts, isolation }) };
      return { patch: { status, ...stored }, also };
    });
    if (before !== undefined && before !== SandboxPhase.READY) {
      const message =
        bootstrap === undefined ? "the workload runs" : `the workload runs under policy version ${version}`;
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
    this.#applied.delete(identity.sandboxId);
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

  /** The durable part of a live delivery. */
  async recordDelivery(identity: SessionIdentity, outcome: DeliveryOutcome): Promise<void> {
    const { store, clock, feeds, log } = this.#deps;
    const fields = { [LogField.sandboxId]: identity.sandboxId, component: outcome.component, outcome: outcome.outcome };
    if (!outcome.applied) {
      const message = `the supervisor refused a change of the ${outcome.component}: ${failureText(outcome.failure)}`;
      log.warn(fields, message);
      feeds.of(identity.sandboxId).addEvent({ type: "Warning", reason: "ConfigurationRefused", message }, clock.now());
    }
    if (outcome.applied) {
      const message =
        outcome.component === "config"
          ? `policy version ${outcome.policyVersion} is in force`
          : "new provider credentials are in force";
      feeds.of(identity.sandboxId).addEvent({ type: "Normal", reason: "ConfigurationApplied", message }, clock.now());
    }
    if (outcome.component !== "config" || outcome.policyVersion === 0) return;
    const { policyVersion } = outcome;
    const error = outcome.applied ? "" : failureText(outcome.failure);
    const stored = store.policies.setStatus(
      identity.sandboxId,
      policyVersion,
      outcome.applied ? "loaded" : "failed",
      clock.now(),
      error,
    );
    await this.#change(identity, ({ status }) => {
      const next = outcome.applied ? { ...status, currentPolicyVersion: policyVersion } : status;
      return { patch: { status: next }, also: [stored] };
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

function accepted(status: SandboxStatus, identity: SessionIdentity, { config, environment }: Bootstrap): void {
  status.currentPolicyVersion = config.policyVersion;
  status.configurationAdmission = create(SandboxConfigurationAdmissionSchema, {
    instanceId: identity.instanceId,
    state: ConfigurationAdmissionState.ACCEPTED,
    policyVersion: config.policyVersion,
    policyHash: config.policyHash,
    configRevision: revisionNumber(config.configRevision),
    providerEnvRevision: revisionNumber(environment.providerRevision),
  });
}
