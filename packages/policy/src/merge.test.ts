import { expect, test } from "vitest";
import { type MergeOperation, mergePolicy } from "./merge.ts";
import { EMPTY_ENDPOINT, EMPTY_RULE, type Endpoint, type NetworkRule, type Policy, sortedMap } from "./model.ts";

const endpoint = (host: string, ports: number[], more: Partial<Endpoint> = {}): Endpoint => ({
  ...EMPTY_ENDPOINT,
  host,
  ports,
  ...more,
});
const rest = (host: string, ports: number[], more: Partial<Endpoint> = {}): Endpoint =>
  endpoint(host, ports, { protocol: "rest", enforcement: "enforce", access: "read-only", ...more });
const rule = (endpoints: Endpoint[], binaries = ["/usr/bin/curl"]): NetworkRule => ({ name: "", endpoints, binaries });
const policy = (rules: Record<string, NetworkRule>): Policy => ({
  version: 1,
  networkPolicies: sortedMap(Object.entries(rules)),
  networkMiddlewares: new Map(),
});
const add = (name: string, content: NetworkRule): MergeOperation => ({ kind: "add_rule", rule: name, content });
const request = (method: string, path: string) => ({ ...EMPTY_RULE, method, path });

function merged(before: Policy, ...operations: MergeOperation[]) {
  const result = mergePolicy(before, operations);
  if (!result.ok) throw new Error(`${result.problem.operation}: ${result.problem.message}`);
  return { rules: Object.fromEntries(result.policy.networkPolicies), warnings: result.warnings };
}
function problem(before: Policy, ...operations: MergeOperation[]) {
  const result = mergePolicy(before, operations);
  if (result.ok) throw new Error("was accepted");
  expect(result.problem.next).not.toBe("");
  return `${result.problem.operation} ${result.problem.kind}: ${result.problem.message}`;
}

const before = policy({ api: rule([rest("api.example.com", [443])]) });

test("operations are applied in order, all or none; the first that fails is named, and the policy stays as it was", () => {
  const copy = structuredClone(before);
  expect(
    problem(before, { kind: "remove_rule", rule: "api" }, { kind: "remove_rule", rule: "api" }, add("", rule([]))),
  ).toBe("1 conflict: there is no rule 'api'");
  expect(before).toEqual(copy);
  expect(merged(before).rules).toEqual(Object.fromEntries(before.networkPolicies));
});

test("add_rule: a new rule, and what it must have", () => {
  const { rules, warnings } = merged(before, add("other", rule([rest("b.example.com", [8443, 443, 443])])));
  expect(rules["other"]?.endpoints[0]?.ports).toEqual([443, 8443]);
  expect(warnings).toEqual([]);
  expect(problem(before, add("", rule([rest("b.example.com", [443])])))).toBe("0 invalid: the rule has no name");
  expect(problem(before, add("x", rule([])))).toContain("invalid: rule 'x' has no endpoint");
  expect(problem(before, add("_provider_x", rule([rest("b.example.com", [1])])))).toContain("reserved");
});

test("add_rule never opens what no policy opens", () => {
  const hosts = [
    "127.0.0.1",
    "[::1]",
    "169.254.169.254",
    "0.0.0.0",
    "localhost",
    "LOCALHOST.",
    "metadata.google.internal",
  ];
  for (const host of [...hosts, "::ffff:127.0.0.1"]) {
    expect(problem(before, add("x", rule([endpoint(host, [80])])))).toContain("blocked whatever the policy says");
  }
  const wide = endpoint("db.example.com", [5432], { allowedIps: ["10.0.0.0/8", "127.0.0.0/7"] });
  expect(problem(before, add("x", rule([wide])))).toContain("overlaps loopback");
});

test("add_rule into an endpoint: ports are united, rules appended, what is set stays, switches are or-ed", () => {
  const more = endpoint("API.example.com", [443, 8443], {
    protocol: "rest",
    enforcement: "audit",
    rules: [request("POST", "/v1/**")],
    allowEncodedSlash: true,
  });
  const { rules, warnings } = merged(before, add("api", rule([more])));
  expect(rules["api"]?.endpoints).toEqual([
    rest("api.example.com", [443, 8443], {
      access: "",
      rules: [...["GET", "HEAD", "OPTIONS"].map((method) => request(method, "**")), request("POST", "/v1/**")],
      allowEncodedSlash: true,
    }),
  ]);
  expect(warnings).toEqual([
    "api.example.com:443: enforcement stays enforce, not audit",
    "api.example.com:443: port 8443 takes up what the endpoint has already",
  ]);
  // Once more changes nothing.
  const again = policy(rules);
  expect(merged(again, add("api", rule([more]))).rules).toEqual(rules);
});

