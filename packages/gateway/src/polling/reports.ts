import { clone, create } from "@bufbuild/protobuf";
import {
  PolicyStatus,
  type ReportPolicyStatusRequest,
  type ReportSandboxConfigurationRequest,
  type SandboxConfigurationAdmission,
  SandboxConfigurationAdmissionSchema,
  SandboxStatusSchema,
  ConfigurationAdmissionState as State,
} from "@openshell/api";
import { failedPrecondition, invalidField, notFound, throwIfInvalid } from "@openshell/api/errors.ts";
import { ConfigApplyOutcome } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { Violations } from "@openshell/api/violations.ts";
import { escapeUntrusted } from "@openshell/base";
import type { SandboxFeeds } from "../compute/sandbox-feed.ts";
import type { ComponentName, DeliveryOutcome } from "../delivery/delivery.ts";
import type { ConfigOperations } from "../delivery/operations.ts";
import { revisionNumber, type Snapshot, type SnapshotDeps } from "../delivery/snapshot.ts";
import { failure } from "../sessions/failure.ts";
import { MAX_FAILURE_TEXT } from "../sessions/limits.ts";
import type { SupervisorSession } from "../sessions/session.ts";
import type { SandboxRecord } from "../store/types.ts";

export interface ReportDeps extends SnapshotDeps {
  readonly feeds: SandboxFeeds;
  readonly operations: ConfigOperations;
  /** Stores what became of a component, and tells of it. */
  readonly recordDelivery: (session: SupervisorSession, outcomes: readonly DeliveryOutcome[]) => Promise<void>;
}

/**
 * What supervisors that poll report of a configuration, stored as the answers of those that are pushed to are. A report of
 * what is stored already changes nothing and is told to nobody.
 */
export class PollingReports {
  readonly #deps: ReportDeps;
  /** What a session refused last: told once, not at each poll. */
  readonly #refused = new WeakMap<SupervisorSession, string>();

  constructor(deps: ReportDeps) {
    this.#deps = deps;
  }

  /** Whether a revision of the policy was loaded. Says nothing about settings and credentials that came with it. */
  async policyStatus(session: SupervisorSession, request: ReportPolicyStatusRequest): Promise<void> {
    const { store, clock, operations, feeds } = this.#deps;
    const { sandboxId, generation } = session;
    const { version, status } = request;
    if (version < 1) throw invalidField("version", "must be at least 1");
    const loaded = status === PolicyStatus.LOADED;
    if (!loaded && status !== PolicyStatus.FAILED) throw invalidField("status", "must be LOADED or FAILED");
    const [revision, latest] = await Promise.all([
      store.policies.get(sandboxId, version),
      store.policies.latest(sandboxId),
    ]);
    if (revision === undefined) throw notFound("policy revision", String(version));
    const error = loaded ? "" : bounded(request.loadError);
    // A newer revision came meanwhile, or nothing is new.
    if (revision.version !== latest?.version) return;
    if (revision.status === (loaded ? "loaded" : "failed") && revision.loadError === error) return;
    const facts = {
      policyVersion: version,
      policyHash: revision.hash,
      policySource: "sandbox",
      settingsRevision: 0n,
      globalPolicyVersion: 0,
      configRevision: "",
      providerRevision: "",
      attachmentEpoch: "",
    };
    const now = clock.now();
    const outcome = loaded ? ConfigApplyOutcome.APPLIED : ConfigApplyOutcome.FAILED_RETAINED_LAST_KNOWN_GOOD;
    const decision = await operations.decide(sandboxId, { facts, applied: loaded, outcome, error }, now);
    const changed = await store.modifySandbox(sandboxId, (current) => {
      if (current.generation !== generation) return undefined;
      const next = clone(SandboxStatusSchema, current.status);
      if (loaded) next.currentPolicyVersion = version;
      const name = loaded ? "loaded" : "failed";
      const also = [store.policies.setStatus(sandboxId, version, name, now, error), ...decision.commands];
      return { patch: { status: next }, also };
    });
    if (changed.generation !== generation) return;
    operations.tell(decision);
    const feed = feeds.of(sandboxId);
    feed.changed();
    const what = `policy version ${version}`;
    if (loaded) feed.addEvent({ type: "Normal", reason: "ConfigurationApplied", message: `${what} is in force` }, now);
    else
      feed.addEvent({ type: "Warning", reason: "ConfigurationRefused", message: `${what} was refused: ${error}` }, now);
  }

