import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TestGateway, type TestSandbox } from "../../support/api.ts";
import { type TestHost, TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";

/**
 * What rules mean, asked twice: with a request from a sandbox, and with `policy explain`, which must say the same. One
 * host a kind of rule.
 */

const POLICY = `
version: 1
network_policies:
  presets:
    endpoints:
      - { host: read-only.example-rules.com, port: 443, protocol: rest, enforcement: enforce, access: read-only }
      - { host: read-write.example-rules.com, port: 443, protocol: rest, enforcement: enforce, access: read-write }
      - { host: full.example-rules.com, port: 443, protocol: rest, enforcement: enforce, access: full }
    binaries: [{ path: /usr/bin/curl }]
  deny:
    endpoints:
      - host: deny.example-rules.com
        port: 443
        protocol: rest
        enforcement: enforce
        access: full
        deny_rules: [{ method: "*", path: "/admin/**" }, { method: DELETE, path: "/**" }]
    binaries: [{ path: /usr/bin/curl }]
  query:
    endpoints:
      - host: query.example-rules.com
        port: 443
        protocol: rest
        enforcement: enforce
        rules:
          - allow: { method: GET, path: /search, query: { q: "public-*", page: { any: ["1", "2"] } } }
    binaries: [{ path: /usr/bin/curl }]
  audit:
    endpoints:
      - { host: audit.example-rules.com, port: 443, protocol: rest, enforcement: audit, access: read-only }
    binaries: [{ path: /usr/bin/curl }]
  python:
    endpoints:
      - { host: python.example-rules.com, port: 443, protocol: rest, enforcement: enforce, access: full }
    binaries: [{ path: "/usr/bin/python3*" }]
`;

const NAMES = ["read-only", "read-write", "full", "deny", "query", "audit", "python", "nobody"] as const;

/** Host (first label), method, path, and whether it is allowed. */
const CASES: readonly (readonly [(typeof NAMES)[number], string, string, boolean])[] = [
  ["read-only", "GET", "/a/b", true],
  ["read-only", "HEAD", "/a", true],
  ["read-only", "OPTIONS", "/a", true],
  ["read-only", "POST", "/a", false],
  ["read-only", "DELETE", "/a", false],
  ["read-write", "PUT", "/a", true],
  ["read-write", "POST", "/a", true],
  ["read-write", "DELETE", "/a", false],
  ["full", "DELETE", "/a", true],
  ["deny", "GET", "/a", true],
  ["deny", "GET", "/admin/users", false],
  ["deny", "GET", "/admin", true],
  ["deny", "POST", "/x/../admin/users", false],
  ["deny", "DELETE", "/a", false],
  ["query", "GET", "/search?q=public-x&page=1", true],
  ["query", "GET", "/search?page=2&q=public-", true],
  ["query", "GET", "/search?q=public-x&page=3", false],
  ["query", "GET", "/search?q=private&page=1", false],
  ["query", "GET", "/search?q=public-x&q=private&page=1", false],
  ["query", "GET", "/search", false],
  ["audit", "GET", "/a", true],
  ["audit", "POST", "/a", true],
  ["python", "GET", "/a", false],
  ["nobody", "GET", "/a", false],
];

let before: Inventory;
let net: TestInternet;
let gateway: TestGateway;
let sandbox: TestSandbox;
const hosts = new Map<string, TestHost>();

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  for (const name of NAMES) hosts.set(name, await net.host(`${name}.example-rules.com`));
  gateway = await TestGateway.start(net);
  sandbox = await gateway.create({ policy: POLICY });
});

