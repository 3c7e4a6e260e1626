import { fromJsonString } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { readErrorDetails } from "./errors.ts";
import {
  CreateProviderRequestSchema,
  CreateSandboxRequestSchema,
  ListSandboxesRequestSchema,
} from "./generated/openshell_pb.js";
import { undecodableJson } from "./json-decode-error.ts";

const SECRET = "hunter2hunter2";

describe("JSON that is no request", () => {
  it.each([
    [CreateProviderRequestSchema, `{"provider": {"credentials": "${SECRET}"}}`, "provider.credentials"],
    [CreateProviderRequestSchema, `{"provider": {"credentials": {"A": ["${SECRET}"]}}}`, "provider.credentials"],
    [CreateProviderRequestSchema, `{"provider": "${SECRET}"}`, "provider"],
    [
      CreateProviderRequestSchema,
      `{"provider": {"credentialExpirationTimes": {"A": "${SECRET}"}}}`,
      "provider.credential_expiration_times",
    ],
    [CreateProviderRequestSchema, `{"provider": {"type": "${SECRET}`, "request"],
    [CreateProviderRequestSchema, `"${SECRET}"`, "request"],
    [
      CreateSandboxRequestSchema,
      `{"spec": {"policy": {"networkPolicies": {"a": {"endpoints": [{}, {"port": "${SECRET}"}]}}}}}`,
      "spec.policy.network_policies[a].endpoints[1].port",
    ],
    [CreateSandboxRequestSchema, '{"spec": {"restartPolicy": "SOMETIMES"}}', "spec.restart_policy"],
    [CreateSandboxRequestSchema, '{"spec": {"environmant": {}}}', "spec.environmant"],
    [CreateSandboxRequestSchema, '{"workspaceScope": "default"}', "workspace_scope"],
    [ListSandboxesRequestSchema, '{"pageSize": 1.5}', "page_size"],
    [ListSandboxesRequestSchema, '{"pageSize": 1e100}', "page_size"],
  ] as const)("%o %s is refused at %s, and not repeated", (schema, text, field) => {
    expect(() => fromJsonString(schema, text)).toThrow();
    const error = undecodableJson(schema, text);
    expect(readErrorDetails(error).violations.map((violation) => violation.field)).toEqual([field]);
    expect(JSON.stringify([error.message, readErrorDetails(error)])).not.toContain(SECRET);
  });
});
