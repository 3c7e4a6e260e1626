import { describe, expect, it } from "vitest";
import { explain } from "./explain.ts";
import { EVERY_KEY, endpointText, policyOf } from "./testing/policies.ts";

describe("explain", () => {
  const process = { exe: "/usr/bin/curl", ancestors: ["/bin/bash"] };
  const query = { host: "api.example.com", port: 443, process };
  const request = { method: "POST", path: "/x", query: [], encodedSlash: false };

  it("shows for each endpoint what fits, nearest first", () => {
    const policy = policyOf(`version: 1
network_policies:
  far: {endpoints: [{host: other.example, port: 80}], binaries: [/usr/bin/git]}
  near: {endpoints: [{host: "*.example.com", port: 443}], binaries: [/usr/bin/git]}
`);
    const { connection, considered, suggestion } = explain(policy, query);
    expect(connection).toMatchObject({ allowed: false, code: "binary_not_allowed", policy: "near" });
    expect(considered.map(({ policy: key, applies }) => [key, applies])).toEqual([
      ["near", false],
      ["far", false],
    ]);
    expect(considered[0]?.checks.map(({ name, passed }) => [name, passed])).toEqual([
      ["host", true],
      ["port", true],
      ["binary", false],
    ]);
    expect(considered[0]?.checks[2]?.detail).toBe("/usr/bin/git against /usr/bin/curl ← /bin/bash");
    expect(suggestion).toBe("network_policies:\n  near:\n    binaries:\n      - path: /usr/bin/curl\n");
  });

  it("proposes a rule that then allows it", () => {
    const empty = explain(policyOf("version: 1"), query, request);
    const extended = policyOf(`version: 1\n${empty.suggestion}`);
    const again = explain(extended, query, request);
    expect(again).toMatchObject({ connection: { allowed: true }, request: { allowed: true }, suggestion: "" });
  });

  it("shows which request rules fail", () => {
    const policy = policyOf(
      endpointText(
        "host: api.example.com, port: 443, protocol: rest, enforcement: enforce, access: read-only, deny_rules: [{method: POST, path: /x}]",
      ),
    );
    const { request: decision, considered } = explain(policy, query, request);
    expect(decision).toMatchObject({ allowed: false, code: "deny_rule" });
    expect(considered[0]?.applies).toBe(true);
    expect(considered[0]?.checks.slice(3).map(({ name, passed }) => [name, passed])).toEqual([
      ["path", true],
      ["deny_rules", false],
      ["rules", false],
    ]);
  });

  it("agrees with the decision in every case it lists", () => {
    const policy = policyOf(EVERY_KEY);
    for (const host of ["tracker.corp.example", "a.mirror.example.org", "feed.example.net", "nowhere.example"]) {
      for (const exe of ["/usr/bin/curl", "/usr/lib/jvm/1/bin/java", "/usr/local/bin/node"]) {
        const { connection, considered } = explain(policy, { host, port: 443, process: { exe, ancestors: [] } });
        const applies = considered.some((endpoint) => endpoint.applies);
        const blocked = !connection.allowed && connection.code === "unsupported_middleware";
        expect([host, exe, applies]).toEqual([host, exe, connection.allowed || blocked]);
      }
    }
  });
});