  /** A registration of an instance, or its judgement on exactly the configuration that it is served now. */
  async configuration(
    session: SupervisorSession,
    { admission, expectedInstanceId }: ReportSandboxConfigurationRequest,
    { record, snapshot }: { readonly record: SandboxRecord; readonly snapshot: Snapshot },
  ): Promise<void> {
    if (admission === undefined) throw invalidField("admission", "must be set");
    const found = new Violations();
    const states = [State.PENDING, State.ACCEPTED, State.REJECTED];
    found.require(states.includes(admission.state), "admission.state", "must be PENDING, ACCEPTED or REJECTED");
    found.require(admission.instanceId !== "", "admission.instance_id", "must not be empty");
    throwIfInvalid(found);
    if (admission.instanceId !== session.instanceId) {
      throw failedPrecondition("the instance is not that of the session", {
        next: "Report as the instance of the hello",
      });
    }
    if (admission.state === State.PENDING) await this.#register(session, expectedInstanceId);
    else await this.#judge(session, admission, record, snapshot);
  }

  /** @throws ApiError FAILED_PRECONDITION when another instance than the expected one is registered. */
  async #register({ sandboxId, generation, instanceId }: SupervisorSession, expected: string): Promise<void> {
    const { store, feeds } = this.#deps;
    let conflict = false;
    await store.modifySandbox(sandboxId, (current) => {
      const registered = current.status.configurationAdmission?.instanceId ?? "";
      conflict = current.generation !== generation || (registered !== instanceId && registered !== expected);
      if (conflict || registered === instanceId) return undefined;
      const status = clone(SandboxStatusSchema, current.status);
      const state = State.PENDING;
      status.configurationAdmission = create(SandboxConfigurationAdmissionSchema, { instanceId, state });
      return { patch: { status } };
    });
    if (conflict) {
      throw failedPrecondition("another instance is registered than was expected", {
        next: "Read the configuration again",
      });
    }
    feeds.of(sandboxId).changed();
  }

  async #judge(
    session: SupervisorSession,
    admission: SandboxConfigurationAdmission,
    record: SandboxRecord,
    { config, providerRevision, settingsRevision }: Snapshot,
  ): Promise<void> {
    const revision = revisionNumber(config.configRevision);
    const environment = revisionNumber(providerRevision);
    const served =
      admission.policyVersion === config.policyVersion &&
      admission.policyHash === config.policyHash &&
      admission.configRevision === revision &&
      admission.providerEnvRevision === environment;
    if (!served) {
      const next = "Read the configuration again, and report on that";
      throw failedPrecondition("the report is not about the configuration that is served now", { next });
    }
    const applied = admission.state === State.ACCEPTED;
    const error = applied ? "" : bounded(admission.error);
    const key = applied ? "" : `${config.configRevision} ${providerRevision} ${error}`;
    const before = this.#refused.get(session) ?? "";
    const stored = record.status.configurationAdmission;
    const same = (name: ComponentName): boolean =>
      name === "config" ? stored?.configRevision === revision : stored?.providerEnvRevision === environment;
    if (
      applied
        ? before === "" && same("config") && same("environment") && stored?.state === State.ACCEPTED
        : before === key
    )
      return;
    const facts = { ...config, settingsRevision };
    // What was refused is one judgement on both; the policy is what carries it.
    const judged: readonly ComponentName[] = applied ? ["config", "environment"] : ["config"];
    await this.#deps.recordDelivery(
      session,
      judged.map((component) => ({
        component,
        verdict: applied ? "acknowledged" : "rejected",
        applied,
        news: !same(component),
        facts,
        outcome: applied ? ConfigApplyOutcome.APPLIED : ConfigApplyOutcome.FAILED_RETAINED_LAST_KNOWN_GOOD,
        failure: applied ? undefined : failure("configuration_rejected", error),
      })),
    );
    if (applied) await this.#accepted(session);
    this.#refused.set(session, key);
  }

  /** A registration that waited is judged now. */
  async #accepted({ sandboxId, generation, instanceId }: SupervisorSession): Promise<void> {
    const { store, feeds } = this.#deps;
    await store.modifySandbox(sandboxId, (current) => {
      const admission = current.status.configurationAdmission;
      const waits = admission?.instanceId === instanceId && admission.state !== State.ACCEPTED;
      if (current.generation !== generation || !waits) return undefined;
      const status = clone(SandboxStatusSchema, current.status);
      status.configurationAdmission!.state = State.ACCEPTED;
      return { patch: { status } };
    });
    feeds.of(sandboxId).changed();
  }
}

/** A text of a supervisor as one line that is safe to store. */
function bounded(text: string): string {
  return text === "" ? "no reason was given" : escapeUntrusted(text, MAX_FAILURE_TEXT);
}
