import { createServer as createHttpServer, type Server as HttpServer } from "node:http";
import { createServer as createHttpsServer, type Server as HttpsServer } from "node:https";
import { type AddressInfo, connect } from "node:net";
import type { CaptureMode } from "@openshell/boundary";
import { loadAddon } from "@openshell/boundary/local/native.ts";
import { CredentialState, Secret } from "@openshell/credentials";
import { compilePolicy, parsePolicy } from "@openshell/policy";
import { parseAddress } from "@openshell/supervisor/egress/address.ts";
import { createCredentialSource, NO_CREDENTIALS } from "@openshell/supervisor/egress/credential-source.ts";
import { WorkerHasher } from "@openshell/supervisor/egress/hash.ts";
import { SandboxEgress } from "@openshell/supervisor/egress/sandbox-egress.ts";
import { createSocketTools } from "@openshell/supervisor/egress/socket-tools.ts";
import { createCa, RecordedEvents, type TestCa } from "@openshell/supervisor/egress/testing/fixture.ts";
import { LeafMint } from "@openshell/supervisor/egress/tls/leaf.ts";
import { TrustStore } from "@openshell/supervisor/egress/tls/trust.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { nativeParts, openSandbox, runsAsRoot, type TestSandbox } from "../../support/boundary.ts";

const modes: readonly CaptureMode[] = runsAsRoot
  ? ["sk_lookup", "nft", "listener_per_port"]
  : ["nft", "listener_per_port"];

const SECRET = "sk-live-0123456789abcdef";
/** Names and the globally routable addresses that they stand at; the dialler turns those into loopback ports. */
const NAMES: Readonly<Record<string, string>> = {
  "api.example.com": "93.184.216.34",
  "plain.example.com": "93.184.216.35",
};

const POLICY = `
version: 1
network_policies:
  api:
    endpoints:
      - host: api.example.com
        port: 443
        protocol: rest
        enforcement: enforce
        rules: [{allow: {method: GET, path: "/**"}}]
      - {host: plain.example.com, port: 80}
    binaries: [{path: "/usr/bin/**"}]
`;

