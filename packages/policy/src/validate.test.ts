import { describe, expect, it } from "vitest";
import { parsePolicy } from "./parse.ts";
import { codes, endpointText } from "./testing/policies.ts";

const violations = (text: string) => {
  const result = parsePolicy(text);
  return result.ok ? [] : result.violations;
};
const warnings = (text: string) => parsePolicy(text).warnings.map((warning) => warning.code);
const rest = (fields: string): string => endpointText(`host: a.example, port: 443, ${fields}`);

describe("process identity", () => {
  it.each(["sandbox", "1", "4294967294"])("accepts %s", (value) => {
    expect(violations(`version: 1\nprocess: {run_as_user: "${value}", run_as_group: "${value}"}`)).toEqual([]);
  });

  it.each(["0", "4294967295", "root", "nobody", "", "01", "1.0", "-1"])("refuses %j", (value) => {
    const found = violations(`version: 1\nprocess: {run_as_user: "${value}"}`);
    expect(found).toHaveLength(1);
    expect(found[0]?.message).toBe(
      `run_as_user must be 'sandbox' or a numeric UID/GID in range [1, 4294967294], got '${value}'`,
    );
  });
});

describe("filesystem", () => {
  it.each([
    ["read_only: [relative]", "relative_path"],
    ["read_only: [/a/../b]", "path_traversal"],
    ["read_write: [/]", "overly_broad_path"],
    ["read_write: [//]", "overly_broad_path"],
    [`read_only: [${Array.from({ length: 257 }, (_, n) => `/p${n}`).join(", ")}]`, "too_many_paths"],
    [`read_only: [/${"é".repeat(3000)}]`, "field_too_long"],
  ])("refuses %.40s", (fields, code) => {
    expect(codes(parsePolicy(`version: 1\nfilesystem_policy: {${fields}}`))).toEqual([code]);
  });

  it("accepts the root for reading, and normalises", () => {
    const result = parsePolicy("version: 1\nfilesystem_policy: {read_only: [/, /usr//lib/./x/]}");
    expect(result.ok && result.policy.filesystem).toEqual({
      includeWorkdir: false,
      readOnly: ["/", "/usr/lib/x"],
      readWrite: [],
    });
  });
});

describe("hosts and ports", () => {
  it.each([
    "*.example.com",
    "**.example.com",
    "*-x.example.com",
    "*.s3.*.amazonaws.com",
    "API.Example.com",
    "10.0.0.7",
    "2606:4700::1",
    "[::1]",
    "localhost",
  ])("accepts %s", (host) => {
    expect(violations(endpointText(`host: "${host}", port: 443`))).toEqual([]);
  });

  it.each([
    ["*", "invalid_host_wildcard"],
    ["**", "invalid_host_wildcard"],
    ["*.com", "tld_wildcard"],
    ["**.com", "tld_wildcard"],
    ["a*.com", "tld_wildcard"],
    ["foo.us-*.example.com", "invalid_host_wildcard"],
    ["foo.**.example.com", "invalid_host_wildcard"],
    ["foo**.example.com", "invalid_host_wildcard"],
    ["", "missing_endpoint_host"],
    ["https://api.example.com", "invalid_endpoint_host"],
    ["10.0.0.0/8", "invalid_endpoint_host"],
    ["a b.example", "invalid_endpoint_host"],
    ["a..example", "invalid_endpoint_host"],
    ["api?.example.com", "invalid_endpoint_host"],
  ])("refuses %j", (host, code) => {
    expect(codes(parsePolicy(endpointText(`host: "${host}", port: 443`)))).toEqual([code]);
  });

  it.each([
    ["host: a.example", ["missing_endpoint_port"]],
    ["host: a.example, port: 0", ["invalid_endpoint_port"]],
    ["host: a.example, port: 65536", ["invalid_value"]],
    ["host: a.example, port: 1, ports: [2]", ["invalid_l7_endpoint"]],
    ["port: 443, allowed_ips: [10.0.0.0/8]", []],
    ["port: 443, allowed_ips: [nonsense]", ["invalid_allowed_ips"]],
  ])("{%s}", (fields, expected) => {
    expect(codes(parsePolicy(endpointText(fields)))).toEqual(expected);
  });

  it("warns about destinations that are always blocked", () => {
    expect(warnings(endpointText("host: 127.0.0.1, port: 80"))).toEqual(["blocked_destination"]);
    expect(warnings(endpointText("host: a.example, port: 80, allowed_ips: [0.0.0.0/0]"))).toEqual([
      "blocked_destination",
    ]);
    expect(warnings(endpointText("host: a.example, port: 80, allowed_ips: ['::ffff:127.0.0.1']"))).toEqual([
      "blocked_destination",
    ]);
  });
});

