import { existsSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type ExecResult, TestGateway, type TestSandbox } from "../../support/api.ts";
import { runOk } from "../../support/command.ts";
import { type TestHost, TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { inMode } from "../../support/modes.ts";
import { clientVolumes, HTTP_CLIENTS, withoutProxy } from "./clients.ts";

/** The ways in which connections are captured, by who runs the gateway: loading an sk_lookup program takes privileges. */
const CAPTURES = inMode({ root: ["sk_lookup", "nft", "listener_per_port"], user: ["nft", "listener_per_port"] });

const POLICY = `
version: 1
network_policies:
  api:
    endpoints:
      - host: api.example-allowed.com
        port: 443
        protocol: rest
        enforcement: enforce
        rules:
          - allow: { method: GET, path: "/allowed/**" }
    binaries: [{ path: "/**" }]
  git:
    endpoints:
      - host: git.example-allowed.com
        port: 443
        protocol: rest
        enforcement: enforce
        rules:
          - allow: { method: GET, path: "/tool.git/info/refs", query: { service: git-upload-pack } }
          - allow: { method: POST, path: "/tool.git/git-upload-pack" }
    binaries: [{ path: "/usr/**/git*" }, { path: "/usr/bin/git" }]
`;

/** How the client finds its way out. */
const WAYS = [
  { way: "with proxy variables", proxied: true, place: (argv: readonly string[]) => argv },
  { way: "without proxy variables", proxied: false, place: withoutProxy },
];

let before: Inventory;
let net: TestInternet;
let api: TestHost;
let repositories: TestHost;
let other: TestHost;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  api = await net.host("api.example-allowed.com");
  repositories = await net.host("git.example-allowed.com", { repositories: { tool: { "README.md": "a tool\n" } } });
  other = await net.host("other.example-denied.org");
});

afterAll(async () => {
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

/** Both outputs: some clients print a refusal as an answer, others as an error. */
const told = (result: ExecResult): string => `${result.stdout}${result.stderr}`;

describe.each(CAPTURES)("connections captured by %s", (capture) => {
  let gateway: TestGateway;
  let sandbox: TestSandbox;

  beforeAll(async () => {
    gateway = await TestGateway.start(net, { env: { OPENSHELL_CAPTURE: capture } });
    sandbox = await gateway.create({ policy: POLICY, volumes: clientVolumes() });
  });

  afterAll(async () => {
    await gateway?.[Symbol.asyncDispose]();
  });

  test("is the mode in force", async () => {
    const { status } = await sandbox.get();
    const isolation = status?.conditions.find(({ type }) => type === "Isolation");
    expect(isolation?.message).toContain(`network capture: ${capture}`);
  });

  describe.each(WAYS)("$way", ({ proxied, place }) => {
    for (const client of HTTP_CLIENTS) {
      const ask = (method: string, url: string) =>
        sandbox.exec(place(client.argv(method, url)), { env: { ...client.env }, timeoutMs: 50_000 });

      test.skipIf(client.missing !== undefined)(
        `${client.name}${client.missing === undefined ? "" : ` (not here: ${client.missing})`}`,
        async () => {
          const path = `/allowed/${client.name.replaceAll(/\W/g, "-")}`;
          const refused = other.received().connections.length;
          const [allowed, method, otherPath, host] = await Promise.all([
            ask("GET", api.url(path)),
            ask("DELETE", api.url(path)),
            ask("GET", api.url("/secret/file")),
            ask("GET", other.url("/x")),
          ]);
          expect(told(allowed)).toMatch(/\b200\b/);
          expect(told(allowed)).toContain(`"target":"${path}"`);
          expect(allowed.exitCode).toBe(0);
          // A proxy that was told by a request line and one that was not must send the same request.
          expect(
            api
              .received()
              .requests.filter(({ target }) => target === path)
              .map(({ method }) => method),
          ).toContain("GET");

          expect(told(method)).toMatch(/\b403\b/);
          expect(told(method)).toContain(`DELETE ${path} not permitted by policy`);
          expect(told(otherPath)).toMatch(/\b403\b/);
          expect(told(otherPath)).toContain("GET /secret/file not permitted by policy");
          expect(told(host)).toMatch(/\b403\b/);
          if (proxied && client.refusedByProxy !== undefined) expect(told(host)).toContain(client.refusedByProxy);
          else expect(told(host)).toMatch(/other\.example-denied\.org:443.*not allowed by any policy/);

          expect(
            api.received().requests.filter(({ target, method }) => method !== "GET" || target.includes("secret")),
          ).toEqual([]);
          expect(other.received().connections.length).toBe(refused);
        },
      );
    }

    test("git clones over HTTPS; a push is refused with the reason", async () => {
      const folder = `/sandbox/clone-${Math.random().toString(36).slice(2)}`;
      const script = `
        set -e
        git clone --quiet ${repositories.url("/tool.git")} ${folder}
        cat ${folder}/README.md
        cd ${folder}
        git -c user.name=T -c user.email=t@example.com commit --quiet --allow-empty -m Change
        ! git push --quiet origin HEAD 2>&1`;
      const result = await sandbox.exec(place(["sh", "-c", script]), { timeoutMs: 50_000 });
      expect(result).toMatchObject({ exitCode: 0, stderr: "" });
      expect(result.stdout).toMatch(/^a tool\n/);
      // git shows only the status of an answer that is not its own; the log has the rest.
      expect(result.stdout).toContain("403");
      await sandbox.logged(
        /DENIED .*\/git-remote-http.* GET https:\/\/git\.example-allowed\.com\/tool\.git\/info\/refs/,
      );
      const head = join(repositories.repositoryFolder!, "tool.git");
      expect(existsSync(head)).toBe(true);
      expect(await runOk(["git", "-c", "safe.directory=*", "-C", head, "log", "--oneline", "--all"])).not.toContain(
        "Change",
      );
    });
  });

  test("IPv6: the address of a name is never needed, and a literal one is refused", async () => {
    const literal = await sandbox.exec(withoutProxy(["curl", "-sS", "--max-time", "5", `http://[${other.ipv6}]/`]));
    expect(told(literal)).toContain("not allowed by any policy");
    expect(other.received().connections).toEqual([]);
  });
});