/** The real sandbox (namespace, capture, identity) with the real egress; only the internet behind it is made up. */
describe.each(modes)("egress with capture by %s", (mode) => {
  let sandbox: TestSandbox;
  let egress: SandboxEgress;
  let placeholder: string;
  const events = new RecordedEvents();
  const servers: (HttpsServer | HttpServer)[] = [];
  const routes = new Map<string, number>();
  const seen: string[] = [];
  let ca: TestCa;

  beforeAll(async () => {
    const originCa = await createCa("Origin");
    ca = await createCa("Inspection");
    sandbox = await openSandbox({
      mode,
      ports: [80, 443, 3128],
      extraSteps: [{ kind: "file", target: "/etc/ca.pem", mode: 0o644, content: Buffer.from(ca.certificatePem) }],
    });
    const api = createHttpsServer(await originCa.issue("api.example.com"), (req, res) => {
      seen.push(`${req.method} ${req.url} ${req.headers["x-key"]}`);
      res.end(`api ${req.url} ${req.headers["x-key"] ?? ""}`);
    });
    const plain = createHttpServer((req, res) => res.end(`plain ${req.url}`));
    for (const [server, address] of [
      [api, "93.184.216.34:443"],
      [plain, "93.184.216.35:80"],
    ] as const) {
      await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
      servers.push(server);
      routes.set(address, (server.address() as AddressInfo).port);
    }
    const credentials = new CredentialState();
    const endpoints = [{ host: "api.example.com", port: 443, path: "" }];
    const classification = "static_credential";
    credentials.apply({
      revision: "1",
      values: [
        {
          name: "KEY",
          value: new Secret(SECRET),
          classification,
          endpoints,
          identity: "i",
          expiresAt: undefined,
          provider: "p",
        },
      ],
    });
    placeholder = credentials.current.childEnvironment().get("KEY")!;
    egress = new SandboxEgress({
      boundary: sandbox.boundary,
      events,
      leaves: await LeafMint.create(ca),
      trust: new TrustStore(() => []),
      hasher: new WorkerHasher(),
      network: { additionalCaPem: originCa.certificatePem, resolvers: [], alwaysDenied: [] },
      tools: createSocketTools(loadAddon(nativeParts())),
      dial: (address, port, onread) => {
        const to = { host: "127.0.0.1", port: routes.get(`${address}:${port}`) ?? 1 };
        return connect(onread === undefined ? to : { ...to, onread });
      },
      resolver: () => ({ resolve: async (host) => [parseAddress(NAMES[host] ?? "93.184.216.99")!] }),
    });
    const parsed = parsePolicy(POLICY);
    if (!parsed.ok) throw new Error(JSON.stringify(parsed));
    egress.publish({
      policy: compilePolicy(parsed.policy),
      credentials: createCredentialSource(credentials.current, Date.now),
    });
    await egress.start();
  });

  afterAll(async () => {
    await egress[Symbol.asyncDispose]();
    await sandbox[Symbol.asyncDispose]();
    for (const server of servers) {
      server.closeAllConnections();
      server.close();
    }
  });

  const proxied = "--proxy http://127.0.0.1:3128";
  const curl = (text: string) =>
    sandbox.run(["/bin/sh", "-c", `exec /usr/bin/curl -sS --max-time 10 --cacert /etc/ca.pem ${text}`]);

  it.each([
    ["through the proxy", proxied],
    ["captured", ""],
  ])("curl %s: allowed, with the credential that it never held", async (_, how) => {
    const result = await curl(`${how} -H "X-Key: ${placeholder}" https://api.example.com/v1/a?b=c`);
    expect(result).toMatchObject({ stdout: `api /v1/a?b=c ${placeholder}`, stderr: "" });
    expect(seen.at(-1)).toBe(`GET /v1/a?b=c ${SECRET}`);
  });

  it.each([
    ["through the proxy", proxied],
    ["captured", ""],
  ])("curl %s: a method that is not permitted is a 403 with the reason", async (_, how) => {
    const result = await curl(`${how} -X DELETE https://api.example.com/v1/a`);
    expect(JSON.parse(result.stdout)).toMatchObject({
      error: "policy_denied",
      detail: "DELETE /v1/a not permitted by policy",
    });
  });

  it("curl captured: a host that no rule names is a 403 with the reason, inside TLS", async () => {
    const result = await curl("https://evil.example.com/");
    expect(JSON.parse(result.stdout)).toMatchObject({
      error: "policy_denied",
      reason: expect.stringContaining("evil.example.com:443"),
    });
  });

  it("curl through the proxy: a host that no rule names is a 403 with the reason, inside TLS", async () => {
    const result = await curl(`${proxied} https://evil.example.com/`);
    expect(JSON.parse(result.stdout)).toMatchObject({
      error: "policy_denied",
      reason: expect.stringContaining("evil.example.com:443"),
    });
  });

  it.each([
    ["through the proxy", proxied],
    ["captured", ""],
  ])("curl %s: plain http", async (_, how) => {
    expect((await curl(`${how} http://plain.example.com/x`)).stdout).toBe("plain /x");
  });

  it("another binary is not curl's: the shell's own connections are named in the refusal", async () => {
    const script =
      "import urllib.request as u\ntry:\n  u.urlopen('http://plain.example.com:80/')\nexcept Exception as e:\n  print(e.code, e.read().decode())";
    const copy = await sandbox.run([
      "/bin/sh",
      "-c",
      `cp "$(readlink -f /usr/bin/python3)" /home/agent/py && exec /home/agent/py -c "${script}"`,
    ]);
    expect(copy.stdout).toContain("403");
    expect(copy.stdout).toContain("binary '/home/agent/py' not allowed");
  });

  it.each(["10.0.0.1", "169.254.169.254", "93.184.216.34"])(
    "the address %s is refused although a name leads there",
    async (address) => {
      const result = await curl(`http://${address}/`);
      expect(JSON.parse(result.stdout)).toMatchObject({ error: "policy_denied" });
    },
  );

  it("Python is captured without any variable", async () => {
    const script =
      "import ssl,urllib.request as u; print(u.urlopen('https://api.example.com/py', context=ssl.create_default_context(cafile='/etc/ca.pem')).read().decode())";
    expect((await sandbox.run(["python3", "-c", script])).stdout.trim()).toBe("api /py");
  });

  it("a copy of an allowed program elsewhere is another program", async () => {
    const evil = 'import os,shutil; shutil.copy("/usr/bin/python3","/tmp/x")';
    expect((await sandbox.run(["python3", "-c", evil])).status).toEqual({ kind: "exited", code: 0 });
    const result = await sandbox.run([
      "/tmp/x",
      "-c",
      "import urllib.request as u\ntry:\n  u.urlopen('http://plain.example.com/')\nexcept Exception as e:\n  print(e.code)",
    ]);
    expect(result.stdout.trim()).toBe("403");
  });

  it("connections from one source port to different hosts keep their owner", async () => {
    const script = `
import socket
held = []
for n in range(40):
    s = socket.socket(); s.settimeout(10)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 45678)); s.connect(("93.184.216.%d" % (100 + n), 80)); held.append(s)
for s in held:
    s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    data = b""
    while True:
        part = s.recv(4096)
        if not part: break
        data += part
    print(b"not allowed by any policy" in data)
`;
    const result = await sandbox.run(["python3", "-c", script]);
    expect(result).toMatchObject({ stdout: "True\n".repeat(40), stderr: "" });
  });

  it("a flood of connections waits in the kernel and is served", { timeout: 60_000 }, async () => {
    const script = `
import socket, sys
done = 0
for i in range(40):
    s = [socket.create_connection(("127.0.0.1", 3128)) for _ in range(50)]
    for c in s: c.sendall(b"GET http://plain.example.com/f HTTP/1.0\\r\\n\\r\\n")
    for c in s:
        data = b""
        while True:
            part = c.recv(4096)
            if not part: break
            data += part
        if data.endswith(b"plain /f"): done += 1
        else: print(data)
        c.close()
print(done)
`;
    const before = events.requests.length;
    const connectionsBefore = events.connections.length;
    const result = await sandbox.run(["python3", "-c", script]);
    expect(events.requests.slice(before).filter((event) => event.outcome !== "allowed")).toEqual([]);
    const refused = events.connections.slice(connectionsBefore).filter((event) => event.outcome !== "allowed");
    expect(refused).toEqual([]);
    expect(Number(result.stdout.trim().split("\n").at(-1))).toBe(2000 - refused.length);
    expect(egress.flows).toBe(0);
  });

  it("above its limits the sandbox waits in the kernel's backlog: nothing is refused, nothing is held here", {
    timeout: 60_000,
  }, async () => {
    const own = await openSandbox({ mode, ports: [80, 443, 3128] });
    const plain = routes.get("93.184.216.35:80")!;
    const tight = new SandboxEgress({
      boundary: own.boundary,
      events,
      leaves: await LeafMint.create(ca),
      trust: new TrustStore(() => []),
      hasher: new WorkerHasher(),
      network: { additionalCaPem: "", resolvers: [], alwaysDenied: [] },
      limits: { flows: 8, newFlowsPerSecond: 100 },
      tools: createSocketTools(loadAddon(nativeParts())),
      dial: () => connect({ host: "127.0.0.1", port: plain }),
      resolver: () => ({ resolve: async () => [parseAddress("93.184.216.35")!] }),
    });
    const parsed = parsePolicy(POLICY);
    if (!parsed.ok) throw new Error(JSON.stringify(parsed));
    tight.publish({ policy: compilePolicy(parsed.policy), credentials: NO_CREDENTIALS });
    await tight.start();
    const script = `
import socket
s = [socket.create_connection(("127.0.0.1", 3128), 30) for _ in range(300)]
for c in s: c.sendall(b"GET http://plain.example.com/f HTTP/1.0\\r\\n\\r\\n")
done = 0
for c in s:
    data = b""
    while True:
        part = c.recv(4096)
        if not part: break
        data += part
    done += data.endswith(b"plain /f")
print(done)
`;
    let most = 0;
    const watch = setInterval(() => {
      most = Math.max(most, tight.flows);
    }, 1);
    const result = await own.run(["python3", "-c", script]);
    clearInterval(watch);
    expect(result.stdout.trim()).toBe("300");
    expect(most).toBeLessThanOrEqual(8);
    await tight[Symbol.asyncDispose]();
    await own[Symbol.asyncDispose]();
  });

  it("no secret is in any event", () => {
    expect(events.connections.length + events.requests.length).toBeGreaterThan(5);
    expect(JSON.stringify(events)).not.toContain(SECRET);
    expect(JSON.stringify(events)).not.toContain("openshell:resolve");
  });
});
