import {
  type ProviderDesiredIdentity,
  ProviderReadinessReason as Reason,
  ProviderReadinessState as State,
} from "@openshell/api";
import type { ReadinessObservation } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { revisionNumber } from "../delivery/snapshot.ts";
import type { Evidence } from "./observations.ts";

/** Everything that decides how far a change of a provider is in force. */
export interface Facts {
  /** The state that the change asked for. */
  readonly desired: ProviderDesiredIdentity | undefined;
  /** The state that is wanted now; undefined when it cannot be told. */
  readonly current: ProviderDesiredIdentity | undefined;
  /** Why the gateway does not deliver the provider's credentials. */
  readonly withheld: "credentials" | "expired" | undefined;
  /** The sandbox is meant to run. */
  readonly running: boolean;
  /** The current session, once its configuration was accepted. */
  readonly session: { readonly sessionId: string; readonly instanceId: string } | undefined;
  readonly evidence: Evidence | undefined;
}

export interface Readiness {
  readonly state: State;
  readonly reason: Reason;
}

const FAILURES: Readonly<Record<string, Reason>> = {
  invalid_provider_environment: Reason.CREDENTIAL_INSTALL_FAILED,
  provider_environment_unavailable: Reason.CREDENTIAL_INSTALL_FAILED,
  invalid_policy: Reason.POLICY_ACTIVATION_FAILED,
  policy_missing: Reason.POLICY_ACTIVATION_FAILED,
  configuration_rejected: Reason.POLICY_ACTIVATION_FAILED,
};

/**
 * How far a change is in force. The first that applies, in this order: nothing to compare with, replaced by a later change,
 * withheld, failed, nobody connected, another instance's or old evidence, another identity, and what is missing of the
 * three parts. Pure.
 */
export function evaluate(facts: Facts): Readiness {
  const { desired, current, withheld, session, evidence } = facts;
  const of = (state: State, reason: Reason): Readiness => ({ state, reason });
  if (desired === undefined) return of(State.FAILED, Reason.SNAPSHOT_MISMATCH);
  if (current !== undefined && !sameIdentity(desired, current))
    return of(State.SUPERSEDED, Reason.DESIRED_STATE_CHANGED);
  if (current === undefined) return of(State.FAILED, Reason.SNAPSHOT_MISMATCH);
  if (withheld === "credentials") return of(State.WITHHELD, Reason.CREDENTIALS_WITHHELD);
  if (withheld === "expired") return of(State.WITHHELD, Reason.CREDENTIAL_EXPIRED);
  const fresh = session !== undefined && evidence?.observation.sessionId === session.sessionId && !evidence.expired;
  const failure = fresh ? evidence.observation.failure : undefined;
  if (failure !== undefined) return of(State.FAILED, FAILURES[failure.code] ?? Reason.PROCESS_INSTALL_FAILED);
  if (!facts.running) return of(State.PENDING, Reason.WAITING_FOR_SUPERVISOR);
  if (session === undefined) return of(State.PENDING, Reason.SUPERVISOR_DISCONNECTED);
  if (evidence === undefined || evidence.observation.sessionId !== session.sessionId)
    return of(State.PENDING, Reason.WAITING_FOR_SUPERVISOR);
  if (evidence.instanceId !== session.instanceId) return of(State.PENDING, Reason.WAITING_FOR_SUPERVISOR);
  if (evidence.expired) return of(State.PENDING, Reason.SUPERVISOR_LEASE_EXPIRED);
  return inForce(desired, evidence.observation);
}

function inForce(desired: ProviderDesiredIdentity, observed: ReadinessObservation): Readiness {
  const waiting = (reason: Reason): Readiness => ({ state: State.PENDING, reason });
  const environment =
    observed.attachmentEpoch === desired.attachmentEpoch &&
    revisionNumber(observed.providerRevision) === desired.providerEnvRevision;
  if (!environment || !observed.credentialsInstalled) return waiting(Reason.WAITING_FOR_CREDENTIALS);
  const policy =
    observed.policyHash === desired.policyHash && revisionNumber(observed.configRevision) === desired.configRevision;
  if (!policy || !observed.policyActive) return waiting(Reason.WAITING_FOR_POLICY);
  if (!observed.launchEnvironmentInstalled || observed.processInstanceId === "")
    return waiting(Reason.WAITING_FOR_PROCESS);
  return { state: desired.providerId === "" ? State.REVOKED : State.READY, reason: Reason.UNSPECIFIED };
}

/** Identities are opaque: equal or not. */
export function sameIdentity(a: ProviderDesiredIdentity, b: ProviderDesiredIdentity): boolean {
  return (
    a.sandboxId === b.sandboxId &&
    a.attachmentEpoch === b.attachmentEpoch &&
    a.providerId === b.providerId &&
    a.providerResourceVersion === b.providerResourceVersion &&
    a.providerEnvRevision === b.providerEnvRevision &&
    a.configRevision === b.configRevision &&
    a.policyHash === b.policyHash
  );
}
