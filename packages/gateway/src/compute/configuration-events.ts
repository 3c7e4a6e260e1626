import { create } from "@bufbuild/protobuf";
import {
  ConfigurationAdmissionState,
  SandboxConfigurationAdmissionSchema,
  type SandboxPolicy,
  SandboxProvisioningSchema,
  type SandboxStatus,
} from "@openshell/api";
import {
  ConfigApplyOutcome,
  type Failure,
  type SupervisorHello,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { timestampMs, toTimestamp } from "@openshell/api/times.ts";
import { describeError, LogField, RuntimeError } from "@openshell/base";
import type { Logger } from "pino";
import type { ComponentName, DeliveryOutcome } from "../delivery/delivery.ts";
import type { ConfigOperations } from "../delivery/operations.ts";
import { isInForce } from "../delivery/outcome.ts";
import { captureSnapshot, revisionNumber, type SnapshotDeps } from "../delivery/snapshot.ts";
import { undeliverable } from "../delivery/undeliverable.ts";
import { ownPolicy } from "../policies/effective.ts";
import { policyHash, withoutGatewayMarks } from "../policies/rules.ts";
import type {
  AppliedComponents,
  Bootstrap,
  SessionIdentity,
  StartupCandidate,
  UnusableCandidate,
} from "../sessions/backend.ts";
import { failure, failureText, SessionRefused } from "../sessions/failure.ts";
import { REPAIR_WINDOW_MS } from "../sessions/limits.ts";
import { isStoreError } from "../store/errors.ts";
import type { SandboxChange, SandboxRecord } from "../store/types.ts";
import type { SandboxController } from "./controller.ts";
import { mainProcess } from "./launch.ts";
import type { SandboxFeeds } from "./sandbox-feed.ts";
import { type ConditionFacts, restartPending, wantsToRun, withCondition, withPhase } from "./status.ts";

export interface ConfigurationEventsDeps extends SnapshotDeps {
  readonly log: Logger;
  readonly feeds: SandboxFeeds;
  readonly controller: () => SandboxController;
  readonly operations: ConfigOperations;
  /** Checks a policy as if its owner had sent it; throws what is wrong. */
  readonly checkPolicy: (record: SandboxRecord, policy: SandboxPolicy) => Promise<void>;
  /** A conditional change of the record of this generation; watchers are told. */
  readonly change: (
    identity: Pick<SessionIdentity, "sandboxId" | "generation">,
    mutate: (record: SandboxRecord) => SandboxChange | undefined,
  ) => Promise<SandboxRecord | undefined>;
}

/** Conditions that tell whether a running sandbox has what is wanted. Absent while there never was trouble. */
export const CURRENT = { config: "PolicyCurrent", environment: "CredentialsCurrent" } as const;

/** With the reason why it is not in force, as people are told. */
type ToldOutcome = DeliveryOutcome & { readonly error: string };

/** What sessions say about configurations, as changes of the store: candidates, admissions, refusals, live outcomes. */
export class ConfigurationEvents {
  readonly #deps: ConfigurationEventsDeps;

  constructor(deps: ConfigurationEventsDeps) {
    this.#deps = deps;
  }

  /** The policy that is stored for the sandbox, else that of the image, else the restrictive default. */
  async candidate(
    { sandboxId }: SessionIdentity,
    hello: SupervisorHello,
  ): Promise<StartupCandidate | UnusableCandidate> {
    const { store, controller } = this.#deps;
    const { policy, version, hash, stored } = await ownPolicy(store, sandboxId);
    if (!stored && hello.imagePolicy.case === "invalid") return unusable(hello.imagePolicy.value);
    const record = await store.sandboxes.byId(sandboxId);
    if (record !== undefined) controller().resumeProvisioning(record);
    if (stored) return { policy, version, hash, source: "gateway" };
    if (hello.imagePolicy.case === "policy") {
      const image = withoutGatewayMarks(hello.imagePolicy.value);
      const binding = credentialBinding(image);
      if (binding !== undefined) return unusable(binding);
      return { policy: image, version: 0, hash: policyHash(image), source: "image" };
    }
    return { policy, version, hash, source: "default" };
  }

  /** Stores what a supervisor prepared: a proposal, checked like anybody's. Unchanged, it is stored only when there was none. */
  async adoptPolicy(
    identity: SessionIdentity,
    candidate: StartupCandidate,
    prepared: SandboxPolicy | undefined,
  ): Promise<void> {
    const { store, clock } = this.#deps;
    if (prepared === undefined && candidate.source === "gateway") return;
    const policy = prepared === undefined ? candidate.policy : withoutGatewayMarks(prepared);
    // What later changes are held against is the author's policy: paths that a start adds are no demand of theirs.
    const baseline = withoutGatewayMarks(candidate.policy);
    const hash = policyHash(policy);
    if (hash === candidate.hash && candidate.source === "gateway") return;
    const record = await store.sandboxes.byId(identity.sandboxId);
    if (record === undefined) throw new SessionRefused("sandbox_not_found", "the sandbox was deleted");
    // The default is the gateway's own; a policy out of an image is somebody else's, whether anything was added to it or not.
    if (prepared !== undefined || candidate.source === "image") {
      await this.#deps.checkPolicy(record, policy).catch((error: unknown) => {
        const text = `the prepared policy is refused: ${String((error as Error).message)}`;
        throw new SessionRefused("policy_refused", text, { next: "Correct the policy, then start the sandbox again" });
      });
    }
    try {
      await store.modifySandbox(identity.sandboxId, (current) => ({
        patch: current.spec.policy === undefined ? { spec: { ...current.spec, policy: baseline } } : {},
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
    } catch (error) {
      // Somebody set a policy while this one was prepared: theirs is the next candidate.
      if (!isStoreError(error, "store_conflict")) throw error;
      const text = "the policy was changed while the start prepared it";
      throw new SessionRefused("policy_changed", text, { retryable: true });
    }
  }

  /** Both components as they are at one moment. */
  async bootstrap(identity: SessionIdentity, first: boolean): Promise<Bootstrap> {
    // The workload may start right after the answer: that it was launched must be durable by then.
    await this.#deps.controller().launchRecorded(identity.sandboxId);
    try {
      const captured = await captureSnapshot(this.#deps, identity.sandboxId);
      if (captured === undefined) throw new SessionRefused("sandbox_not_found", "the sandbox was deleted");
      const { record, snapshot } = captured;
      const { config, workspace, providers, settingsRevision } = snapshot;
      const environment = snapshot.environment();
      return { config, environment, mainProcess: mainProcess(record), workspace, providers, settingsRevision };
    } catch (error) {
      if (!(error instanceof RuntimeError) || error instanceof SessionRefused) throw error;
      if (error.code === "global_policy_missing") {
        // What runs goes on under what it has, until somebody has set the policy again.
        if (!first) this.#undeliverable(identity, "config", describeError(error));
        throw new SessionRefused(error.code, error.message, { next: error.next, retryable: !first });
      }
      if (error.code !== "secret_unreadable") {
        const code = error.code === "snapshot_unsettled" ? error.code : "snapshot_timeout";
        throw new SessionRefused(code, error.message, { retryable: true });
      }
      // Coming back would not help: somebody has to set the value again.
      await this.#deps.controller().fail(identity.sandboxId, identity.generation, "StartFailed", describeError(error));
      throw new SessionRefused(error.code, error.message, { next: error.next });
    }
  }

  /** The admission, durable: what is in force, the policy's status, and the operations that this decides. */
  async applied(identity: SessionIdentity, bootstrap: Bootstrap, { config: result }: AppliedComponents): Promise<void> {
    const { store, clock, operations, change } = this.#deps;
    const { sandboxId } = identity;
    const { policyVersion } = bootstrap.config;
    const now = clock.now();
    const facts = { ...bootstrap.config, settingsRevision: bootstrap.settingsRevision };
    const delivered = { facts, applied: true, outcome: result.outcome, error: "" };
    const decision = await operations.decide(sandboxId, delivered, now);
    const loaded =
      policyVersion > 0 && bootstrap.config.policySource !== "global"
        ? [store.policies.setStatus(sandboxId, policyVersion, "loaded", now)]
        : [];
    const stored = await change(identity, ({ status: current }) => {
      const admission = admissionOf(identity, bootstrap);
      const policy = inForce(result.outcome === ConfigApplyOutcome.DEGRADED, result.failure);
      const troubled = policy.status === "False" || current.conditions.some(isTrouble);
      // A reconnect under the same configuration is nothing to store.
      if (sameAdmission(current, admission) && decision.commands.length === 0 && !troubled) return undefined;
      let status = withOutcome(current, "config", policy, now);
      status = withOutcome(status, "environment", inForce(false, undefined), now);
      if (bootstrap.config.policySource !== "global") status.currentPolicyVersion = policyVersion;
      status.configurationAdmission = admission;
      status.configurationActivated = true;
      if (status.provisioning !== undefined) delete status.provisioning.deadline;
      return { patch: { status }, also: [...loaded, ...decision.commands] };
    });
    if (stored === undefined) throw new SessionRefused("sandbox_not_found", "the sandbox was deleted or started anew");
    operations.tell(decision);
  }

  /** What a running sandbox refused on a reconnect is recorded like a refused change. */
  async refused(identity: SessionIdentity, bootstrap: Bootstrap, results: AppliedComponents): Promise<void> {
    const facts = { ...bootstrap.config, settingsRevision: bootstrap.settingsRevision };
    const refused: DeliveryOutcome[] = [];
    for (const component of ["config", "environment"] as const) {
      const { outcome, failure: reason } = results[component];
      if (isInForce(outcome)) continue;
      const rest = { verdict: "rejected", applied: false, news: true, facts, outcome, failure: reason } as const;
      refused.push({ component, ...rest });
    }
    if (refused.length > 0) await this.delivered(identity, refused);
  }

  /** A refused start, shown. Resolves with the time until which it can be corrected. */
  async rejected(identity: SessionIdentity, reason: Failure): Promise<number> {
    const { clock, change, controller, feeds, log } = this.#deps;
    const now = clock.now();
    const text = failureText(reason);
    const message = `the configuration is refused: ${text}`;
    const changeId = (await this.#configurationId(identity.sandboxId)) ?? "";
    let deadline = now + REPAIR_WINDOW_MS;
    await change(identity, (record) => {
      if (!wantsToRun(record.status.phase) || restartPending(record.status)) return undefined;
      const facts = { type: "ConfigurationReady", status: "False", reason: "ConfigurationInvalid", message } as const;
      const status = withCondition(record.status, facts, now);
      const ready = withPhase(status, record.status.phase, "ConfigurationInvalid", message, now);
      const attempt = identity.generation.toString();
      const before = record.status.provisioning;
      const again = before?.attemptId === attempt && before.configurationChangeId === changeId;
      const known = again ? before.deadline : undefined;
      deadline = known === undefined ? now + REPAIR_WINDOW_MS : timestampMs(known);
      ready.provisioning = create(SandboxProvisioningSchema, {
        attemptId: attempt,
        configurationChangeId: changeId,
        firstRejectionTime: (again ? before.firstRejectionTime : undefined) ?? toTimestamp(now),
        deadline: toTimestamp(deadline),
      });
      ready.configurationAdmission = create(SandboxConfigurationAdmissionSchema, {
        instanceId: identity.instanceId,
        state: ConfigurationAdmissionState.REJECTED,
        error: text,
      });
      return { patch: { status: ready } };
    });
    // The window for a correction is another than that of a start.
    controller().pauseProvisioning(identity.sandboxId);
    log.warn({ [LogField.sandboxId]: identity.sandboxId, [LogField.code]: reason.code }, message);
    feeds.of(identity.sandboxId).addEvent({ type: "Warning", reason: "ConfigurationInvalid", message }, now);
    return deadline;
  }

  /** The start ends; the sandbox says why. */
  async startFailed(identity: SessionIdentity, reason: Failure): Promise<void> {
    const late = reason.code === "configuration_deadline";
    const { sandboxId, generation } = identity;
    await this.#deps
      .controller()
      .fail(sandboxId, generation, late ? "ProvisioningTimedOut" : "StartFailed", failureText(reason));
  }

  /** The durable part of a live delivery: what became of one component, or of both at one moment. */
  async delivered(identity: SessionIdentity, outcomes: readonly DeliveryOutcome[]): Promise<void> {
    const { store, clock, operations, change } = this.#deps;
    const { sandboxId } = identity;
    const now = clock.now();
    const told = outcomes.map((outcome) => ({ ...outcome, error: errorOf(outcome) }));
    const config = told.find(({ component }) => component === "config");
    const decision = config && (await operations.decide(sandboxId, config, now));
    const policy =
      config !== undefined && judgesPolicy(config)
        ? [
            store.policies.setStatus(
              sandboxId,
              config.facts.policyVersion,
              config.applied ? "loaded" : "failed",
              now,
              config.error,
            ),
          ]
        : [];
    await change(identity, ({ status: current }) => {
      const news = told.filter((outcome) => !saysSo(current, outcome));
      if (news.length === 0) return undefined;
      const status = news.reduce((shown, outcome) => withDelivered(shown, outcome, now), current);
      return { patch: { status }, also: [...policy, ...(decision?.commands ?? [])] };
    });
    if (decision !== undefined) operations.tell(decision);
    for (const outcome of told) this.#show(identity, outcome, now);
  }

  /** A change cannot be delivered for now: told once, not at each attempt. */
  delayed(identity: SessionIdentity, error: unknown, first: boolean): void {
    const { clock, feeds, log } = this.#deps;
    const { sandboxId } = identity;
    const component = undeliverable(error);
    if (component !== undefined) this.#undeliverable(identity, component, describeError(error));
    const message = `a change of the configuration cannot be delivered yet: ${describeError(error)}`;
    log.warn({ [LogField.sandboxId]: sandboxId, err: error }, message);
    if (first) feeds.of(sandboxId).addEvent({ type: "Warning", reason: "ConfigurationDelayed", message }, clock.now());
  }

  /** Nobody's retry will change it: the sandbox says why it does not have what is wanted. */
  #undeliverable(identity: SessionIdentity, component: ComponentName, message: string): void {
    const now = this.#deps.clock.now();
    const facts = { status: "False", reason: "Undeliverable", message } as const;
    const type = CURRENT[component];
    this.#deps
      .change(identity, ({ status }) => {
        const shown = status.conditions.find((condition) => condition.type === type);
        if (shown?.reason === facts.reason && shown.message === message) return undefined;
        return { patch: { status: withOutcome(status, component, facts, now) } };
      })
      .catch((error: unknown) => {
        this.#deps.log.warn({ [LogField.sandboxId]: identity.sandboxId, err: error }, "cannot show a condition");
      });
  }

  #show({ sandboxId }: SessionIdentity, outcome: ToldOutcome, now: number): void {
    const { feeds, log } = this.#deps;
    const { applied, component, facts, error } = outcome;
    const policy =
      facts.policySource === "global"
        ? `policy version ${facts.globalPolicyVersion} of the gateway`
        : `policy version ${facts.policyVersion}`;
    const what = component === "config" ? policy : "new provider credentials";
    const fields = {
      [LogField.sandboxId]: sandboxId,
      component,
      outcome: ConfigApplyOutcome[outcome.outcome],
      policy_version: facts.policyVersion,
    };
    const feed = feeds.of(sandboxId);
    if (!applied) {
      const message = `the supervisor refused a change of the ${component}: ${error}`;
      log.warn(fields, message);
      feed.addEvent({ type: "Warning", reason: "ConfigurationRefused", message }, now);
    } else if (outcome.outcome === ConfigApplyOutcome.DEGRADED && outcome.news) {
      const message = `${what} is in force, but only in part: ${failureText(outcome.failure)}`;
      log.warn(fields, message);
      feed.addEvent({ type: "Warning", reason: "ConfigurationDegraded", message }, now);
    } else if (outcome.news) {
      const message = `${what} ${component === "config" ? "is" : "are"} in force`;
      feed.addEvent({ type: "Normal", reason: "ConfigurationApplied", message }, now);
    }
  }

  /** What a repaired configuration differs in. */
  async #configurationId(sandboxId: string): Promise<string | undefined> {
    try {
      return (await captureSnapshot(this.#deps, sandboxId))?.snapshot.config.configRevision;
    } catch (error) {
      // It is only read to tell one from another.
      if (error instanceof RuntimeError) return undefined;
      throw error;
    }
  }
}

/**
 * The status with what became of one component: shown from its first trouble on, and as over when it is. Always a copy.
 */
function withOutcome(
  status: SandboxStatus,
  component: ComponentName,
  facts: Pick<ConditionFacts, "status" | "reason" | "message">,
  now: number,
): SandboxStatus {
  const type = CURRENT[component];
  const shown = status.conditions.some((condition) => condition.type === type);
  if (facts.status === "True" && !shown) return copyOf(status);
  return withCondition(status, { type, ...facts }, now);
}

/** A copy whose own fields, and those of its parts that an outcome changes, can be set. */
function copyOf(status: SandboxStatus): SandboxStatus {
  const { configurationAdmission, provisioning } = status;
  return {
    ...status,
    conditions: [...status.conditions],
    ...(configurationAdmission === undefined ? {} : { configurationAdmission: { ...configurationAdmission } }),
    ...(provisioning === undefined ? {} : { provisioning: { ...provisioning } }),
  };
}

function inForce(
  degraded: boolean,
  reason: Failure | undefined,
): Pick<ConditionFacts, "status" | "reason" | "message"> {
  return degraded
    ? { status: "False", reason: "Degraded", message: `in force only in part: ${failureText(reason)}` }
    : { status: "True", reason: "Applied", message: "" };
}

const REFUSALS: Partial<Record<ConfigApplyOutcome, string>> = {
  [ConfigApplyOutcome.FAILED_CLOSED]: "RefusedAndClosed",
  [ConfigApplyOutcome.FAILED_RETAINED_LAST_KNOWN_GOOD]: "RefusedFormerKept",
};

function noReason({ outcome }: DeliveryOutcome): Failure {
  return failure("configuration_rejected", `the supervisor answered ${ConfigApplyOutcome[outcome] ?? outcome}`);
}

/** Why it is not in force, in one line; empty when it is. */
function errorOf(outcome: DeliveryOutcome): string {
  return outcome.applied ? "" : failureText(outcome.failure ?? noReason(outcome));
}

/** Whether the outcome of a configuration says something about the sandbox's own policy in it; a stale one does not. */
function judgesPolicy({ facts, applied, outcome }: DeliveryOutcome): boolean {
  if (facts.policyVersion === 0 || facts.policySource === "global") return false;
  return applied || outcome !== ConfigApplyOutcome.IGNORED_STALE;
}

/** The status with what became of a component that was delivered. Always a copy. */
function withDelivered(current: SandboxStatus, outcome: ToldOutcome, now: number): SandboxStatus {
  const { component, applied, facts, error } = outcome;
  const refused = REFUSALS[outcome.outcome] ?? "Refused";
  const condition = applied
    ? inForce(outcome.outcome === ConfigApplyOutcome.DEGRADED, outcome.failure)
    : ({ status: "False", reason: refused, message: error } as const);
  const status = withOutcome(current, component, condition, now);
  if (!applied) return status;
  const admission = status.configurationAdmission;
  if (component === "environment") {
    if (admission !== undefined) admission.providerEnvRevision = revisionNumber(facts.providerRevision);
    return status;
  }
  if (admission !== undefined) {
    admission.policyVersion = facts.policyVersion;
    admission.policyHash = facts.policyHash;
    admission.configRevision = revisionNumber(facts.configRevision);
  }
  if (facts.policySource !== "global") status.currentPolicyVersion = facts.policyVersion;
  return status;
}

/** Whether this is an environment that was in force before, and the status shows it so, and never any trouble with one. */
function saysSo(
  { conditions, configurationAdmission }: SandboxStatus,
  { component, applied, news, facts, outcome }: DeliveryOutcome,
): boolean {
  return (
    component === "environment" &&
    applied &&
    !news &&
    outcome !== ConfigApplyOutcome.DEGRADED &&
    configurationAdmission?.providerEnvRevision === revisionNumber(facts.providerRevision) &&
    !conditions.some(({ type }) => type === CURRENT.environment)
  );
}

function admissionOf(identity: SessionIdentity, { config, environment }: Bootstrap) {
  return create(SandboxConfigurationAdmissionSchema, {
    instanceId: identity.instanceId,
    state: ConfigurationAdmissionState.ACCEPTED,
    policyVersion: config.policyVersion,
    policyHash: config.policyHash,
    configRevision: revisionNumber(config.configRevision),
    providerEnvRevision: revisionNumber(environment.providerRevision),
  });
}

function unusable(reason: Failure): UnusableCandidate {
  const text = `the policy in the image is invalid: ${failureText({ ...reason, next: "" })}`;
  const next = "Give the sandbox a policy with `openshell policy set`, or fix the image";
  return { source: "invalid", reason: failure("image_policy_invalid", text, { next }) };
}

/** Who gets a credential is its owner's decision: an image could send every attached one to its author. */
function credentialBinding({ networkPolicies }: SandboxPolicy): Failure | undefined {
  for (const [key, { endpoints }] of Object.entries(networkPolicies)) {
    const bound = endpoints.find(({ credentialBinding }) => credentialBinding !== undefined);
    if (bound === undefined) continue;
    const text = `network_policies.${key} gives credentials to ${bound.host}, which only a policy of the sandbox's owner may`;
    return failure("image_policy_invalid", text);
  }
  return undefined;
}

function isTrouble({ type, status }: SandboxStatus["conditions"][number]): boolean {
  return status === "False" && (type === CURRENT.config || type === CURRENT.environment);
}

function sameAdmission(status: SandboxStatus, wanted: ReturnType<typeof admissionOf>): boolean {
  const has = status.configurationAdmission;
  return (
    has !== undefined &&
    has.state === wanted.state &&
    has.instanceId === wanted.instanceId &&
    has.policyVersion === wanted.policyVersion &&
    has.configRevision === wanted.configRevision &&
    has.providerEnvRevision === wanted.providerEnvRevision
  );
}
