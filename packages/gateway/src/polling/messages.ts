import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type GetSandboxProviderEnvironmentRequest,
  type GetSandboxProviderEnvironmentResponse,
  GetSandboxProviderEnvironmentResponseSchema,
  type ProviderReadinessObservation,
  ProviderReadinessReason as Reason,
  type StaticCredentialBindingSchema,
} from "@openshell/api";
import {
  type ProviderEnvironment,
  type ProviderValue,
  ProviderValue_Classification,
  type ReadinessObservation,
  ReadinessObservationSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { Violations } from "@openshell/api/violations.ts";
import { revisionNumber } from "../delivery/snapshot.ts";
import { failure } from "../sessions/failure.ts";

/**
 * A provider environment in the form of the public API. Credentials that nothing confines are withheld: those without an
 * endpoint, and all of them from a supervisor that cannot confine any. `policyHash`: of the policy that it was made under.
 */
export function environmentMessage(
  environment: ProviderEnvironment,
  policyHash: string,
  request: GetSandboxProviderEnvironmentRequest,
): GetSandboxProviderEnvironmentResponse {
  const isSecret = ({ classification }: ProviderValue): boolean =>
    classification !== ProviderValue_Classification.NON_SECRET;
  const secrets = environment.values.filter(isSecret);
  const usable = secrets.filter(({ endpoints }) => request.supportsStaticCredentialBindings && endpoints.length > 0);
  const open = environment.values.filter((value) => !isSecret(value));
  const given = [...open, ...usable];
  const withheld = request.supportsStaticCredentialBindings
    ? Reason.CREDENTIALS_WITHHELD
    : Reason.UNSUPPORTED_SUPERVISOR;
  const binding = ({
    endpoints,
    credentialIdentity,
  }: ProviderValue): MessageInitShape<typeof StaticCredentialBindingSchema> => ({
    endpoints: endpoints.map(({ host, port, path }) => ({ host, port, path })),
    credentialIdentity,
    workloadCredentialHandle: credentialIdentity,
  });
  return create(GetSandboxProviderEnvironmentResponseSchema, {
    environment: Object.fromEntries(given.map(({ name, value }) => [name, value])),
    providerEnvRevision: revisionNumber(environment.providerRevision),
    credentialExpirationTimes: Object.fromEntries(
      given.flatMap(({ name, expirationTime }) => (expirationTime === undefined ? [] : [[name, expirationTime]])),
    ),
    staticCredentialBindings: Object.fromEntries(usable.map((value) => [value.name, binding(value)])),
    nonSecretEnvironmentKeys: open.map(({ name }) => name),
    providerAttachmentEpoch: environment.attachmentEpoch,
    policyHash,
    readinessReason: usable.length === secrets.length ? Reason.UNSPECIFIED : withheld,
    stablePlaceholderEnvironmentKeys: request.supportsStablePlaceholderEnvironmentKeys
      ? usable.map(({ name }) => name)
      : [],
    supportsStablePlaceholderEnvironmentKeys: true,
  });
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const HASH = /^[0-9a-f]{0,128}$/;

/** What is wrong with the form of an observation. */
export function checkObservation(observation: ProviderReadinessObservation): Violations {
  const found = new Violations();
  const at = (field: string): string => `observation.${field}`;
  found.require(UUID.test(observation.sessionId), at("session_id"), "must be a UUID in lower case");
  found.require(observation.sequence > 0n, at("sequence"), "must be at least 1");
  const { attachmentEpoch, processInstanceId } = observation;
  found.require(
    attachmentEpoch === "" || UUID.test(attachmentEpoch),
    at("attachment_epoch"),
    "must be a UUID or empty",
  );
  found.require(HASH.test(observation.policyHash), at("policy_hash"), "must be at most 128 hexadecimal digits");
  found.require(
    processInstanceId === "" || UUID.test(processInstanceId),
    at("process_instance_id"),
    "must be a UUID or empty",
  );
  found.require(Reason[observation.reason] !== undefined, at("reason"), "must be a known reason");
  return found;
}

/** Reasons that say that something failed, and not only that it is awaited. */
const FAILURES: Partial<Record<Reason, Parameters<typeof failure>>> = {
  [Reason.CREDENTIAL_INSTALL_FAILED]: ["provider_environment_unavailable", "the credentials could not be installed"],
  [Reason.POLICY_ACTIVATION_FAILED]: ["invalid_policy", "the policy could not be activated"],
  [Reason.PROCESS_INSTALL_FAILED]: ["internal", "the environment of new processes could not be changed"],
  [Reason.LOCAL_POLICY]: ["configuration_rejected", "a local policy is in force"],
};

/** An observation of the public API as sessions carry it. */
export function internalObservation(observation: ProviderReadinessObservation): ReadinessObservation {
  const { sessionId, sequence, attachmentEpoch, policyHash, processInstanceId } = observation;
  const { credentialsInstalled, policyActive, launchEnvironmentInstalled } = observation;
  const reason = FAILURES[observation.reason];
  return create(ReadinessObservationSchema, {
    sessionId,
    sequence,
    attachmentEpoch,
    policyHash,
    processInstanceId,
    credentialsInstalled,
    policyActive,
    launchEnvironmentInstalled,
    providerRevision: opaque(observation.providerEnvRevision),
    configRevision: opaque(observation.configRevision),
    ...(reason === undefined ? {} : { failure: failure(...reason) }),
  });
}

/** The opposite of `revisionNumber`, as far as that goes. */
function opaque(revision: bigint): string {
  return revision === 0n ? "" : revision.toString(16).padStart(16, "0");
}
