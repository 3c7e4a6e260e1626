import { create } from "@bufbuild/protobuf";
import type { EffectiveSetting, GetSandboxConfigResponse, GetSandboxProviderEnvironmentResponse } from "@openshell/api";
import { PolicySource } from "@openshell/api";
import {
  ProviderValue_Classification as Classification,
  type ProviderEnvironment,
  ProviderEnvironmentSchema,
  type SandboxConfig,
  SandboxConfigSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";

/** What a session began with. Revisions are opaque text there and numbers here: the same number is the same revision. */
export interface Known {
  readonly config: SandboxConfig;
  readonly environment: ProviderEnvironment;
  /** Names of providers by the identities of their credentials: the public API does not tell them. */
  readonly providers: ReadonlyMap<string, string>;
}

/** A polled configuration as the session's messages carry it. */
export function configUpdate(polled: GetSandboxConfigResponse, { config, environment }: Known) {
  const { policy, version, policyHash, globalPolicyVersion, providerAttachmentEpoch: attachmentEpoch } = polled;
  const value = create(SandboxConfigSchema, {
    configRevision: textOf(polled.configRevision, config.configRevision),
    providerRevision: textOf(polled.providerEnvRevision, environment.providerRevision),
    policyVersion: version,
    policyHash,
    ...(policy === undefined ? {} : { policy }),
    settings: Object.fromEntries(
      Object.entries(polled.settings).flatMap(([key, setting]) => (isSet(setting) ? [[key, text(setting)]] : [])),
    ),
    attachmentEpoch,
    validationFailureMode: polled.policyValidationFailureMode,
    policySource: polled.policySource === PolicySource.GLOBAL ? "global" : "sandbox",
    globalPolicyVersion,
  });
  return { component: { case: "sandboxConfig" as const, value } };
}

/** A polled environment as the session's messages carry it. */
export function environmentUpdate(polled: GetSandboxProviderEnvironmentResponse, { environment, providers }: Known) {
  const open = new Set(polled.nonSecretEnvironmentKeys);
  const values = Object.entries(polled.environment).map(([name, value]) => {
    const binding = polled.staticCredentialBindings[name];
    const credentialIdentity = binding?.credentialIdentity ?? "";
    const expirationTime = polled.credentialExpirationTimes[name];
    return {
      name,
      value,
      classification: open.has(name) ? Classification.NON_SECRET : Classification.STATIC_CREDENTIAL,
      endpoints: (binding?.endpoints ?? []).map(({ host, port, path }) => ({ host, port, path })),
      credentialIdentity,
      ...(expirationTime === undefined ? {} : { expirationTime }),
      provider: providers.get(credentialIdentity) ?? "",
    };
  });
  const value = create(ProviderEnvironmentSchema, {
    providerRevision: textOf(polled.providerEnvRevision, environment.providerRevision),
    attachmentEpoch: polled.providerAttachmentEpoch,
    policyHash: polled.policyHash,
    values,
  });
  return { component: { case: "providerEnvironment" as const, value } };
}

function textOf(revision: bigint, begun: string): string {
  const number = begun === "" ? 0n : BigInt(`0x${begun.slice(0, 16)}`);
  if (revision === number) return begun;
  return revision === 0n ? "" : revision.toString(16).padStart(16, "0");
}

function isSet({ value }: EffectiveSetting): boolean {
  return value?.value.case !== undefined;
}

function text({ value }: EffectiveSetting): string {
  return String(value?.value.value);
}
