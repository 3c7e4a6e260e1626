import { createHash } from "node:crypto";
import { clone } from "@bufbuild/protobuf";
import { type SandboxPolicy, SandboxPolicySchema } from "@openshell/api";
import { canonicalBytes } from "@openshell/api/canonical.ts";

/** Rule keys that only the gateway may make. */
export const RESERVED_RULE_PREFIX = "_provider_";
/** Encoded bytes of one policy. */
export const MAX_POLICY_BYTES = 256 * 1024;

/** Identity of a policy: equal for equal policies whatever the order of their maps. Hexadecimal SHA-256. */
export function policyHash(policy: SandboxPolicy): string {
  return createHash("sha256").update(canonicalBytes(SandboxPolicySchema, policy)).digest("hex");
}

/** A copy without the marks that only the gateway may set; authors' values of them are ignored. */
export function withoutGatewayMarks(policy: SandboxPolicy): SandboxPolicy {
  const copy = clone(SandboxPolicySchema, policy);
  for (const rule of Object.values(copy.networkPolicies)) {
    for (const endpoint of rule.endpoints) {
      endpoint.providerCredentialed = false;
      endpoint.advisorProposed = false;
      endpoint.tokenGrantOwner = "";
    }
  }
  return copy;
}
