import { describe, expect, it } from "vitest";
import { PolicyLimit } from "./limits.ts";
import { type ParseResult, parsePolicy } from "./parse.ts";
import { policyFromProto, policyToProto } from "./proto.ts";
import { policyToPlain, serializePolicy } from "./serialize.ts";
import { codes, EVERY_KEY, endpointText, policyOf } from "./testing/policies.ts";
import { formatViolation } from "./violation.ts";

const messages = (result: ParseResult): string[] => (result.ok ? [] : result.violations.map((v) => v.message));

describe("files", () => {
  it("only the version is required", () => {
    const result = parsePolicy("version: 1");
    expect(result).toEqual({
      ok: true,
      warnings: [],
      policy: { version: 1, networkPolicies: new Map(), networkMiddlewares: new Map() },
    });
    expect(parsePolicy('{"version": 1}')).toEqual(result);
  });

  it.each([
    ["", "missing_key"],
    ["{}", "missing_key"],
    ["version: 2", "unsupported_version"],
    ["version: one", "wrong_type"],
    ["version: 1.5", "wrong_type"],
    ["[1]", "wrong_type"],
    ["version: 1\n---\nversion: 1", "yaml_syntax"],
    ["version: [1", "yaml_syntax"],
    ["version: !!js/function 1", "yaml_syntax"],
    ["version: 1\nnetwork_policies:\n", "wrong_type"],
    ["version: 1\n<<: {a: 1}", "unknown_key"],
    ["version: 1\n? [a]\n: 1", "wrong_type"],
  ])("refuses %j", (text, code) => {
    expect(codes(parsePolicy(text))).toEqual([code]);
  });

  it("says of several documents which one to keep", () => {
    const result = parsePolicy("Version: 3\nStatus: loaded\n---\nversion: 1\n");
    expect(result.ok).toBe(false);
    if (!result.ok) expect(result.violations[0]?.next).toContain("policy get");
  });

  it.each([
    ["top", "version: 1\nnetwork: {}", 2, 1],
    ["filesystem", "version: 1\nfilesystem_policy:\n  readonly: []", 3, 3],
    ["rule", "version: 1\nnetwork_policies:\n  r: {hosts: []}", 3, 7],
    ["endpoint", endpointText("host: a.example, port: 443, methods: [GET]"), 5, 38],
    [
      "allow",
      endpointText("host: a.example, port: 443, protocol: rest, rules: [{allow: {method: GET, path: /, verb: x}}]"),
      5,
      93,
    ],
    ["binary", "version: 1\nnetwork_policies:\n  r: {binaries: [{path: /a, harness: true}]}", 3, 29],
    [
      "middleware",
      "version: 1\nnetwork_middlewares:\n  m: {middleware: x, endpoints: {include: [a.b], only: []}}",
      3,
      50,
    ],
  ])("refuses an unknown key in %s and says where", (_, text, line, column) => {
    const result = parsePolicy(text);
    expect(result.ok).toBe(false);
    if (result.ok) return;
    expect(result.violations).toHaveLength(1);
    expect(result.violations[0]).toMatchObject({ code: "unknown_key", line, column });
    expect(result.violations[0]?.next).not.toBe("");
  });

  it("proposes the key that was meant", () => {
    const result = parsePolicy("version: 1\nnetwork_policy: {}");
    expect(result.ok ? "" : result.violations[0]?.next).toBe("Did you mean 'network_policies'?");
  });

  it("refuses duplicate keys at every level, quickly also in a large map", () => {
    const result = parsePolicy(
      "version: 1\nversion: 1\nlandlock: {compatibility: best_effort, compatibility: best_effort}",
    );
    expect(codes(result)).toEqual(["duplicate_key", "duplicate_key"]);
    const many = Array.from({ length: 20_000 }, (_, n) => `  r${n}: {}`).join("\n");
    const started = performance.now();
    expect(parsePolicy(`version: 1\nnetwork_policies:\n${many}\n`).ok).toBe(true);
    expect(performance.now() - started).toBeLessThan(4000);
  });

  it("reports everything that is wrong at once, in the order of the text", () => {
    const result = parsePolicy(`version: 1
process: {run_as_user: root}
filesystem_policy:
  read_only: [usr, /a/../b]
  read_write: [/]
network_policies:
  r:
    endpoints:
      - {host: "*.com", port: 0, tls: terminate}
`);
    expect(codes(result)).toEqual([
      "invalid_process_identity",
      "relative_path",
      "path_traversal",
      "overly_broad_path",
      "tld_wildcard",
      "invalid_endpoint_port",
      "invalid_value",
    ]);
    if (result.ok) return;
    for (const violation of result.violations) {
      expect(violation.next).not.toBe("");
      expect(violation.line).toBeGreaterThan(1);
    }
    expect(formatViolation(result.violations[0] as never, "p.yaml")).toMatch(
      /^p\.yaml:2:11: run_as_user must be 'sandbox'/,
    );
  });

  it.each([
    [
      "an alias bomb",
      `a: &a [1,1,1,1,1,1,1,1,1,1]\n${"bcdefgh"
        .split("")
        .map((n, i) => `${n}: &${n} [${Array(10).fill(`*${"abcdefgh"[i]}`).join(",")}]`)
        .join("\n")}\nversion: 1`,
      "too_many_aliases",
    ],
    ["an alias of itself", "version: 1\nnetwork_policies: &a {r: *a}", "nested_too_deep"],
    ["deep nesting", `version: 1\nnetwork_policies: ${"[".repeat(2000)}${"]".repeat(2000)}`, "nested_too_deep"],
    ["very deep nesting", `${"[".repeat(200_000)}`, "nested_too_deep"],
    ["a document too large", `version: 1 #${"x".repeat(PolicyLimit.documentBytes)}`, "document_too_large"],
  ])("survives %s", (_, text, code) => {
    expect(codes(parsePolicy(text))).toContain(code);
  });

  it("takes honest anchors and aliases", () => {
    const policy = policyOf(`version: 1
network_policies:
  a: {endpoints: [{host: a.example, port: 443}], binaries: &tools [/usr/bin/curl]}
  b: {endpoints: [{host: b.example, port: 443}], binaries: *tools}
`);
    expect(policy.networkPolicies.get("b")?.binaries).toEqual(["/usr/bin/curl"]);
  });

  it("has no place for keys that the wire cannot carry", () => {
    expect(codes(parsePolicy("version: 1\nminimum_isolation: {}"))).toEqual(["unsupported_key"]);
    const middleware =
      "version: 1\nnetwork_middlewares: {m: {middleware: x, endpoints: {include: [a.b]}, on_uninspectable: deny}}";
    expect(codes(parsePolicy(middleware))).toEqual(["unsupported_key"]);
  });

  it.each(["advisor_proposed: true", "provider_credentialed: true", "token_grant_owner: x"])(
    "refuses the stamp %s",
    (stamp) => {
      expect(codes(parsePolicy(endpointText(`host: a.example, port: 443, ${stamp}`)))).toEqual(["unsupported_key"]);
    },
  );

  it.each([
    ["run_as_user: 1000", "text"],
    ["run_as_user: null", "text"],
  ])("refuses process {%s}", (field, expected) => {
    expect(messages(parsePolicy(`version: 1\nprocess: {${field}}`))[0]).toContain(`expected ${expected}`);
  });

  it("keeps reserved rule names for providers", () => {
    const text = "version: 1\nnetwork_policies: {_provider_github: {}}";
    expect(codes(parsePolicy(text))).toEqual(["reserved_rule_name"]);
    expect(parsePolicy(text, { origin: "effective" }).ok).toBe(true);
  });
});

