import type { SandboxPolicy } from "@openshell/api";
import { type ApiError, failedPrecondition, invalidArgument } from "@openshell/api/errors.ts";
import { AMBIGUITY_CODE, type Policy, policyFromProto, type Violation } from "@openshell/policy";
import { withoutGatewayMarks } from "./rules.ts";

/**
 * Checks a policy as it would be in force for a sandbox with these providers, and returns what is to be stored: the same
 * policy without marks that only the gateway may set.
 *
 * @throws ApiError INVALID_ARGUMENT with every violation, FAILED_PRECONDITION for contradictions and for credentials that
 * could not be used safely.
 */
export function checkedPolicy(proposed: SandboxPolicy, providers: readonly string[], field = "policy"): SandboxPolicy {
  const policy = withoutGatewayMarks(proposed);
  policy.version = 1;
  const result = policyFromProto(policy);
  if (!result.ok) throw violationError(result.violations, field);
  const problem = credentialProblem(result.policy, providers);
  if (problem !== undefined) throw failedPrecondition(problem.message, { next: problem.next });
  return policy;
}

function violationError(violations: readonly Violation[], field: string): ApiError {
  const ambiguous = violations.filter(({ code }) => code === AMBIGUITY_CODE);
  const wrong = violations.filter(({ code }) => code !== AMBIGUITY_CODE);
  if (wrong.length > 0) {
    return invalidArgument(
      wrong.map(({ path, message, next }) => ({
        field: path === "" ? field : `${field}.${protoPath(path)}`,
        description: next === "" ? message : `${message}. ${next}`,
      })),
    );
  }
  const [first] = ambiguous;
  return failedPrecondition(first?.message ?? "the policy contradicts itself", { next: first?.next ?? "" });
}

/** The policy package speaks of files, where one section has another name than on the wire. */
function protoPath(path: string): string {
  return path.replace(/^filesystem_policy(?![^.[])/, "filesystem");
}

/** A credential must be attached, and inspected on its way unless the policy accepts otherwise in so many words. */
function credentialProblem(
  policy: Policy,
  providers: readonly string[],
): { message: string; next: string } | undefined {
  for (const [key, rule] of policy.networkPolicies) {
    for (const endpoint of rule.endpoints) {
      const provider = endpoint.credentialProvider;
      if (provider === "") continue;
      const where = `network policy '${key}', endpoint ${endpoint.host}:${endpoint.ports.join(",")}`;
      if (!providers.includes(provider)) {
        return {
          message: `${where}: credential_binding names provider '${provider}', which is not attached to the sandbox`,
          next: "Name an attached provider, or create the sandbox with this one",
        };
      }
      const inspected = endpoint.tls !== "skip" && endpoint.protocol !== "" && endpoint.protocol !== "tcp";
      if (!inspected && !endpoint.allowUninspectedCredentials) {
        return {
          message: `${where}: credentials of '${provider}' would pass without inspection`,
          next: "Give the endpoint a protocol such as rest, or set allow_uninspected_credentials",
        };
      }
    }
  }
  return undefined;
}