test("add_rule joins the rule that has the endpoint already, and stands alone where it would open more than it says", () => {
  const joined = merged(before, add("mine", rule([rest("api.example.com", [443])])));
  expect(Object.keys(joined.rules)).toEqual(["api"]);
  expect(joined.warnings[0]).toContain("became part of rule 'api'");
  const two = policy({ api: rule([rest("api.example.com", [443]), rest("b.example.com", [443])]) });
  const alone = merged(two, add("mine", rule([rest("api.example.com", [443])], ["/usr/bin/wget"])));
  expect(Object.keys(alone.rules)).toEqual(["api", "mine"]);
  expect(alone.rules["api"]).toEqual(two.networkPolicies.get("api"));
  expect(alone.warnings[0]).toContain("/usr/bin/wget would also reach b.example.com:443");
});

test("no program gets an endpoint that was not declared with it", () => {
  const two = policy({ api: rule([rest("api.example.com", [443, 8443])]) });
  const wget = (ports: number[]) =>
    add("api", rule([rest("api.example.com", ports)], ["/usr/bin/curl", "/usr/bin/wget"]));
  expect(problem(two, wget([443]))).toContain("/usr/bin/wget would also reach api.example.com:8443");
  expect(merged(two, wget([443, 8443])).rules["api"]?.binaries).toEqual(["/usr/bin/curl", "/usr/bin/wget"]);
  const anybody = (ports: number[]) => add("api", rule([rest("api.example.com", ports)], ["**"]));
  expect(problem(two, anybody([443]))).toContain("any program would also reach");
  expect(merged(two, anybody([443, 8443])).rules["api"]?.binaries).toEqual(["**"]);
});

test("no endpoint is opened to programs that were not declared with it", () => {
  const pair = policy({ api: rule([rest("api.example.com", [443])], ["/usr/bin/curl", "/usr/bin/git"]) });
  const b = (binaries: string[]) => add("api", rule([rest("b.example.com", [443])], binaries));
  expect(problem(pair, b(["/usr/bin/curl"]))).toContain("also be open to /usr/bin/git");
  expect(merged(pair, b(["/usr/bin/git", "/usr/bin/curl"])).rules["api"]?.endpoints).toHaveLength(2);
  const open = policy({ api: rule([rest("api.example.com", [443])], ["/**"]) });
  expect(problem(open, b(["/usr/bin/curl"]))).toContain("also be open to any program");
  const named = merged(open, add("api", rule([rest("api.example.com", [443])])));
  expect(named.rules["api"]?.binaries).toEqual(["/**"]);
  expect(named.warnings[0]).toContain("lets any program");
});

test("no change lands on a port that is not named", () => {
  const two = policy({ api: rule([rest("api.example.com", [443, 8443])]) });
  const post = rest("api.example.com", [443], { access: "", rules: [request("POST", "/x")] });
  expect(problem(two, add("api", rule([post])))).toContain("would also reach port 8443");
});

test("MCP contracts agree or are refused, and share no place with other inspection", () => {
  const mcp = (more: Partial<Endpoint> = {}) =>
    endpoint("mcp.example.com", [443], {
      protocol: "mcp",
      mcp: { allowAllKnownMcpMethods: true, versions: [] },
      ...more,
    });
  const has = policy({ tools: rule([mcp()]) });
  expect(problem(has, add("tools", rule([mcp({ mcp: { versions: [] } })])))).toContain("MCP contracts differ");
  expect(problem(has, add("tools", rule([mcp({ jsonRpcMaxBodyBytes: 1024 })])))).toContain("MCP contracts differ");
  expect(merged(has, add("tools", rule([mcp({ jsonRpcMaxBodyBytes: 65_536 })]))).rules["tools"]).toEqual(rule([mcp()]));
  expect(problem(before, add("api", rule([mcp({ host: "api.example.com" })])))).toContain("rest cannot become mcp");
  const elsewhere = rest("mcp.example.com", [443], { path: "/rest/**" });
  expect(problem(has, add("web", rule([elsewhere])))).toContain("as MCP and as something else");
  const broken = policy({ tools: rule([mcp()]), web: rule([elsewhere]) });
  expect(
    merged(broken, { kind: "remove_rule", rule: "web" }, add("c", rule([rest("c.example.com", [1])]))).warnings,
  ).toEqual([]);
  expect(merged(broken, add("c", rule([rest("c.example.com", [1])]))).warnings).toEqual([]);
  const plain = policy({ tools: rule([endpoint("mcp.example.com", [443])], ["/a", "/b"]) });
  expect(problem(plain, add("tools", rule([mcp()], ["/a"])))).toContain("also be open to /b");
  expect(merged(plain, add("tools", rule([mcp()], ["/a", "/b"]))).rules["tools"]?.endpoints).toEqual([mcp()]);
});