describe("what goes together", () => {
  it.each([
    ["protocol: ftp", "expected tcp, rest, websocket, graphql, json-rpc, or mcp"],
    ["protocol: sql, access: full", "unknown protocol 'sql'"],
    ["protocol: rest", "requires rules or access"],
    ["protocol: rest, rules: []", "rules is empty"],
    ["protocol: rest, access: full, deny_rules: []", "deny_rules is empty"],
    ["protocol: rest, access: everything", "no valid value of access"],
    ["protocol: rest, access: full, rules: [{allow: {method: GET, path: /}}]", "mutually exclusive"],
    ["protocol: rest, deny_rules: [{method: GET, path: /}]", "needs a base allow set"],
    ["deny_rules: [{method: GET, path: /}]", "deny_rules needs a protocol"],
    ["access: full", "access needs a protocol"],
    ["protocol: rest, rules: [{allow: {}}]", "would deny all traffic"],
    ["protocol: rest, rules: [{method: GET, path: /}]", "missing field 'allow'"],
    ["protocol: rest, rules: [{allow: {method: GET}}]", "has no path"],
    ["protocol: rest, rules: [{allow: {path: /}}]", "has no method"],
    ["protocol: rest, access: full, path: v1", "must start with '/'"],
    ["protocol: rest, access: full, deny_rules: [{method: GET, path: '/[x'}]", "malformed"],
    ["protocol: rest, access: full, enforcement: block", "no valid value of enforcement"],
    ["protocol: rest, access: full, tls: passthrough", "no valid value of tls"],
    ["protocol: rest, rules: [{allow: {method: GET, path: /, query: {a: {any: []}}}}]", "no pattern"],
    ["protocol: rest, rules: [{allow: {method: GET, path: /, query: {a: 1}}}]", "expected text"],
    ["protocol: rest, rules: [{allow: {method: GET, path: /, query: {a: {glob: x}}}}]", "unknown field 'glob'"],
    ["protocol: rest, rules: [{allow: {method: GET, path: /, command: SELECT}}]", "SQL"],
    ["protocol: mcp, access: full", "does not take access presets"],
    ["protocol: json-rpc, access: full", "does not take access presets"],
    ["protocol: json-rpc", "requires explicit rules"],
    ["protocol: mcp", "requires explicit rules"],
    ["protocol: json-rpc, rules: [{allow: {method: 'a.*'}}]", "exact names"],
    ["protocol: json-rpc, rules: [{allow: {method: a, params: {x: y}}}]", "do not take tool or params"],
    ["protocol: mcp, rules: [{allow: {method: '*'}}]", 'method "*" is refused'],
    ["protocol: mcp, rules: [{allow: {method: 'prompts/*'}}]", "below tools/ only"],
    ["protocol: mcp, rules: [{allow: {method: tools/call}}, {allow: {method: tools/call, tool: x}}]", "catch-all"],
    ["protocol: mcp, rules: [{allow: {method: tools/call, tool: x, params: {name: y}}}]", "say the same"],
    ["protocol: mcp, rules: [{allow: {method: tools/call, params: {arguments: {path: y}}}}]", "not its arguments"],
    [
      "protocol: mcp, mcp: {strict_tool_names: false}, rules: [{allow: {method: tools/call, tool: 'a*'}}]",
      "strict_tool_names",
    ],
    ["protocol: mcp, mcp: {versions: ['2020-01-01'], allow_all_known_mcp_methods: true}", "unknown MCP version"],
    ["protocol: rest, access: full, mcp: {strict_tool_names: true}", "need protocol: mcp"],
    ["protocol: mcp, mcp: {strict_tool_names: 'yes', allow_all_known_mcp_methods: true}", "expected true or false"],
    ["protocol: graphql, rules: [{allow: {operation_name: A}}]", "needs operation_type"],
    ["protocol: graphql, access: full, persisted_queries: maybe", "no valid value of persisted_queries"],
    ["protocol: websocket, rules: [{allow: {method: GET, path: /, operation_type: query}}]", "cannot mix"],
    ["protocol: websocket, rules: [{allow: {method: POST, path: /}}]", "no websocket method"],
    [
      "protocol: websocket, rules: [{allow: {method: WEBSOCKET_TEXT, path: /}}, {allow: {operation_type: query}}]",
      "exclude each other",
    ],
    ["protocol: rest, access: full, websocket_credential_rewrite: true", "needs protocol: websocket"],
    ["protocol: tcp, access: full", "tcp does not take 'access'"],
    ["protocol: rest, access: full, credential_signing: sigv4", "needs signing_service"],
    ["protocol: rest, access: full, credential_signing: v5", "no valid value of credential_signing"],
    [
      "protocol: rest, access: full, credential_signing: sigv4, signing_service: s, request_body_credential_rewrite: true",
      "exclude each other",
    ],
    ["protocol: rest, access: full, credential_binding: {}", "names no provider"],
    ["protocol: rest, access: full, graphql_max_body_bytes: 0", "outside 1.."],
    ["protocol: rest, access: full, allow_encoded_slash: 'yes'", "expected true or false"],
  ])("{%s} is one violation", (fields, text) => {
    const found = violations(rest(fields));
    expect(found.map((violation) => violation.message)).toEqual([expect.stringContaining(text)]);
    expect(found[0]?.next).not.toBe("");
  });

  it.each([
    ["host: 10.0.0.1, port: 1", "tcp_endpoint_ip_literal"],
    ["port: 1, allowed_ips: [10.0.0.0/8]", "missing_tcp_endpoint_host"],
    ["host: a.example., port: 1", "invalid_tcp_endpoint_host"],
    ["host: 'a b', port: 1", "invalid_tcp_endpoint_host"],
  ])("tcp refuses {%s}", (fields, code) => {
    expect(codes(parsePolicy(endpointText(`${fields}, protocol: tcp`)))).toEqual([code]);
  });

  it.each([
    ["protocol: rest, access: full, tls: skip", "uninspectable"],
    ["path: /v1/**", "path_without_protocol"],
    ["protocol: rest, rules: [{allow: {method: FETCH, path: /}}]", "unknown_method"],
    ["protocol: rest, rules: [{allow: {method: GET, path: '/[x'}}]", "malformed_glob"],
    ["protocol: rest, rules: [{allow: {method: GET, path: '/{x'}}]", "malformed_glob"],
    ["protocol: websocket, access: full", "unsupported_protocol"],
    ["protocol: graphql, access: full, request_body_credential_rewrite: true", "ignored_key"],
    ["protocol: rest, access: full, graphql_max_body_bytes: 1", "ignored_key"],
    ["protocol: rest, access: full, credential_signing: sigv4, signing_service: s", "unsupported_signing"],
    ["protocol: rest, access: read-only", "audit_only"],
    ["protocol: rest, rules: [{allow: {method: GET, path: '/**'}}]", "audit_only"],
  ])("{%s} warns", (fields, code) => {
    expect(violations(rest(fields))).toEqual([]);
    expect(warnings(rest(fields))).toContain(code);
  });

  it.each([
    "protocol: rest, access: full",
    "protocol: rest, access: read-only, enforcement: enforce",
    "protocol: rest, access: read-only, enforcement: audit",
  ])("{%s} does what it says", (fields) => {
    expect(warnings(rest(fields))).toEqual([]);
  });

  it("warns about binaries that match nothing", () => {
    expect(warnings(endpointText("host: a.example, port: 443", "[curl]"))).toEqual(["relative_binary"]);
    expect(warnings(endpointText("host: a.example, port: 443", "['/usr/[bin/x']"))).toEqual(["malformed_glob"]);
    expect(warnings(endpointText("host: a.example, port: 443", "[]"))).toEqual(["no_binaries"]);
  });
});

