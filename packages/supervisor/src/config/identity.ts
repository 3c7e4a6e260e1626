import type {
  ProviderEnvironment,
  SandboxConfig,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";

/** What pairs a configuration with a provider environment. Opaque: equality only, never order. */
export interface PairIdentity {
  readonly attachmentEpoch: string;
  readonly providerRevision: string;
  /** Empty where no policy took part. */
  readonly policyHash: string;
}

export function identityOf(component: SandboxConfig | ProviderEnvironment): PairIdentity {
  const { attachmentEpoch, providerRevision, policyHash } = component;
  return { attachmentEpoch, providerRevision, policyHash };
}

/** The hash of the policy counts only where both name one: an environment without bindings is of no policy. */
export function pairs(a: PairIdentity, b: PairIdentity): boolean {
  return (
    a.attachmentEpoch === b.attachmentEpoch &&
    a.providerRevision === b.providerRevision &&
    (a.policyHash === b.policyHash || a.policyHash === "" || b.policyHash === "")
  );
}