describe("round trips", () => {
  const policy = policyOf(EVERY_KEY);

  it("through YAML, with the same text every time", () => {
    const text = serializePolicy(policy);
    expect(policyOf(text)).toEqual(policy);
    expect(serializePolicy(policyOf(text))).toBe(text);
  });

  it("through JSON", () => {
    expect(policyOf(JSON.stringify(policyToPlain(policy)))).toEqual(policy);
  });

  it("through the wire", () => {
    const result = policyFromProto(policyToProto(policy));
    expect(result).toMatchObject({ ok: true });
    expect(result.ok && result.policy).toEqual(policy);
  });

  it("leaves defaults out and writes one port as port", () => {
    const text = serializePolicy(policyOf(endpointText("host: a.example, port: 443, protocol: REST, access: full")));
    expect(text).toBe(`version: 1
network_policies:
  r:
    endpoints:
      - host: a.example
        port: 443
        protocol: rest
        access: full
    binaries:
      - path: /**
`);
  });

  it("keeps what was left out left out", () => {
    const text = serializePolicy(policyOf("version: 1\nprocess: {run_as_user: sandbox}"));
    expect(text).toBe("version: 1\nprocess:\n  run_as_user: sandbox\n");
  });

  it("keeps odd names", () => {
    const odd = policyOf('version: 1\nnetwork_policies: {"a.b c": {}, __proto__: {name: x}, "9": {}, "10": {}}');
    expect([...odd.networkPolicies.keys()]).toEqual(["10", "9", "__proto__", "a.b c"]);
    expect(policyOf(serializePolicy(odd))).toEqual(odd);
  });
});
