import { create, fromJson, type JsonValue, toJson } from "@bufbuild/protobuf";
import { UpdateConfigRequestSchema } from "@openshell/api/generated/openshell_pb.js";
import { SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import { mergeOperationsFromProto } from "@openshell/policy";
import { afterEach, beforeEach, expect, test } from "vitest";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { runCommandLine } from "../testing/surroundings.ts";
import type { Json } from "../transport/unary.ts";

let gateway: FakeGateway;
beforeEach(async () => {
  gateway = await FakeGateway.start();
  gateway.answers.set("GetSandboxConfig", { message: { version: 1 } });
  gateway.answers.set("UpdateConfig", { message: { version: 2, policyHash: "0123456789abcdef" } });
});
afterEach(() => gateway[Symbol.asyncDispose]());

const update = (...argv: string[]) => runCommandLine(["policy", "update", "dev", ...argv], { env: gateway.env });

/** The operations as the gateway reads them. */
async function sent(...argv: string[]) {
  const { code, stderr } = await update(...argv);
  expect({ code, stderr }).toEqual({ code: 0, stderr: "✓ Policy version 2 stored (hash 0123456789ab).\n" });
  const message = gateway.calls.findLast(({ method }) => method === "UpdateConfig")?.message as JsonValue;
  const read = mergeOperationsFromProto(fromJson(UpdateConfigRequestSchema, message).mergeOperations);
  if (!read.ok) throw new Error(JSON.stringify(read.violations));
  return read.operations;
}

test("an endpoint with access, protocol, enforcement and options, for the programs that are named", async () => {
  const options =
    "allowed-ip=10.0.0.0/8,allowed-ip=fd00::/8,request-body-credential-rewrite,allow-uninspected-credentials";
  const endpoint = `api-v1.example.com:443:read-write:rest:audit:${options}`;
  const [operation, ...more] = await sent(
    "--add-endpoint",
    endpoint,
    "--binary",
    "/usr/bin/curl",
    "--binary",
    "/usr/bin/git",
  );
  expect(more).toEqual([]);
  expect(operation).toMatchObject({
    kind: "add_rule",
    rule: "allow_api_v1_example_com_443",
    content: {
      binaries: ["/usr/bin/curl", "/usr/bin/git"],
      endpoints: [
        {
          host: "api-v1.example.com",
          ports: [443],
          access: "read-write",
          protocol: "rest",
          enforcement: "audit",
          allowedIps: ["10.0.0.0/8", "fd00::/8"],
          requestBodyCredentialRewrite: true,
          allowUninspectedCredentials: true,
          websocketCredentialRewrite: false,
        },
      ],
    },
  });
  const [plain] = await sent(
    "--add-endpoint",
    "[2001:db8::1]:22",
    "--any-binary",
    "--rule-name",
    "ssh",
    "--endpoint-path",
    "/x",
  );
  expect(plain).toMatchObject({
    rule: "ssh",
    content: { binaries: ["**"], endpoints: [{ host: "2001:db8::1", ports: [22], path: "/x", protocol: "" }] },
  });
});

test("everything of one command is one request: additions, removals, then requests by endpoint", async () => {
  const operations = await sent(
    ...["--rule-name", "api", "--any-binary", "--endpoint-path", ""],
    ...["--add-deny", "b.example.com:443:delete:/x:y"],
    ...[
      "--add-allow",
      "b.example.com:443:GET:/b",
      "--add-allow",
      "a.example.com:8443,443:GET:**",
      "--add-allow",
      "b.example.com:443:POST:/b",
    ],
    ...["--remove-rule", "old", "--remove-endpoint", "c.example.com:80", "--add-endpoint", "d.example.com:443"],
  );
  const target = (host: string, ports: number[]) => ({ rule: "api", host, ports, path: "", binaries: "any" });
  expect(operations).toMatchObject([
    { kind: "add_rule", rule: "api" },
    { kind: "remove_endpoint", rule: "api", host: "c.example.com", port: 80 },
    { kind: "remove_rule", rule: "old" },
    { kind: "add_allow_rules", target: target("a.example.com", [8443, 443]), rules: [{ method: "GET", path: "**" }] },
    { kind: "add_allow_rules", target: target("b.example.com", [443]), rules: [{ method: "GET" }, { method: "POST" }] },
    { kind: "add_deny_rules", target: target("b.example.com", [443]), rules: [{ method: "DELETE", path: "/x:y" }] },
  ]);
  const [removal] = await sent("--remove-endpoint", "c.example.com:80");
  expect(removal).toEqual({ kind: "remove_endpoint", rule: "", host: "c.example.com", port: 80 });
});

test("wrong use is told before anything is sent, with the right form", async () => {
  const program = ["--any-binary"];
  const wrong: readonly (readonly string[])[] = [
    [],
    ["--add-endpoint", "a.example.com:443"],
    ["--any-binary", "--remove-rule", "x"],
    ["--add-endpoint", "a.example.com", ...program],
    ["--add-endpoint", ":443", ...program],
    ["--add-endpoint", "a.example.com:0", ...program],
    ["--add-endpoint", "a.example.com:65536", ...program],
    ["--add-endpoint", "a.example.com:443:write", ...program],
    ["--add-endpoint", "a.example.com:443:full:sql", ...program],
    ["--add-endpoint", "a.example.com:443:full::enforce", ...program],
    ["--add-endpoint", "a.example.com:443:full:tcp", ...program],
    ["--add-endpoint", "a.example.com:443:full:rest:enforce:websocket", ...program],
    ["--add-endpoint", "a.example.com:443:full:websocket:enforce:request-body-credential-rewrite", ...program],
    ["--add-endpoint", "a.example.com:1", "--add-endpoint", "a.example.com:2", "--rule-name", "x", ...program],
    ["--add-endpoint", "a.example.com:1", "--binary", "/a", ...program],
    ["--remove-endpoint", "a.example.com:443:x"],
    ["--add-allow", "a.example.com:443:GET:/", ...program],
    ["--add-allow", "a.example.com:443:GET", "--rule-name", "x", ...program],
    ["--add-allow", "a.example.com:443:G T:/", "--rule-name", "x", ...program],
    ["--add-deny", "a.example.com:443,:GET:/", "--rule-name", "x", ...program],
    ["--endpoint-path", "/x", "--remove-rule", "x"],
    ["--remove-rule", "x", "--dry-run", "--wait"],
    ["--remove-rule", "x", "--timeout", "0"],
  ];
  for (const argv of wrong) {
    const { code, stdout, stderr } = await update(...argv);
    expect([argv, code, stdout]).toEqual([argv, 2, ""]);
    expect(stderr).toMatch(/^error: .+\n {2}next: .+\n$/);
  }
  expect(gateway.calls).toEqual([]);
});

test("a refusal names the option instead of a number", async () => {
  const message = "merge_operations[1]: there is no rule 'gone'. Name one of: api";
  gateway.answers.set("UpdateConfig", { error: { code: "failed_precondition", message }, status: 400 });
  expect(await update("--remove-rule", "api", "--remove-rule", "gone")).toEqual({
    code: 1,
    stdout: "",
    stderr: "error: --remove-rule gone: there is no rule 'gone'. Name one of: api\n  code: failed_precondition\n",
  });
});

test("--dry-run prints what would result, and sends nothing that changes anything", async () => {
  const rules = {
    api: { endpoints: [{ host: "api.example.com", ports: [443] }], binaries: [{ path: "/usr/bin/curl" }] },
  };
  const policy = toJson(
    SandboxPolicySchema,
    create(SandboxPolicySchema, { version: 1, networkPolicies: rules }),
  ) as Json;
  gateway.answers.set("GetSandboxPolicyStatus", { message: { revision: { version: 1, policy } } });
  const preview = await update("--dry-run", "--add-endpoint", "b.example.com:443", "--binary", "/usr/bin/git");
  expect(preview).toMatchObject({ code: 0, stderr: "" });
  expect(preview.stdout).toContain(
    "  allow_b_example_com_443:\n    endpoints:\n      - host: b.example.com\n        port: 443\n",
  );
  const joined = await update("--dry-run", "--add-endpoint", "api.example.com:443", "--binary", "/usr/bin/curl");
  expect(joined.stderr).toBe(
    "! rule 'allow_api_example_com_443' became part of rule 'api', which has the same endpoint\n",
  );
  expect(await update("--dry-run", "--remove-rule", "gone")).toEqual({
    code: 1,
    stdout: "",
    stderr: "error: --remove-rule gone: there is no rule 'gone'\n  next: Name one of: api\n  code: change_invalid\n",
  });
  const invalid = await update("--dry-run", "--add-endpoint", "*.com:443", "--any-binary");
  expect([invalid.code, invalid.stdout]).toEqual([1, ""]);
  expect(gateway.calls.every(({ method }) => method === "GetSandboxPolicyStatus")).toBe(true);
});