afterAll(async () => {
  await gateway?.[Symbol.asyncDispose]();
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

describe("a request and policy explain agree", () => {
  test.each(CASES)("%s: %s %s → %s", async (name, method, path, allowed) => {
    const host = hosts.get(name)!;
    host.clearReceived();
    const url = `https://${host.name}${path}`;
    const how = method === "HEAD" ? ["--head"] : ["-X", method];
    const answer = await sandbox.exec([
      "curl",
      "-sS",
      "--path-as-is",
      "--max-time",
      "10",
      "-o",
      "/dev/null",
      "-w",
      "%{http_code}",
      ...how,
      url,
    ]);
    expect(answer.stdout).toBe(allowed ? "200" : "403");
    expect(host.received().requests.length).toBe(allowed ? 1 : 0);
    const explained = await gateway.user.run([
      ...["policy", "explain", sandbox.name, "--host", host.name, "--binary", "/usr/bin/curl"],
      ...["--method", method, "--path", path, "-o", "json"],
    ]);
    expect(JSON.parse(explained.stdout)).toMatchObject({ allowed });
    expect(explained.exitCode).toBe(allowed ? 0 : 1);
  });
});

test("audit lets a request pass and says what enforcement would refuse; enforce refuses it", async () => {
  const line = await sandbox.logged(/POST https:\/\/audit\.example-rules\.com\/a/);
  expect(line).toMatch(/not permitted by policy/);
  expect(line).not.toContain("DENIED");
  const refused = await sandbox.logged(/POST https:\/\/read-only\.example-rules\.com\/a/);
  expect(refused).toContain("DENIED");
});

test("a rule for one program is no rule for another, nor for a copy of it", async () => {
  const url = hosts.get("python")!.url("/x");
  const script = (program: string) =>
    `${program} -c 'import urllib.request as u, urllib.error\ntry:\n  print(u.urlopen("${url}").status)\nexcept urllib.error.HTTPError as e:\n  print(e.code, e.read().decode())'`;
  expect((await sandbox.sh(script("/usr/bin/python3"))).stdout).toBe("200\n");
  const curl = await sandbox.exec(["curl", "-sS", url]);
  expect(`${curl.stdout}${curl.stderr}`).toContain("binary '/usr/bin/curl' not allowed");
  const copy = await sandbox.sh(`cp "$(readlink -f /usr/bin/python3)" /tmp/python3 && ${script("/tmp/python3")}`);
  expect(`${copy.stdout}${copy.stderr}`).toMatch(/403.*binary '\/tmp\/python3' not allowed/);
});

test("what a refusal advises to add is what allows it", async () => {
  const refused = await sandbox.exec(["curl", "-sS", hosts.get("nobody")!.url("/x")]);
  const { next } = JSON.parse(refused.stdout) as { next: string };
  const advised = /^Add network_policies\.<name>: (\{.*\})\.?$/.exec(next);
  expect(advised, next).not.toBeNull();
  const file = gateway.user.home.write("advised.yaml", `version: 1\nnetwork_policies:\n  advised: ${advised![1]}\n`);
  await gateway.user.ok(["policy", "validate", file]);
  await gateway.user.ok(["policy", "set", sandbox.name, "--policy", file, "--wait"]);
  const answer = await sandbox.exec(["curl", "-sS", "-w", "%{http_code}", hosts.get("nobody")!.url("/x")]);
  expect(answer.stdout).toMatch(/200$/);
});

test("get gives back what was set, revision by revision", async () => {
  const { user } = gateway;
  const listed = await user.json<{ revisions: { version: number; status: string }[] }>([
    "policy",
    "list",
    sandbox.name,
  ]);
  expect(listed.revisions.map(({ version, status }) => [version, status])).toEqual([
    [2, "loaded"],
    [1, "superseded"],
  ]);
  const first = await user.ok(["policy", "get", sandbox.name, "--rev", "1", "--base"]);
  const text = first.split("---\n")[1]!;
  const file = user.home.write("first.yaml", text);
  await user.ok(["policy", "set", sandbox.name, "--policy", file, "--wait"]);
  const again = await user.ok(["policy", "get", sandbox.name, "--base"]);
  expect(again.split("---\n")[1]).toBe(text);
  const answer = await sandbox.exec(["curl", "-sS", "-w", "%{http_code}", hosts.get("full")!.url("/x")]);
  expect(answer.stdout).toMatch(/200$/);
});

test("validate tells every problem of a file with its place", async () => {
  const file = gateway.user.home.write(
    "wrong.yaml",
    `version: 1
network_policies:
  a:
    endpoints:
      - { host: "*", port: 443 }
      - { host: api.example.com, port: 70000 }
      - { host: api.example.com, port: 443, protocol: rst }
    binaries: []
    binary: [x]
`,
  );
  const result = await gateway.user.run(["policy", "validate", file]);
  expect(result.exitCode).toBe(1);
  const output = result.stdout + result.stderr;
  for (const place of [6, 7, 9]) expect(output).toMatch(new RegExp(`wrong\\.yaml:${place}:\\d+: `));
  expect(output).toContain("rest");
  expect(output).toContain("binaries");
  const refused = await gateway.user.run(["policy", "set", sandbox.name, "--policy", file]);
  expect(refused.exitCode).toBe(1);
});
