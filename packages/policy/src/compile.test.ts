import { describe, expect, it } from "vitest";
import { compilePolicy, exactBinaries, sameDestinationRules, sameGrant } from "./compile.ts";
import type { ConnectionAllowed, ConnectionDecision, RequestQuery } from "./decision.ts";
import { EVERY_KEY, endpointText, policyOf } from "./testing/policies.ts";

const curl = { exe: "/usr/bin/curl", ancestors: ["/bin/bash"] };
const compiled = (text: string) => compilePolicy(policyOf(text));
const connect = (text: string, host: string, port = 443, process: { exe: string; ancestors: string[] } = curl) =>
  compiled(text).connect({ host, port, process });
const allowed = (decision: ConnectionDecision): ConnectionAllowed => {
  if (!decision.allowed) throw new Error(decision.reason);
  return decision;
};
const rest = (fields: string): string =>
  endpointText(`host: api.example.com, port: 443, protocol: rest, enforcement: enforce, ${fields}`);
const ask = (text: string, method: string, target: string, more: Partial<RequestQuery> = {}) => {
  const policy = compiled(text);
  const decision = allowed(policy.connect({ host: "api.example.com", port: 443, process: curl }));
  const [path, query] = target.split("?") as [string, string | undefined];
  const pairs = [...new URLSearchParams(query ?? "")];
  return policy.request(decision.grant, { method, path, query: pairs, encodedSlash: false, ...more });
};

