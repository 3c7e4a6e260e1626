import { fromJson, type JsonValue } from "@bufbuild/protobuf";
import { PolicyMergeOperationSchema } from "@openshell/api/generated/openshell_pb.js";
import { escapeUntrusted } from "@openshell/base/escape.ts";
import { mergePolicy } from "@openshell/policy/merge.ts";
import { mergeOperationsFromProto } from "@openshell/policy/merge-proto.ts";
import { policyToPlain } from "@openshell/policy/serialize.ts";
import { validatePolicy } from "@openshell/policy/validate.ts";
import { CliError } from "../errors.ts";
import type { Json } from "../transport/unary.ts";
import { violationLine } from "./file.ts";
import { policyOf, policyText } from "./message.ts";
import type { Operation } from "./operations.ts";

/** What the gateway would make of a policy: the same merge and the same checks, without it. Throws CliError. */
export function previewMerge(
  current: Json,
  operations: readonly Operation[],
): { readonly text: string; readonly warnings: readonly string[] } {
  const policy = policyOf(current);
  if (policy === undefined) {
    throw new CliError("the sandbox's policy has content that this version cannot judge", {
      code: "policy_not_understood",
      next: "Compare `openshell status` with `openshell --version`",
    });
  }
  const messages = operations.map(({ message }) => fromJson(PolicyMergeOperationSchema, message as JsonValue));
  const read = mergeOperationsFromProto(messages);
  if (!read.ok) {
    const details = read.violations.map((violation) => violationLine(violation, ""));
    throw new CliError("the change is wrong", { code: "change_invalid", details, next: "Correct the options" });
  }
  const result = mergePolicy(policy, read.operations);
  if (!result.ok) {
    const { operation, message, next } = result.problem;
    throw new CliError(`${operations[operation]!.option}: ${escapeUntrusted(message, 1024)}`, {
      code: "change_invalid",
      next,
    });
  }
  const { violations, warnings } = validatePolicy(result.policy);
  if (violations.length > 0) {
    const details = violations.map((violation) => violationLine(violation, ""));
    throw new CliError("the policy that would result is not valid", {
      code: "change_invalid",
      details,
      next: "Correct the options",
    });
  }
  return {
    text: policyText(policyToPlain(result.policy)),
    warnings: [
      ...result.warnings.map((line) => escapeUntrusted(line, 1024)),
      ...warnings.map((item) => violationLine(item, "")),
    ],
  };
}
