import { createHash } from "node:crypto";
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

/**
 * The policy without the marks that only the gateway may set; authors' values of them are ignored. What has none is shared with it.
 */
export function withoutGatewayMarks(policy: SandboxPolicy): SandboxPolicy {
  const unmarked = Object.entries(policy.networkPolicies).map(([key, rule]) => {
    const endpoints = rule.endpoints.map((endpoint) => ({ ...endpoint, ...NO_MARKS }));
    return [key, { ...rule, endpoints }] as const;
  });
  return { ...policy, networkPolicies: Object.fromEntries(unmarked) };
}

const NO_MARKS = { providerCredentialed: false, advisorProposed: false, tokenGrantOwner: "" };
