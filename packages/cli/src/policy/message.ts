import { fromJson, type JsonValue, toJson } from "@bufbuild/protobuf";
import { type SandboxPolicy, SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import type { Policy } from "@openshell/policy/model.ts";
import { policyFromProto } from "@openshell/policy/proto.ts";
import { type PlainPolicy, policyToPlain } from "@openshell/policy/serialize.ts";
import { stringify } from "yaml";
import type { Json } from "../transport/unary.ts";

/** A policy of an answer as plain data with the names of policy files. Content that this version does not know is kept, in the names of the wire. */
export function plainPolicy(message: Json): PlainPolicy {
  const decoded = decode(message);
  if (decoded === undefined) return message;
  const read = policyFromProto(decoded);
  if (read.ok) return policyToPlain(read.policy);
  return toJson(SandboxPolicySchema, decoded, { useProtoFieldName: true }) as PlainPolicy;
}

/** The policy of an answer as decisions need it; undefined when this version cannot judge it. */
export function policyOf(message: Json): Policy | undefined {
  const decoded = decode(message);
  const read = decoded === undefined ? undefined : policyFromProto(decoded);
  return read?.ok === true ? read.policy : undefined;
}

export function policyText(policy: PlainPolicy): string {
  return stringify(policy, { lineWidth: 0, aliasDuplicateObjects: false });
}

function decode(message: Json): SandboxPolicy | undefined {
  try {
    return fromJson(SandboxPolicySchema, message as JsonValue, { ignoreUnknownFields: true });
  } catch {
    return undefined;
  }
}
