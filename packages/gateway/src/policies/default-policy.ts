import type { SandboxPolicy } from "@openshell/api";
import { DEFAULT_POLICY, policyToProto } from "@openshell/policy";

/** What holds when nobody gave a policy: restrictive, no network at all. A fresh message each time. */
export function defaultPolicy(): SandboxPolicy {
  return policyToProto(DEFAULT_POLICY);
}
