import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import {
  type NetworkAccessPreset,
  type NetworkEndpointSchema,
  type NetworkEnforcementMode,
  NetworkTlsMode,
  SandboxPolicySchema,
} from "@openshell/api/generated/sandbox_pb.js";
import { describe, expect, it } from "vitest";
import { policyFromProto, policyToProto } from "./proto.ts";
import { EVERY_KEY, policyOf } from "./testing/policies.ts";

type Init = MessageInitShape<typeof SandboxPolicySchema>;
type EndpointInit = MessageInitShape<typeof NetworkEndpointSchema>;

const parse = (init: Init) => policyFromProto(create(SandboxPolicySchema, { version: 1, ...init }));
const endpoint = (fields: EndpointInit) =>
  parse({
    networkPolicies: { r: { endpoints: [{ host: "a.example", port: 443, ...fields }], binaries: [{ path: "/x" }] } },
  });
const problems = (result: ReturnType<typeof parse>) =>
  result.ok ? [] : result.violations.map(({ code, path }) => `${code} ${path}`);
const at = "network_policies.r.endpoints[0]";

describe("from the wire", () => {
  it("an empty message of a client that predates the version is a policy", () => {
    expect(policyFromProto(create(SandboxPolicySchema))).toMatchObject({ ok: true, policy: { version: 1 } });
    expect(problems(parse({ version: 2 }))).toEqual(["unsupported_version version"]);
  });

  it("port and ports are one list; ports wins", () => {
    const ports = (fields: EndpointInit) => {
      const result = endpoint(fields);
      return result.ok ? result.policy.networkPolicies.get("r")?.endpoints[0]?.ports : problems(result);
    };
    expect(ports({ port: 80 })).toEqual([80]);
    expect(ports({ port: 80, ports: [443, 8443] })).toEqual([443, 8443]);
    expect(ports({ port: 0 })).toEqual([`missing_endpoint_port ${at}.port`]);
    expect(ports({ port: 70_000 })).toEqual([`invalid_endpoint_port ${at}.port`]);
    expect(ports({ ports: [0, 1] })).toEqual([`invalid_endpoint_port ${at}.ports`]);
  });

  it.each<[string, EndpointInit, string]>([
    ["a tls mode of the past", { tls: NetworkTlsMode.TERMINATE }, `invalid_value ${at}.tls`],
    ["an unknown tls mode", { tls: 9 as NetworkTlsMode }, `invalid_value ${at}.tls`],
    ["an unknown enforcement", { enforcement: 9 as NetworkEnforcementMode }, `invalid_value ${at}.enforcement`],
    [
      "an unknown preset",
      { protocol: "rest", access: 9 as NetworkAccessPreset, rules: [{ allow: { method: "GET", path: "/" } }] },
      `invalid_value ${at}.access`,
    ],
    ["an unknown protocol", { protocol: "sql" }, `invalid_l7_endpoint ${at}.protocol`],
    [
      "SQL",
      { protocol: "rest", rules: [{ allow: { method: "GET", path: "/", command: "SELECT" } }] },
      `unsupported_key ${at}.rules[0]`,
    ],
    [
      "a rule without allow",
      { protocol: "rest", access: 0, rules: [{}, { allow: { method: "GET", path: "/" } }] },
      `missing_key ${at}.rules[0]`,
    ],
    [
      "both kinds of matcher",
      { protocol: "rest", rules: [{ allow: { method: "GET", path: "/", query: { q: { glob: "a", any: ["b"] } } } }] },
      `invalid_l7_endpoint ${at}.rules[0].query.q`,
    ],
    ["a binding without provider", { credentialBinding: {} }, `missing_key ${at}.credential_binding`],
    [
      "unknown signing",
      { protocol: "rest", access: 3, credentialSigning: "v9" },
      `invalid_value ${at}.credential_signing`,
    ],
  ])("refuses %s", (_, fields, expected) => {
    expect(problems(endpoint(fields))).toContain(expected);
  });

  it("refuses what it cannot read, instead of dropping it", () => {
    const bytes = toBinary(SandboxPolicySchema, create(SandboxPolicySchema, { version: 1 }));
    // Field 15, a length-delimited value of two bytes.
    const extended = new Uint8Array([...bytes, 0x7a, 0x02, 0x08, 0x01]);
    expect(problems(policyFromProto(fromBinary(SandboxPolicySchema, extended)))).toEqual(["unknown_key "]);
  });

  it("refuses an unknown Landlock word", () => {
    expect(problems(parse({ landlock: { compatibility: "strict" } }))).toEqual([
      "invalid_value landlock.compatibility",
    ]);
  });

  it("drops an identity that says nothing, and a name that says the key", () => {
    const result = parse({ process: {}, networkPolicies: { r: { name: "r" } } });
    expect(result).toMatchObject({ ok: true });
    expect(result.ok && result.policy.process).toBeUndefined();
    expect(result.ok && result.policy.networkPolicies.get("r")?.name).toBe("");
  });

  it("keeps the gateway's stamps in an effective policy", () => {
    const stamped = endpoint({ advisorProposed: true, providerCredentialed: true, tokenGrantOwner: "o" });
    expect(stamped.ok && stamped.policy.networkPolicies.get("r")?.endpoints[0]).toMatchObject({
      advisorProposed: true,
      providerCredentialed: true,
      tokenGrantOwner: "o",
    });
    expect(stamped.ok && policyToProto(stamped.policy).networkPolicies["r"]?.endpoints[0]).toMatchObject({
      advisorProposed: true,
      providerCredentialed: true,
      tokenGrantOwner: "o",
    });
  });
});

describe("to the wire", () => {
  it("fills port and ports, and survives the encoding", () => {
    const policy = policyOf(EVERY_KEY);
    const message = fromBinary(SandboxPolicySchema, toBinary(SandboxPolicySchema, policyToProto(policy)));
    expect(message.networkPolicies["mirror"]?.endpoints[0]).toMatchObject({ port: 443, ports: [443, 8443] });
    expect(message.networkPolicies["tracker"]?.name).toBe("tracker-api");
    expect(message.networkPolicies["mirror"]?.name).toBe("mirror");
    const back = policyFromProto(message);
    expect(back.ok && back.policy).toEqual(policy);
  });
});