describe("connections", () => {
  it("are refused without rules, with what to add", () => {
    const decision = connect("version: 1", "api.example.com");
    expect(decision).toMatchObject({
      allowed: false,
      code: "no_policy",
      reason: "network connections not allowed by policy",
      policy: "",
    });
    expect(!decision.allowed && decision.next).toContain('host: "api.example.com", port: 443');
  });

  it("name host and port that no rule covers", () => {
    const text = endpointText("host: api.example.com, ports: [443, 8443]");
    expect(connect(text, "api.example.com", 80)).toMatchObject({
      code: "endpoint_not_allowed",
      reason: "endpoint api.example.com:80 is not allowed by any policy",
    });
    for (const port of [443, 8443]) expect(connect(text, "api.example.com", port).allowed).toBe(true);
    expect(connect(text, "2606:4700::1")).toMatchObject({
      reason: "endpoint [2606:4700::1]:443 is not allowed by any policy",
    });
  });

  it("name the executable, the rule and the ancestors when the executable is wrong", () => {
    const decision = connect(endpointText("host: a.example, port: 443", "[/usr/bin/git]"), "a.example");
    expect(decision).toMatchObject({
      code: "binary_not_allowed",
      policy: "r",
      reason: "binary '/usr/bin/curl' not allowed in policy 'r' (ancestors: [/bin/bash])",
    });
  });

  it("do not mix the endpoint of one rule with the executable of another", () => {
    const text = `version: 1
network_policies:
  a: {endpoints: [{host: a.example, port: 443}], binaries: [/usr/bin/git]}
  b: {endpoints: [{host: b.example, port: 443}], binaries: [/usr/bin/curl]}
`;
    expect(connect(text, "a.example").allowed).toBe(false);
    expect(connect(text, "b.example").allowed).toBe(true);
  });

  it("know an executable by any ancestor and by globs that do not cross folders", () => {
    const text = endpointText("host: a.example, port: 443", '["/opt/*/bin/tool", /bin/bash]');
    const by = (exe: string, ...ancestors: string[]) => connect(text, "a.example", 443, { exe, ancestors }).allowed;
    expect(by("/opt/x/bin/tool")).toBe(true);
    expect(by("/opt/x/y/bin/tool")).toBe(false);
    expect(by("/usr/bin/curl", "/bin/sh", "/bin/bash")).toBe(true);
    expect(by("/usr/bin/curl", "/bin/sh")).toBe(false);
  });

  it("follow a symbolic link that was resolved for them", () => {
    const policy = policyOf(endpointText("host: a.example, port: 443", "[/usr/bin/python]"));
    const resolvedBinaries = new Map([["/usr/bin/python", "/usr/bin/python3.12"]]);
    const query = { host: "a.example", port: 443, process: { exe: "/usr/bin/python3.12", ancestors: [] } };
    expect(compilePolicy(policy).connect(query).allowed).toBe(false);
    expect(compilePolicy(policy, { resolvedBinaries }).connect(query).allowed).toBe(true);
  });

  it.each([
    [
      "*.example.com",
      ["a.example.com", "A.EXAMPLE.COM", "a.example.com."],
      ["example.com", "a.b.example.com", ".example.com"],
    ],
    ["**.example.com", ["a.example.com", "a.b.example.com"], ["example.com", "xexample.com"]],
    ["*-x.example.com", ["a-x.example.com"], ["a.b-x.example.com", "ax.example.com"]],
    ["a.*.example.com", ["a.b.example.com"], ["a.b.c.example.com", "a.example.com"]],
    ["*.0.0.7", ["a.0.0.7"], ["10.0.0.7"]],
    ["[2606:4700:0:0::1]", ["2606:4700::1", "2606:4700:0::1"], ["2606:4700::2"]],
  ])("the host pattern %s", (pattern, covered, others) => {
    const text = endpointText(`host: "${pattern}", port: 443`);
    for (const host of covered) expect([host, connect(text, host).allowed]).toEqual([host, true]);
    for (const host of others) expect([host, connect(text, host).allowed]).toEqual([host, false]);
  });

  it.each(["a.example\0", "a.exam\0ple", "*.example", "a.example/", "a%2eexample", "", "a example"])(
    "refuse the malformed host %j",
    (host) => {
      const text = endpointText('host: "**.a.example", port: 443').replace("binaries", "binaries");
      expect(connect(text, host).allowed).toBe(false);
    },
  );

  it("escape what the process chose", () => {
    const decision = connect(endpointText("host: a.example, port: 443", "[/x]"), "a.example", 443, {
      exe: "/tmp/\u001b[31m\nx",
      ancestors: [],
    });
    expect(!decision.allowed && decision.reason + decision.next).not.toMatch(/[\n\u001b]/);
  });

  it("need a known executable", () => {
    const text = endpointText("host: a.example, port: 443");
    expect(connect(text, "a.example", 443, { exe: "", ancestors: [] }).allowed).toBe(false);
  });

  it("say how the connection is to be treated", () => {
    const text = EVERY_KEY.slice(0, EVERY_KEY.indexOf("network_middlewares"));
    expect(connect(text, "tracker.corp.example")).toMatchObject({
      policy: "tracker",
      tls: "auto",
      inspected: true,
      exactHost: true,
      allowedIps: ["10.20.0.0/16"],
      allowUninspectedCredentials: false,
    });
    expect(connect(text, "smtp.corp.example", 465, { exe: "/usr/bin/msmtp", ancestors: [] })).toMatchObject({
      tls: "skip",
      inspected: false,
      allowUninspectedCredentials: true,
    });
    expect(
      connect(text, "x.mirror.example.org", 8443, { exe: "/usr/lib/jvm/17/bin/java", ancestors: [] }),
    ).toMatchObject({
      exactHost: false,
      allowedIps: undefined,
    });
    expect(connect(text, "whatever.example", 9443)).toMatchObject({
      policy: "by_address",
      allowedIps: ["10.30.0.0/24"],
    });
    expect(connect(text, "db.corp.example", 5432, { exe: "/usr/bin/psql", ancestors: [] })).toMatchObject({
      code: "unsupported_protocol",
    });
  });

  it("are refused where a middleware that cannot run must see them", () => {
    const text = `${endpointText('host: "**.example.com", port: 443')}network_middlewares: {m: {middleware: x, endpoints: {include: ["*.example.com"], exclude: [b.example.com]}}}\n`;
    expect(connect(text, "a.example.com")).toMatchObject({ code: "unsupported_middleware" });
    expect(connect(text, "b.example.com").allowed).toBe(true);
    expect(connect(text, "a.b.example.com").allowed).toBe(true);
    expect(connect(text, "b.example.com")).toMatchObject({ skippedMiddlewares: [] });
  });

  it("name the middlewares that may be left out, as what the traffic passes without", () => {
    const entry = 'middleware: acme/scan, on_error: fail_open, endpoints: {include: ["*.example.com"]}';
    const text = `${endpointText('host: "**.example.com", port: 443')}network_middlewares: {m: {${entry}}}\n`;
    expect(connect(text, "a.example.com")).toMatchObject({ allowed: true, skippedMiddlewares: ["acme/scan"] });
    expect(connect(text, "a.b.example.com")).toMatchObject({ allowed: true, skippedMiddlewares: [] });
  });

  it("give a stamped endpoint no claim to private addresses", () => {
    const policy = policyOf(endpointText("host: a.example, port: 443"));
    const rule = policy.networkPolicies.get("r") as never as { endpoints: object[] };
    rule.endpoints[0] = { ...rule.endpoints[0], advisorProposed: true };
    expect(compilePolicy(policy).connect({ host: "a.example", port: 443, process: curl })).toMatchObject({
      exactHost: false,
    });
  });
});

