import { clone, create } from "@bufbuild/protobuf";
import { FilesystemPolicySchema } from "@openshell/api";
import {
  type ConfigUpdate,
  ProviderValueSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { REFUSED_SERIAL } from "./origin.ts";

/**
 * Makes a component one that its receiver must refuse as a whole, and whose parts would show if they were applied: a policy
 * opens all paths, an environment has values that nobody stored.
 */
export function spoil({ component }: ConfigUpdate): void {
  if (component.case === "providerEnvironment") {
    const { values } = component.value;
    for (const one of values) one.value = one.value.replace(/-[0-9]+-e$/, `-${REFUSED_SERIAL}-e`);
    const [first] = values;
    if (first === undefined) return;
    const further = clone(ProviderValueSchema, first);
    further.name = "not a name";
    values.push(further);
  }
  if (component.case !== "sandboxConfig") return;
  const policy = component.value.policy!;
  policy.filesystem = create(FilesystemPolicySchema, { readWrite: ["/"] });
  for (const { endpoints } of Object.values(policy.networkPolicies))
    for (const { rules } of endpoints) for (const { allow } of rules) if (allow !== undefined) allow.path = "/**";
}
