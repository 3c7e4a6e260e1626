import { Code } from "@connectrpc/connect";
import type { PolicyMergeOperation, SandboxPolicy } from "@openshell/api";
import { ApiError, failedPrecondition, invalidArgument } from "@openshell/api/errors.ts";
import {
  formatViolation,
  mergeOperationsFromProto,
  mergePolicy,
  policyFromProto,
  policyToProto,
} from "@openshell/policy";

const FIELD = "merge_operations";

/**
 * The stored policy after the operations, all or none, with what is worth telling about them. The result is not checked as a whole.
 *
 * @throws ApiError INVALID_ARGUMENT for an operation that is wrong by itself, FAILED_PRECONDITION for one that this policy does not take.
 */
export function mergedPolicy(
  stored: SandboxPolicy,
  messages: readonly PolicyMergeOperation[],
): { readonly policy: SandboxPolicy; readonly warnings: readonly string[] } {
  const read = mergeOperationsFromProto(messages);
  if (!read.ok) {
    throw invalidArgument(
      read.violations.map(({ path, message, next }) => ({
        field: path,
        description: next === "" ? message : `${message}. ${next}`,
      })),
    );
  }
  const base = policyFromProto(stored);
  if (!base.ok) {
    const [first] = base.violations;
    const why = first === undefined ? "" : `: ${formatViolation({ ...first, next: "" })}`;
    throw failedPrecondition(`the stored policy is not valid in this version${why}`, { next: "Set a complete policy" });
  }
  const result = mergePolicy(base.policy, read.operations);
  if (result.ok) return { policy: policyToProto(result.policy), warnings: result.warnings };
  const { operation, kind, message, next } = result.problem;
  const field = `${FIELD}[${operation}]`;
  if (kind === "invalid") throw invalidArgument([{ field, description: message }], { next });
  throw new ApiError(Code.FailedPrecondition, `${field}: ${message}`, { next });
}