test("remove_endpoint drops the named port alone, in one rule or in all, and rules that are left with nothing", () => {
  const many = policy({
    a: rule([rest("api.example.com", [443, 8443])]),
    b: rule([rest("api.example.com", [443])]),
  });
  const remove = (port: number, name = "", host = "API.example.com."): MergeOperation => ({
    kind: "remove_endpoint",
    rule: name,
    host,
    port,
  });
  const all = merged(many, remove(443));
  expect(Object.keys(all.rules)).toEqual(["a"]);
  expect(all.rules["a"]?.endpoints[0]?.ports).toEqual([8443]);
  expect(Object.keys(merged(many, remove(443, "b")).rules)).toEqual(["a"]);
  expect(problem(many, remove(80))).toContain("0 conflict: no rule reaches API.example.com.:80");
  expect(problem(many, remove(8443, "b"))).toContain("conflict");
  expect(problem(many, remove(0))).toContain("invalid");
  expect(problem(many, remove(443, "nobody"))).toContain("there is no rule 'nobody'");
});

test("remove_binary: the last one ends the rule; a rule for any program has none to remove", () => {
  const pair = policy({ api: rule([rest("api.example.com", [443])], ["/a", "/b"]) });
  const remove = (path: string): MergeOperation => ({ kind: "remove_binary", rule: "api", path });
  expect(merged(pair, remove("/a")).rules["api"]?.binaries).toEqual(["/b"]);
  expect(merged(pair, remove("/a"), remove("/b")).rules).toEqual({});
  expect(problem(pair, remove("/c"))).toContain("does not have it");
  const any = policy({ api: rule([rest("api.example.com", [443])], ["**"]) });
  expect(problem(any, remove("/a"))).toContain("lets any program");
});

test("allow and deny rules go to exactly the endpoint that is named with all its ports and executables", () => {
  const two = policy({
    api: rule([rest("api.example.com", [443]), rest("api.example.com", [443], { path: "/v2/**" })], ["/a", "/b"]),
  });
  const target = { rule: "api", host: "api.example.com", ports: [443], path: "", binaries: ["/b", "/a"] } as const;
  const rules = [request("POST", "/x")];
  const allow = (more: object = {}): MergeOperation => ({
    kind: "add_allow_rules",
    target: { ...target, ...more },
    rules,
  });
  const deny = (more: object = {}): MergeOperation => ({
    kind: "add_deny_rules",
    target: { ...target, ...more },
    rules,
  });
  const methods = (result: ReturnType<typeof merged>, index: number) =>
    result.rules["api"]?.endpoints[index]?.rules.map(({ method }) => method);
  expect(methods(merged(two, allow()), 0)).toEqual(["GET", "HEAD", "OPTIONS", "POST"]);
  expect(methods(merged(two, allow()), 1)).toEqual([]);
  expect(merged(two, deny({ path: "/v2/**" })).rules["api"]?.endpoints[1]).toMatchObject({
    access: "read-only",
    denyRules: rules,
  });
  expect(problem(two, allow({ path: undefined }))).toContain("several endpoints");
  expect(problem(two, allow({ path: "/v3" }))).toContain("no endpoint");
  expect(problem(two, allow({ ports: [443, 80] }))).toContain("has the ports 443");
  expect(problem(two, allow({ binaries: ["/a"] }))).toContain("is for /a, /b");
  expect(problem(two, allow({ binaries: "any" }))).toContain("is for /a, /b");
  expect(problem(two, { kind: "add_allow_rules", target, rules: [] })).toContain("invalid");
  expect(problem(two, allow({ host: "" }))).toContain("invalid");
  const open = policy({ api: rule([rest("api.example.com", [443])], ["/**"]) });
  expect(methods(merged(open, allow({ binaries: "any" })), 0)).toContain("POST");
});

test("allow and deny rules: protocols, presets, and a base to deny from", () => {
  const target = {
    rule: "r",
    host: "h.example.com",
    ports: [443],
    path: undefined,
    binaries: ["/usr/bin/curl"],
  } as const;
  const rules = [request("WEBSOCKET_TEXT", "/x")];
  const only = (item: Endpoint) => policy({ r: rule([item]) });
  const socket = endpoint("h.example.com", [443], { protocol: "websocket", access: "read-write" });
  const opened = merged(only(socket), { kind: "add_allow_rules", target, rules });
  expect(opened.rules["r"]?.endpoints[0]?.rules.map(({ method }) => method)).toEqual([
    "GET",
    "WEBSOCKET_TEXT",
    "WEBSOCKET_TEXT",
  ]);
  for (const protocol of ["", "mcp", "graphql", "json-rpc", "tcp"] as const) {
    const found = problem(only({ ...socket, protocol }), { kind: "add_deny_rules", target, rules });
    expect(found).toContain("request rules need protocol rest or websocket");
  }
  const nothing = only({ ...socket, access: "" });
  expect(problem(nothing, { kind: "add_deny_rules", target, rules })).toContain("allows nothing that could be denied");
  const graphql = endpoint("h.example.com", [443], { protocol: "graphql", access: "full" });
  const more = { ...graphql, access: "" as const, rules: [{ ...EMPTY_RULE, operationType: "query" }] };
  expect(problem(only(graphql), add("r", rule([more])))).toContain(
    "0 invalid: h.example.com:443: access full of protocol graphql",
  );
});
