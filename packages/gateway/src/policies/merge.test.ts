import { create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { type PolicyMergeOperation, PolicyMergeOperationSchema, type SandboxPolicy } from "@openshell/api";
import { type ApiError, readErrorDetails } from "@openshell/api/errors.ts";
import { expect, test } from "vitest";
import { defaultPolicy } from "./default-policy.ts";
import { mergedPolicy } from "./merge.ts";

type Operation = Parameters<typeof create<typeof PolicyMergeOperationSchema>>[1];
const operation = (value: Operation): PolicyMergeOperation => create(PolicyMergeOperationSchema, value);
const endpoint = { host: "api.example.com", ports: [443], protocol: "rest", access: 1, enforcement: 1 };
const addRule = (ruleName: string, more: object = {}) =>
  operation({
    operation: {
      case: "addRule",
      value: { ruleName, rule: { endpoints: [{ ...endpoint, ...more }], binaries: [{ path: "/usr/bin/curl" }] } },
    },
  });

function refusal(stored: SandboxPolicy, ...operations: PolicyMergeOperation[]) {
  try {
    mergedPolicy(stored, operations);
  } catch (error) {
    const { code, rawMessage: message } = error as ApiError;
    return {
      code: Code[code],
      message,
      fields: readErrorDetails(error as ApiError).violations.map(({ field }) => field),
    };
  }
  throw new Error("was accepted");
}

test("a rule is added to what is stored, and everything else stays", () => {
  const stored = defaultPolicy();
  const { policy, warnings } = mergedPolicy(stored, [addRule("api")]);
  expect(policy.filesystem).toEqual(stored.filesystem);
  expect(policy.networkPolicies["api"]).toMatchObject({
    name: "api",
    endpoints: [{ host: "api.example.com", port: 443 }],
  });
  expect(warnings).toEqual([]);
  expect(stored.networkPolicies).toEqual({});
});

test("what is wrong is told with the operation: by itself, or with this policy", () => {
  const stored = mergedPolicy(defaultPolicy(), [addRule("api")]).policy;
  const remove = operation({ operation: { case: "removeRule", value: { ruleName: "none" } } });
  expect(refusal(stored, addRule("x"), remove)).toMatchObject({
    code: "FailedPrecondition",
    message: "merge_operations[1]: there is no rule 'none'. Name one of: api",
  });
  expect(refusal(stored, addRule(""))).toMatchObject({ code: "InvalidArgument", fields: ["merge_operations[0]"] });
  expect(refusal(stored, operation({}))).toMatchObject({ code: "InvalidArgument", fields: ["merge_operations[0]"] });
  expect(refusal(stored, addRule("x", { enforcement: 99 }))).toMatchObject({
    code: "InvalidArgument",
    fields: ["merge_operations[0].add_rule.rule.endpoints[0].enforcement"],
  });
  const target = { ruleName: "api", host: "api.example.com", ports: [443], anyBinary: true };
  const both = { ...target, binaries: [{ path: "/usr/bin/curl" }] };
  const allow = (value: object) =>
    operation({
      operation: { case: "addAllowRules", value: { rules: [{ allow: { method: "POST", path: "/x" } }], ...value } },
    });
  expect(refusal(stored, allow({ target: both })).fields).toEqual(["merge_operations[0].add_allow_rules.target"]);
  expect(refusal(stored, allow({})).fields).toEqual(["merge_operations[0].add_allow_rules.target"]);
  expect(refusal(stored, allow({ target, rules: [{}] })).fields).toEqual([
    "merge_operations[0].add_allow_rules.rules[0]",
  ]);
  expect(refusal(stored, allow({ target })).code).toBe("FailedPrecondition");
  expect(refusal(stored, ...Array.from({ length: 257 }, () => addRule("x"))).fields).toEqual(["merge_operations"]);
});

test("a stored policy that is no longer valid is not built upon", () => {
  const stored = defaultPolicy();
  stored.version = 2;
  expect(refusal(stored, addRule("x"))).toMatchObject({
    code: "FailedPrecondition",
    message: expect.stringContaining("Set a complete policy"),
  });
});