describe("requests", () => {
  it("pass unjudged where no endpoint judges them", () => {
    const text = endpointText("host: api.example.com, port: 443, credential_binding: {provider: p}");
    expect(ask(text, "DELETE", "/x")).toMatchObject({ allowed: true, credentialProvider: "p", audited: false });
  });

  it("follow the presets", () => {
    const table: Record<string, string[]> = {
      "read-only": ["GET", "HEAD", "OPTIONS"],
      "read-write": ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"],
      full: ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"],
    };
    for (const [access, methods] of Object.entries(table)) {
      for (const method of table["full"] as string[]) {
        expect([access, method, ask(rest(`access: ${access}`), method, "/a/b").allowed]).toEqual([
          access,
          method,
          methods.includes(method),
        ]);
      }
    }
  });

  it("are refused with method, path, rule and what to add", () => {
    expect(ask(rest("access: read-only"), "post", "/v1/x")).toEqual({
      allowed: false,
      audited: false,
      code: "not_permitted",
      reason: "POST /v1/x not permitted by policy",
      next: 'Add to the endpoint\'s rules: - allow: {method: POST, path: "/v1/x"}',
      policy: "r",
      endpoint: 0,
    });
  });

  it("pass an audit endpoint, which says why it would have refused", () => {
    for (const enforcement of ["", "enforcement: audit, "]) {
      const text = endpointText(`host: api.example.com, port: 443, protocol: rest, ${enforcement}access: read-only`);
      expect(ask(text, "POST", "/x")).toMatchObject({
        allowed: true,
        audited: true,
        reason: "POST /x not permitted by policy",
      });
      expect(ask(text, "GET", "/x")).toMatchObject({ allowed: true, audited: false, reason: "" });
    }
  });

  it.each([
    ["/v1/**", ["/v1/models", "/v1/a/b", "/v1/"], ["/v1", "/v2/x", "/"]],
    ["/v1/*", ["/v1/models"], ["/v1/a/b", "/v1"]],
    ["/a/**/b", ["/a/x/b", "/a/x/y/b"], ["/a/b"]],
    ["**", ["/", "/a", "/a/b/"], []],
    ["/**", ["/", "/a", "/a/b/"], []],
    ["/{a,b}/[0-9]?", ["/a/1x", "/b/9z"], ["/c/1x", "/a/x1", "/a/1"]],
    ["/x.[!j]*", ["/x.png"], ["/x.js", "/x."]],
  ])("the path pattern %s", (pattern, covered, others) => {
    const text = rest(`rules: [{allow: {method: GET, path: "${pattern}"}}]`);
    for (const path of covered) expect([path, ask(text, "GET", path).allowed]).toEqual([path, true]);
    for (const path of others) expect([path, ask(text, "GET", path).allowed]).toEqual([path, false]);
  });

  it("take HEAD where GET is allowed or denied, and nothing else for free", () => {
    const get = rest("rules: [{allow: {method: get, path: /x}}]");
    expect(ask(get, "HEAD", "/x").allowed).toBe(true);
    expect(ask(get, "OPTIONS", "/x").allowed).toBe(false);
    expect(ask(rest("rules: [{allow: {method: POST, path: /x}}]"), "HEAD", "/x").allowed).toBe(false);
    expect(ask(rest("access: full, deny_rules: [{method: GET, path: /x}]"), "HEAD", "/x")).toMatchObject({
      code: "deny_rule",
      reason: "HEAD /x blocked by deny rule",
    });
  });

  it("match queries: every value to allow, one to deny, unlisted keys free", () => {
    const allow = rest('rules: [{allow: {method: GET, path: /x, query: {q: "foo-*", t: {any: [a, b]}}}}]');
    expect(ask(allow, "GET", "/x?q=foo-1&t=a&t=b&other=1").allowed).toBe(true);
    expect(ask(allow, "GET", "/x?q=foo-1&q=bar&t=a").allowed).toBe(false);
    expect(ask(allow, "GET", "/x?t=a").allowed).toBe(false);
    const denied = rest('access: full, deny_rules: [{method: GET, path: /x, query: {force: "true", mode: "*"}}]');
    expect(ask(denied, "GET", "/x?force=no&force=true&mode=1").allowed).toBe(false);
    expect(ask(denied, "GET", "/x?force=true").allowed).toBe(true);
    expect(ask(denied, "GET", "/x?force=no&mode=1").allowed).toBe(true);
  });

  it("do not let a star of a query cross a dot", () => {
    const text = rest('rules: [{allow: {method: GET, path: /x, query: {v: "1.*"}}}]');
    expect(ask(text, "GET", "/x?v=1.2").allowed).toBe(true);
    expect(ask(text, "GET", "/x?v=1.2.3").allowed).toBe(false);
  });

  it("go to the endpoint with the most specific path; allow rules of all count", () => {
    const text = `version: 1
network_policies:
  r:
    endpoints:
      - {host: api.example.com, port: 443, protocol: rest, enforcement: enforce, access: read-only}
      - {host: api.example.com, port: 443, path: /admin/**, protocol: rest, enforcement: enforce, rules: [{allow: {method: POST, path: /admin/ping}}]}
      - {host: api.example.com, port: 443, path: /graph, protocol: graphql, access: full}
      - {host: api.example.com, port: 443, path: /lax/**, protocol: rest, access: read-only}
    binaries: ["/**"]
`;
    expect(ask(text, "GET", "/admin/x")).toMatchObject({ allowed: true, endpoint: 0 });
    expect(ask(text, "POST", "/admin/ping")).toMatchObject({ allowed: true, endpoint: 1 });
    expect(ask(text, "POST", "/admin/x")).toMatchObject({ allowed: false, endpoint: 1 });
    expect(ask(text, "POST", "/graph")).toMatchObject({ code: "unsupported_protocol", endpoint: 2 });
    expect(ask(text, "DELETE", "/lax/x")).toMatchObject({ allowed: true, audited: true });
  });

  it("need an endpoint whose path covers them", () => {
    const text = rest("access: full, path: /v1/**");
    expect(ask(text, "GET", "/v1").allowed).toBe(true);
    expect(ask(text, "GET", "/v1/a/b").allowed).toBe(true);
    expect(ask(text, "GET", "/v2")).toMatchObject({
      code: "path_not_matched",
      reason: "GET /v2 did not match an L7 endpoint path",
      endpoint: -1,
    });
  });

  it("are judged by a path even without a protocol", () => {
    const text = endpointText("host: api.example.com, port: 443, path: /v1/**");
    expect(connect(text, "api.example.com")).toMatchObject({ inspected: true });
    expect(ask(text, "DELETE", "/v1/x").allowed).toBe(true);
    expect(ask(text, "GET", "/v2").allowed).toBe(false);
  });

  it("may contain an encoded slash only where that is allowed, also in audit", () => {
    const audit = "host: api.example.com, port: 443, protocol: rest, access: full";
    expect(ask(endpointText(audit), "GET", "/a%2Fb", { encodedSlash: true })).toMatchObject({ code: "encoded_slash" });
    const opted = endpointText(`${audit}, allow_encoded_slash: true`);
    expect(ask(opted, "GET", "/a%2Fb", { encodedSlash: true }).allowed).toBe(true);
  });

  it("with signing are refused: they would go out unsigned", () => {
    const text = rest("access: full, credential_signing: sigv4, signing_service: s");
    expect(ask(text, "GET", "/x")).toMatchObject({ code: "unsupported_protocol" });
  });

  it.each([
    ["a method that is no token", { method: "GE T" }],
    ["a relative path", { path: "x" }],
    ["a raw control byte", { path: "/\u0000" }],
    ["a raw space", { path: "/a b" }],
    ["a NUL in the query", { query: [["a", "\0"]] as [string, string][] }],
  ])("with %s are refused, also in audit", (_, more) => {
    const text = endpointText("host: api.example.com, port: 443, protocol: rest, access: full");
    expect(ask(text, "GET", "/x", more)).toMatchObject({ allowed: false, code: "invalid_query" });
  });

  it("belong to one generation", () => {
    const text = rest("access: full");
    const grant = allowed(connect(text, "api.example.com")).grant;
    const query = { method: "GET", path: "/", query: [], encodedSlash: false };
    expect(compiled(text).request(grant, query)).toMatchObject({ code: "stale_policy" });
    expect(compiled(text).request(undefined, query)).toMatchObject({ code: "stale_policy" });
  });

  it("git over HTTP can be let in for reading only", () => {
    const text = rest(
      'rules: [{allow: {method: GET, path: "/**/info/refs", query: {service: git-upload-pack}}}, {allow: {method: POST, path: "/**/git-upload-pack"}}]',
    );
    expect(ask(text, "GET", "/o/r.git/info/refs?service=git-upload-pack").allowed).toBe(true);
    expect(ask(text, "POST", "/o/r.git/git-upload-pack").allowed).toBe(true);
    expect(ask(text, "GET", "/o/r.git/info/refs?service=git-receive-pack").allowed).toBe(false);
    expect(ask(text, "POST", "/o/r.git/git-receive-pack").allowed).toBe(false);
  });

  it("cost no more with a hostile path and pattern", () => {
    const pattern = `/${"*a".repeat(60)}`;
    const deep = `/${"**/a/".repeat(40)}x`;
    const text = rest(`rules: [{allow: {method: GET, path: "${pattern}"}}, {allow: {method: GET, path: "${deep}"}}]`);
    const started = performance.now();
    expect(ask(text, "GET", `/${"a".repeat(4000)}b`).allowed).toBe(false);
    expect(ask(text, "GET", `/${"a/".repeat(2000)}`).allowed).toBe(false);
    expect(performance.now() - started).toBeLessThan(1000);
  });
});