describe("middlewares", () => {
  const entry = (name: string, fields: string): string => `${name}: {middleware: m, ${fields}}`;
  const text = (...entries: string[]): string =>
    `version: 1\nnetwork_middlewares:\n${entries.map((e) => `  ${e}\n`).join("")}`;
  const one = "endpoints: {include: ['*.example.com']}";

  const regex = (config: string): string => `a: {middleware: openshell/regex, config: ${config}, ${one}}`;

  it("takes the settings of a built-in", () => {
    for (const config of ["{}", "{mode: redact}"]) expect(codes(parsePolicy(text(regex(config))))).toEqual([]);
  });

  it.each([
    ["equal orders", text(entry("a", one), entry("b", one)), "duplicate_middleware_order"],
    ["no include", text(entry("a", "endpoints: {exclude: [a.example]}")), "invalid_middleware_config"],
    ["no endpoints", text("a: {middleware: m}"), "invalid_middleware_config"],
    ["no name", text(`a: {${one}}`), "invalid_middleware_config"],
    ["a port", text(entry("a", "endpoints: {include: ['a.example:443']}")), "invalid_middleware_config"],
    ["braces", text(entry("a", "endpoints: {include: ['{a,b}.example']}")), "invalid_middleware_config"],
    ["an empty label", text(entry("a", "endpoints: {include: ['a..example']}")), "invalid_middleware_config"],
    ["a built-in that there is not", text(`a: {middleware: openshell/nothing, ${one}}`), "invalid_middleware_config"],
    ["an unknown setting of a built-in", text(regex("{mode: redact, keep: 1}")), "invalid_middleware_config"],
    ["another mode of a built-in", text(regex("{mode: deny}")), "invalid_middleware_config"],
    ["a bad on_error", text(entry("a", `${one}, on_error: retry`)), "invalid_value"],
    [
      "too many",
      text(...Array.from({ length: 11 }, (_, n) => entry(`m${n}`, `order: ${n}, ${one}`))),
      "too_many_middleware_configs",
    ],
    [
      "too many patterns",
      text(entry("a", `endpoints: {include: [${Array.from({ length: 33 }, (_, n) => `h${n}.example`)}]}`)),
      "too_many_middleware_selector_patterns",
    ],
  ])("refuses %s", (_, policy, code) => {
    expect(codes(parsePolicy(policy))).toEqual([code]);
  });

  it("does not let one that fails closed select hosts that nobody opens", () => {
    const skip = (host: string, middleware: string): string =>
      `${endpointText(`host: "${host}", port: 443, tls: skip`)}network_middlewares: {m: {middleware: x, ${middleware}}}\n`;
    const conflict = ["middleware_tls_skip_conflict"];
    expect(codes(parsePolicy(skip("a.example.com", one)))).toEqual(conflict);
    expect(codes(parsePolicy(skip("*.example.com", "endpoints: {include: [a.example.com]}")))).toEqual(conflict);
    expect(codes(parsePolicy(skip("a.example.com", `${one}, on_error: fail_open`)))).toEqual([]);
    const excluding = "endpoints: {include: ['*.example.com'], exclude: [a.example.com]}";
    expect(codes(parsePolicy(skip("a.example.com", excluding)))).toEqual([]);
    expect(codes(parsePolicy(skip("b.example.com", excluding)))).toEqual(conflict);
  });
});
