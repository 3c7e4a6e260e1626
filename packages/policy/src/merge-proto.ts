/** Merge operations from the wire, with the same care as policies: what this release does not know is refused. */
import type { L7RuleTarget, PolicyMergeOperation } from "@openshell/api/generated/openshell_pb.js";
import { Report } from "./fields.ts";
import type { MergeOperation, RuleTarget } from "./merge.ts";
import { refuseUnknown, requestRuleFrom, ruleFrom } from "./proto.ts";
import { indexPath, keyPath, type Violation } from "./violation.ts";

/** Operations of one request; each costs a pass over the policy. */
export const MAX_MERGE_OPERATIONS = 256;

export type MergeOperationsResult =
  | { readonly ok: true; readonly operations: readonly MergeOperation[] }
  | { readonly ok: false; readonly violations: readonly Violation[] };

/** Reads operations; paths of violations begin with `merge_operations[N]`. */
export function mergeOperationsFromProto(messages: readonly PolicyMergeOperation[]): MergeOperationsResult {
  const report = new Report();
  const field = "merge_operations";
  if (messages.length > MAX_MERGE_OPERATIONS) {
    const message = `at most ${MAX_MERGE_OPERATIONS} operations, got ${messages.length}`;
    report.add(field, "too_many_operations", message, "Send the complete policy");
    return { ok: false, violations: report.violations };
  }
  const operations = messages.flatMap(
    (message, index) => operationFrom(message, indexPath(field, index), report) ?? [],
  );
  return report.violations.length > 0 ? { ok: false, violations: report.violations } : { ok: true, operations };
}

function operationFrom(message: PolicyMergeOperation, at: string, report: Report): MergeOperation | undefined {
  refuseUnknown(message, at, report);
  const { operation } = message;
  if (operation.value !== undefined) refuseUnknown(operation.value, at, report);
  switch (operation.case) {
    case "addRule": {
      const { ruleName: rule, rule: content } = operation.value;
      const path = `${at}.add_rule.rule`;
      if (content === undefined) {
        report.add(path, "missing_key", "the rule is missing", "Give a rule with an endpoint");
        return undefined;
      }
      return { kind: "add_rule", rule, content: ruleFrom(rule, content, report, path) };
    }
    case "removeEndpoint": {
      const { ruleName: rule, host, port } = operation.value;
      return { kind: "remove_endpoint", rule, host, port };
    }
    case "removeRule":
      return { kind: "remove_rule", rule: operation.value.ruleName };
    case "removeBinary":
      return { kind: "remove_binary", rule: operation.value.ruleName, path: operation.value.binaryPath };
    case "addAllowRules": {
      const path = keyPath(at, "add_allow_rules");
      const target = targetFrom(operation.value.target, path, report);
      const rules = operation.value.rules.map((rule, index) => {
        const place = indexPath(`${path}.rules`, index);
        refuseUnknown(rule, place, report);
        if (rule.allow === undefined) report.add(place, "missing_key", "missing field 'allow'", "Set allow");
        return requestRuleFrom(rule.allow, place, report);
      });
      return target === undefined ? undefined : { kind: "add_allow_rules", target, rules };
    }
    case "addDenyRules": {
      const path = keyPath(at, "add_deny_rules");
      const target = targetFrom(operation.value.target, path, report);
      const rules = operation.value.denyRules.map((rule, index) =>
        requestRuleFrom(rule, indexPath(`${path}.deny_rules`, index), report),
      );
      return target === undefined ? undefined : { kind: "add_deny_rules", target, rules };
    }
    default:
      report.add(at, "missing_key", "the operation is empty", "Set one of the operations");
      return undefined;
  }
}

function targetFrom(message: L7RuleTarget | undefined, at: string, report: Report): RuleTarget | undefined {
  const path = keyPath(at, "target");
  if (message === undefined) {
    report.add(path, "missing_key", "the target is missing", "Name rule, host, ports and executables");
    return undefined;
  }
  refuseUnknown(message, path, report);
  for (const binary of message.binaries) refuseUnknown(binary, path, report);
  if (message.anyBinary === message.binaries.length > 0) {
    report.add(path, "invalid_value", "exactly one of binaries and any_binary must be set", "Set one of them");
  }
  return {
    rule: message.ruleName,
    host: message.host,
    ports: message.ports,
    path: message.path,
    binaries: message.anyBinary ? "any" : message.binaries.map((binary) => binary.path),
  };
}