describe("live changes", () => {
  const of = (fields: string): ConnectionDecision =>
    connect(endpointText(`host: a.example, port: 443${fields}`), "a.example");

  it("a connection lives on when it is allowed in the same way", () => {
    expect(sameGrant(of(""), of(""))).toBe(true);
    expect(sameGrant(of(", protocol: rest, access: full"), of(", protocol: rest, access: read-only"))).toBe(true);
    expect(sameGrant(of(""), of(", tls: skip"))).toBe(false);
    expect(sameGrant(of(""), of(", protocol: rest, access: full"))).toBe(false);
    expect(sameGrant(of(""), connect("version: 1", "a.example"))).toBe(false);
  });

  it("and tells when the address has to be looked at again", () => {
    const before = allowed(of(", allowed_ips: [10.0.0.0/8, 10.1.0.0/16]"));
    expect(sameDestinationRules(before, allowed(of(", allowed_ips: [10.1.0.0/16, 10.0.0.0/8]")))).toBe(true);
    expect(sameDestinationRules(before, allowed(of("")))).toBe(false);
  });
});

describe("names and ports", () => {
  const policy = compiled(EVERY_KEY);
  it("are those the policy mentions", () => {
    expect(policy.names()).toContain("tracker.corp.example");
    expect(policy.names()).not.toContain("*.mirror.example.org");
    expect(policy.mentions("X.mirror.example.org.")).toBe(true);
    expect(policy.mentions("mirror.example.org")).toBe(false);
    expect(policy.mentions("evil\0.mirror.example.org")).toBe(false);
    expect(policy.ports()).toEqual([443, 465, 5432, 8443, 9443]);
    expect(exactBinaries(policy.policy)).toEqual([
      "/usr/bin/curl",
      "/usr/bin/msmtp",
      "/usr/bin/psql",
      "/usr/bin/python3.12",
      "/usr/bin/wget",
      "/usr/local/bin/node",
    ]);
  });
});
