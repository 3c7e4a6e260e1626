/**
 * The identity of a policy: 64 hex digits, equal for equal policies whatever their spelling or key order, different when
 * anything that could decide differs. Opaque to clients, who only compare it.
 */
import { canonicalBytes } from "@openshell/api/canonical.ts";
import { SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import type { Policy } from "./model.ts";
import { policyToProto } from "./proto.ts";
import { sha256Hex } from "./sha256.ts";

export function policyHash(policy: Policy): string {
  return sha256Hex(canonicalBytes(SandboxPolicySchema, policyToProto(policy)));
}
