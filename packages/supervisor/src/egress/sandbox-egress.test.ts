import { createHash } from "node:crypto";
import { once } from "node:events";
import { connect as connectTls } from "node:tls";
import { CredentialState, Secret } from "@openshell/credentials";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { createCredentialSource } from "./credential-source.ts";
import { EXE, Fixture, ownProcess, POLICY, readAll, readResponse, readUntil, request } from "./testing/fixture.ts";

let fixture: Fixture;

beforeEach(async () => {
  fixture = await Fixture.create();
});

afterEach(async () => {
  await fixture[Symbol.asyncDispose]();
});

function jsonOf(answer: string): Record<string, unknown> {
  return JSON.parse(answer.slice(answer.indexOf("\r\n\r\n") + 4));
}

async function inspected(host = "api.example.com") {
  return fixture.tls(await fixture.tunnel(`${host}:443`), host);
}

describe("explicit proxy", () => {
  test("an allowed GET through CONNECT and inspection reaches the origin, twice on one connection", async () => {
    const seen: string[] = [];
    await fixture.https("api.example.com", (req, res) => {
      seen.push(`${req.method} ${req.url} ${req.headers.host}`);
      res.setHeader("X-Origin", "yes");
      res.end(`hello ${req.url}`);
    });
    const tls = await inspected();
    const first = await request(tls, "GET /one HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect(first).toMatchObject({ status: 200, body: "hello /one" });
    expect(first.head).toContain("X-Origin: yes");
    const second = await request(tls, "GET /two HTTP/1.1\r\nHost: API.example.com:443\r\n\r\n");
    expect(second).toMatchObject({ status: 200, body: "hello /two" });
    expect(seen).toEqual(["GET /one api.example.com", "GET /two api.example.com"]);
    expect(fixture.dialled).toEqual(["93.184.216.34:443"]);
    expect(fixture.events.connections.map((event) => [event.outcome, event.host, event.policy])).toEqual([
      ["allowed", "api.example.com", "api"],
    ]);
    expect(fixture.events.requests.map((event) => [event.outcome, event.method, event.path, event.status])).toEqual([
      ["allowed", "GET", "/one", 200],
      ["allowed", "GET", "/two", 200],
    ]);
    tls.destroy();
  });

  test("a host that no rule names is refused with the reason and the next step", async () => {
    const socket = await fixture.proxy();
    socket.write("CONNECT evil.example.com:443 HTTP/1.1\r\nHost: evil.example.com:443\r\n\r\n");
    const answer = await readAll(socket);
    expect(answer).toMatch(
      /^HTTP\/1\.1 403 Forbidden: endpoint evil\.example\.com:443 is not allowed by any policy\r\n/,
    );
    const body = jsonOf(answer);
    expect(body).toMatchObject({
      error: "policy_denied",
      detail: "CONNECT evil.example.com:443 not permitted by policy",
      reason: "endpoint evil.example.com:443 is not allowed by any policy",
    });
    expect(body.next).toContain("evil.example.com");
    expect(fixture.dialled).toEqual([]);
  });

  test.each([
    ["User-Agent", "User-Agent: curl/8"],
    ["Proxy-Connection", "Proxy-Connection: Keep-Alive"],
  ])("a client that introduces itself (%s) is refused inside TLS, where it shows the reason", async (_, line) => {
    const socket = await fixture.proxy();
    socket.write(`CONNECT evil.example.com:443 HTTP/1.1\r\nHost: evil.example.com:443\r\n${line}\r\n\r\n`);
    expect((await once(socket, "data")).toString()).toMatch(/^HTTP\/1\.1 200 /);
    const tls = connectTls({ socket, servername: "evil.example.com", rejectUnauthorized: false });
    tls.write("GET / HTTP/1.1\r\nHost: evil.example.com\r\n\r\n");
    const answer = await readAll(tls);
    expect(answer).toMatch(/^HTTP\/1\.1 403 /);
    expect(jsonOf(answer)).toMatchObject({
      error: "policy_denied",
      reason: "endpoint evil.example.com:443 is not allowed by any policy",
    });
    expect(fixture.dialled).toEqual([]);
  });

  test.each([
    ["a bare address spelling", "127.1:443"],
    ["a decimal address", "2130706433:443"],
    ["a hexadecimal address", "0x7f000001:443"],
    ["an octal address", "0177.0.0.1:443"],
    ["no port", "api.example.com"],
    ["port 0", "api.example.com:0"],
    ["port 65536", "api.example.com:65536"],
    ["user information", "user@api.example.com:443"],
    ["a path", "api.example.com:443/"],
    ["unbalanced brackets", "[::1:443"],
    ["a zone", "[fe80::1%25lo]:443"],
  ])("CONNECT with %s is malformed", async (_, authority) => {
    const socket = await fixture.proxy();
    socket.write(`CONNECT ${authority} HTTP/1.1\r\nHost: x\r\n\r\n`);
    expect(await readAll(socket)).toMatch(/^HTTP\/1\.1 400 /);
    expect(fixture.dialled).toEqual([]);
  });

  test("a name that resolves to loopback is refused although the policy names it", async () => {
    const socket = await fixture.proxy();
    socket.write("CONNECT loop.example.com:80 HTTP/1.1\r\nHost: loop.example.com\r\n\r\n");
    const answer = await readAll(socket);
    expect(jsonOf(answer)).toMatchObject({
      error: "ssrf_denied",
      detail: "CONNECT loop.example.com:80 blocked: declared endpoint check failed",
    });
    expect(fixture.dialled).toEqual([]);
    expect(fixture.events.connections[0]).toMatchObject({ outcome: "denied", engine: "ssrf" });
  });

  test("plain http in absolute form is decided and forwarded, request after request", async () => {
    const seen: string[] = [];
    await fixture.http("plain.example.com", (req, res) => {
      seen.push(`${req.method} ${req.url} ${req.headers.host} ${req.headers.via} ${req.headers["proxy-connection"]}`);
      res.end("plain");
    });
    const socket = await fixture.proxy();
    const text =
      "GET http://plain.example.com/a?b=%20c HTTP/1.1\r\nHost: evil.example.com\r\nProxy-Connection: keep-alive\r\n\r\n";
    expect(await request(socket, text)).toMatchObject({ status: 200, body: "plain" });
    expect(await request(socket, text)).toMatchObject({ status: 200, body: "plain" });
    const denied = await request(socket, "GET http://other.example.com/ HTTP/1.1\r\nHost: other.example.com\r\n\r\n");
    expect(denied.status).toBe(403);
    expect(JSON.parse(denied.body)).toMatchObject({
      error: "policy_denied",
      detail: "GET other.example.com:80/ not permitted by policy",
    });
    expect(seen).toEqual(Array(2).fill("GET /a?b=%20c plain.example.com 1.1 openshell-sandbox undefined"));
    socket.destroy();
  });

  test("https URIs, other schemes and origin form on the proxy port are told what to do", async () => {
    for (const [target, error] of [
      ["https://api.example.com/", "use_connect"],
      ["ftp://api.example.com/", "unsupported_proxy_scheme"],
      ["/", "invalid_proxy_request"],
    ]) {
      const socket = await fixture.proxy();
      socket.write(`GET ${target} HTTP/1.1\r\nHost: api.example.com\r\n\r\n`);
      const answer = await readAll(socket);
      expect(answer).toMatch(/^HTTP\/1\.1 400 /);
      expect(jsonOf(answer).error).toBe(error);
    }
  });

  test("tls: skip passes bytes unchanged in both directions, with half-close", async () => {
    await fixture.tcp("raw.example.com", 9000, (socket) => {
      const hash = createHash("sha256");
      socket.on("data", (chunk) => hash.update(chunk));
      socket.on("end", () => socket.end(hash.digest("hex")));
    });
    const socket = await fixture.tunnel("raw.example.com:9000");
    const bytes = Buffer.alloc(3_000_000, "x\0y\r\n\r\n");
    socket.end(bytes);
    expect(await readAll(socket)).toBe(createHash("sha256").update(bytes).digest("hex"));
  });

  test("an unreachable upstream of a raw tunnel is a 502 instead of a 200", async () => {
    await expect(fixture.tunnel("raw.example.com:9000")).rejects.toThrow(/502[\s\S]*upstream_unreachable/);
  });
});

describe("captured connections", () => {
  test("a synthetic address leads to its name, by TLS and inspection", async () => {
    await fixture.https("api.example.com", (req, res) => res.end(`got ${req.url}`));
    const address = await resolveName("api.example.com");
    expect(address).toMatch(/^198\.1[89]\./);
    const tls = await fixture.tls(await fixture.capture(address, 443), "api.example.com");
    expect(await request(tls, "GET /x HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).toMatchObject({ body: "got /x" });
    tls.destroy();
  });

  test("a name that the policy does not mention resolves, and is refused inside TLS with the reason", async () => {
    const tls = await fixture.tls(
      await fixture.capture(await resolveName("evil.example.com"), 443),
      "evil.example.com",
    );
    tls.write("GET / HTTP/1.1\r\nHost: evil.example.com\r\n\r\n");
    const answer = await readAll(tls);
    expect(answer).toMatch(/^HTTP\/1\.1 403 /);
    expect(jsonOf(answer)).toMatchObject({
      error: "policy_denied",
      reason: expect.stringContaining("evil.example.com:443"),
    });
    expect(fixture.dialled).toEqual([]);
  });

  test("plain http to a refused name gets the reason as well", async () => {
    const socket = await fixture.capture(await resolveName("evil.example.com"), 80);
    socket.write("GET / HTTP/1.1\r\nHost: evil.example.com\r\n\r\n");
    expect(jsonOf(await readAll(socket))).toMatchObject({ error: "policy_denied" });
  });

  test("other protocols to a refused destination see a break", async () => {
    const socket = await fixture.capture("8.8.8.8", 22);
    socket.write("SSH-2.0-x\r\n");
    expect(await readAll(socket)).toBe("");
    expect(fixture.events.connections[0]).toMatchObject({ outcome: "denied", host: "8.8.8.8", port: 22 });
  });

  test("a synthetic address that was never handed out stands for nothing", async () => {
    const socket = await fixture.capture("198.19.255.1", 80);
    socket.write("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect(jsonOf(await readAll(socket)).reason).toContain("transparent_tcp_mapping_missing");
  });

  test.each(["169.254.169.254", "10.0.0.1", "::ffff:169.254.169.254", "fe80::1", "64:ff9b::7f00:1"])(
    "the address %s is refused",
    async (address) => {
      const socket = await fixture.capture(address, 80);
      socket.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
      expect(await readAll(socket)).toMatch(/^HTTP\/1\.1 403 /);
      expect(fixture.dialled).toEqual([]);
    },
  );

  async function resolveName(name: string): Promise<string> {
    const { Resolver } = await import("node:dns/promises");
    const resolver = new Resolver();
    resolver.setServers([`127.0.0.1:${fixture.dnsPort}`]);
    return (await resolver.resolve4(name))[0]!;
  }
});

describe("inspection", () => {
  test("a request that the rules do not permit is refused, and the connection goes on", async () => {
    await fixture.https("api.example.com", (_, res) => res.end("ok"));
    const tls = await inspected();
    const denied = await request(tls, "DELETE /one HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\n\r\nabc");
    expect(denied.status).toBe(403);
    expect(denied.head).toContain("X-OpenShell-Policy: api");
    expect(JSON.parse(denied.body)).toMatchObject({
      error: "policy_denied",
      policy: "api",
      rule: "DELETE /one",
      detail: "DELETE /one not permitted by policy",
      layer: "l7",
      protocol: "rest",
      method: "DELETE",
      path: "/one",
      host: "api.example.com",
      port: 443,
      binary: EXE,
      rule_missing: { type: "rest_allow", layer: "l7", method: "DELETE", path: "/one" },
    });
    expect(await request(tls, "GET /one HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).toMatchObject({ body: "ok" });
    tls.destroy();
  });

  test.each([
    ["an encoded letter", "/%73ecret/x"],
    ["dot segments", "/a/../secret/x"],
    ["encoded dot segments", "/a/%2e%2e/secret/x"],
    ["double slashes", "//secret//x"],
    ["parameters", "/secret;a=b/x"],
    ["parameters that hide dots", "/a/..;/secret/x"],
    ["a current-directory segment", "/./secret/x"],
  ])("a deny rule is not fooled by %s", async (_, target) => {
    await fixture.https("api.example.com", (_req, res) => res.end("leaked"));
    const tls = await inspected();
    const answer = await request(tls, `GET ${target} HTTP/1.1\r\nHost: api.example.com\r\n\r\n`);
    expect(answer.status).toBe(403);
    expect(fixture.dialled).toEqual([]);
    tls.destroy();
  });

  test.each([
    ["another Host", "GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n"],
    ["another port", "GET / HTTP/1.1\r\nHost: api.example.com:8443\r\n\r\n"],
    ["an absolute target elsewhere", "GET https://other.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n"],
    [
      "a Host elsewhere than the absolute target",
      "GET https://api.example.com/ HTTP/1.1\r\nHost: other.example.com\r\n\r\n",
    ],
    ["another scheme", "GET http://api.example.com:443/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n"],
    ["an empty Host", "GET / HTTP/1.1\r\nHost: \r\n\r\n"],
  ])("a request that names %s is refused and found", async (_, text) => {
    await fixture.https("api.example.com", (_req, res) => res.end("leaked"));
    const tls = await inspected();
    tls.write(text);
    expect(jsonOf(await readAll(tls)).error).toBe("request_authority_mismatch");
    expect(fixture.events.findings[0]?.uid).toBe("openshell.http.request_authority_mismatch");
    expect(fixture.dialled).toEqual([]);
  });

  test("a TLS server name that differs from the connection is refused", async () => {
    const tls = await fixture.tls(await fixture.tunnel("api.example.com:443"), "other.example.com");
    tls.write("GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n");
    expect(jsonOf(await readAll(tls)).error).toBe("request_authority_mismatch");
    expect(fixture.dialled).toEqual([]);
  });

  test("a client that offers only h2 fails in the handshake, and the event says why", async () => {
    const socket = await fixture.tunnel("api.example.com:443");
    await expect(fixture.tls(socket, "api.example.com", ["h2"])).rejects.toThrow();
    expect(fixture.events.connections.at(-1)).toMatchObject({ outcome: "denied", code: "unsupported_l7_protocol" });
  });

  test("a client that prefers h2 gets http/1.1", async () => {
    const tls = await fixture.tls(await fixture.tunnel("api.example.com:443"), "api.example.com", ["h2", "http/1.1"]);
    expect(tls.alpnProtocol).toBe("http/1.1");
    tls.destroy();
  });

  test("bytes that are no HTTP are refused on an inspected endpoint", async () => {
    const tls = await inspected();
    tls.write("\x00\x01\x02binary");
    expect(jsonOf(await readAll(tls)).error).toBe("unsupported_l7_protocol");
    const h2 = await inspected();
    h2.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    expect(jsonOf(await readAll(h2)).error).toBe("unsupported_l7_protocol");
    expect(fixture.dialled).toEqual([]);
  });

  test.each(["websocket", "h2c"])("an upgrade to %s is refused", async (protocol) => {
    const tls = await inspected();
    const text = `GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: ${protocol}\r\n\r\n`;
    const answer = await request(tls, text);
    expect(answer.status).toBe(403);
    expect(JSON.parse(answer.body).error).toBe("unsupported_l7_protocol");
    expect(fixture.dialled).toEqual([]);
    tls.destroy();
  });

  test("an upstream certificate that is not trusted is a 502 that says so", async () => {
    const { createServer } = await import("node:https");
    const other = await fixture.inspectionCa.issue("api.example.com");
    const server = createServer(other, (_, res) => res.end());
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    fixture.routes.set("93.184.216.34:443", (server.address() as { port: number }).port);
    const tls = await inspected();
    const answer = await request(tls, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect(answer.status).toBe(502);
    expect(JSON.parse(answer.body)).toMatchObject({
      error: "upstream_unreachable",
      detail: expect.stringContaining("is not trusted"),
      next: expect.stringContaining("additional_ca_bundle"),
    });
    tls.destroy();
    server.close();
  });

  test("an upstream certificate for another name is refused", async () => {
    await fixture.https("other.example.com", (_, res) => res.end());
    fixture.routes.set("93.184.216.34:443", fixture.routes.get("93.184.216.35:443")!);
    const tls = await inspected();
    expect((await request(tls, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).status).toBe(502);
    tls.destroy();
  });
});

describe("bodies", () => {
  test("uploads stream in both framings and arrive unchanged", async () => {
    await fixture.https("api.example.com", (req, res) => {
      const hash = createHash("sha256");
      req.on("data", (chunk) => hash.update(chunk));
      req.on("end", () =>
        res.end(`${hash.digest("hex")} ${req.headers["content-length"]} ${req.headers["transfer-encoding"]}`),
      );
    });
    const bytes = Buffer.alloc(2_000_000, "0123456789abcdef");
    const digest = createHash("sha256").update(bytes).digest("hex");
    const tls = await inspected();
    tls.write(`POST /upload/a HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: ${bytes.length}\r\n\r\n`);
    tls.write(bytes);
    expect((await readResponse(tls)).body).toBe(`${digest} ${bytes.length} undefined`);
    tls.write("POST /upload/b HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (let at = 0; at < bytes.length; at += 70_000) {
      const piece = bytes.subarray(at, at + 70_000);
      tls.write(`${piece.length.toString(16)};ext=1\r\n`);
      tls.write(piece);
      tls.write("\r\n");
    }
    tls.write("0\r\nX-Trailer: t\r\n\r\n");
    expect((await readResponse(tls)).body).toBe(`${digest} undefined chunked`);
    tls.destroy();
  });

  test("a response streams piece by piece", async () => {
    let finish: (() => void) | undefined;
    await fixture.https("api.example.com", (_, res) => {
      res.write("data: 1\n\n");
      finish = () => res.end("data: 2\n\n");
    });
    const tls = await inspected();
    tls.write("GET /events HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    await readUntil(tls, "data: 1\n\n");
    finish!();
    await readUntil(tls, "data: 2\n\n\r\n0\r\n\r\n");
    tls.destroy();
  });

  test("Expect: 100-continue is answered by the origin before the body goes", async () => {
    await fixture.https("api.example.com", (req, res) => {
      req.resume();
      req.on("end", () => res.end("done"));
    });
    const tls = await inspected();
    tls.write("POST /echo HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    expect(await readUntil(tls, "\r\n\r\n")).toMatch(/^HTTP\/1\.1 100 /);
    tls.write("body");
    expect(await readResponse(tls)).toMatchObject({ status: 200, body: "done" });
    tls.destroy();
  });

  test("an origin that breaks off in a body is never made to look complete", async () => {
    await fixture.https("api.example.com", (_, res) => {
      res.writeHead(200, { "Transfer-Encoding": "chunked" });
      res.write("half");
      setTimeout(() => res.destroy(), 20);
    });
    const tls = await inspected();
    tls.write("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    const answer = await readAll(tls);
    expect(answer).toContain("half");
    expect(answer).not.toContain("0\r\n\r\n");
  });

  test("a body without framing ends with its connection and reaches the client chunked", async () => {
    await fixture.tcp("plain.example.com", 80, (socket) => {
      socket.on("data", () => socket.end("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil close"));
    });
    const socket = await fixture.proxy();
    const answer = await request(socket, "GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n");
    expect(answer).toMatchObject({ status: 200, body: "until close" });
    socket.destroy();
  });

  test.each([
    ["two final answers", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb"],
    ["bytes after the body", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naxyz"],
  ])("an origin that sends %s loses its connection", async (_, text) => {
    let connections = 0;
    await fixture.tcp("plain.example.com", 80, (socket) => {
      connections += 1;
      socket.on("data", () => socket.write(text));
      socket.on("error", () => undefined);
    });
    const socket = await fixture.proxy();
    for (let i = 0; i < 2; i += 1) {
      const answer = await request(socket, "GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n");
      expect(answer.body).toBe("a");
    }
    expect(connections).toBe(2);
    socket.destroy();
  });

  test.each([
    ["a status line of its own", "ICY 200 OK\r\n\r\n"],
    ["both framings", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"],
    ["an unasked switch", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"],
    [
      "nine interim responses",
      `${"HTTP/1.1 102 Processing\r\n\r\n".repeat(9)}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n`,
    ],
    ["a folded field", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n"],
  ])("an origin that answers with %s is a bad gateway", async (_, text) => {
    await fixture.tcp("plain.example.com", 80, (socket) => {
      socket.on("data", () => socket.write(text));
      socket.on("error", () => undefined);
    });
    const socket = await fixture.proxy();
    socket.write("GET http://plain.example.com/ HTTP/1.0\r\n\r\n");
    expect(await readAll(socket)).toContain(" 502 Bad Gateway\r\n");
  });

  test("a GET on a stale kept connection is repeated, a POST is not lost silently", async () => {
    let connections = 0;
    await fixture.tcp("plain.example.com", 80, (socket) => {
      connections += 1;
      socket.on("error", () => undefined);
      let requests = 0;
      socket.on("data", () => {
        requests += 1;
        if (requests > 1) socket.destroy();
        else socket.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
      });
    });
    const socket = await fixture.proxy();
    const get = "GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n";
    expect((await request(socket, get)).body).toBe("ok");
    expect((await request(socket, get)).body).toBe("ok");
    expect(connections).toBe(2);
    const post = "POST http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\nContent-Length: 1\r\n\r\nx";
    expect((await request(socket, post)).status).toBe(502);
    socket.destroy();
  });
});

describe("generations", () => {
  const withoutApi = POLICY.replace(
    "host: api.example.com\n        ports: [443]",
    "host: other.example.com\n        ports: [443]",
  );

  test("the next request on an open connection is decided by the new policy", async () => {
    await fixture.https("api.example.com", (_, res) => res.end("ok"));
    const tls = await inspected();
    expect((await request(tls, "GET /a HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).status).toBe(200);
    fixture.publish(POLICY.replace('method: GET, path: "/**"', 'method: GET, path: "/b"'));
    expect((await request(tls, "GET /a HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).status).toBe(403);
    expect((await request(tls, "GET /b HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).status).toBe(200);
    tls.destroy();
  });

  test("a download in flight survives an unrelated change and is cut by one that refuses it, with one event", async () => {
    let response: { write(text: string): void; end(text: string): void } | undefined;
    await fixture.https("api.example.com", (_, res) => {
      response = res;
      res.write("one");
    });
    const tls = await inspected();
    tls.on("error", () => undefined);
    tls.write("GET /a HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    await readUntil(tls, "one");
    fixture.publish(POLICY.replace("port: 9000", "port: 9001"));
    response!.write("two");
    await readUntil(tls, "two");
    const before = fixture.events.connections.length + fixture.events.requests.length;
    fixture.publish(withoutApi);
    expect(await readAll(tls)).not.toContain("0\r\n\r\n");
    expect(fixture.events.connections.length + fixture.events.requests.length).toBe(before + 1);
    expect(fixture.events.connections.at(-1)).toMatchObject({ outcome: "ended", host: "api.example.com" });
  });

  test("an unchanged policy closes nothing and reports nothing", async () => {
    await fixture.tcp("raw.example.com", 9000, (socket) => socket.pipe(socket));
    const socket = await fixture.tunnel("raw.example.com:9000");
    const before = fixture.events.connections.length;
    fixture.publish(POLICY);
    socket.write("ping");
    expect(await readUntil(socket, "ping")).toBe("ping");
    expect(fixture.events.connections.length).toBe(before);
    socket.destroy();
  });

  test("a raw tunnel is cut when its endpoint is to be inspected", async () => {
    await fixture.tcp("raw.example.com", 9000, (socket) => socket.pipe(socket));
    const socket = await fixture.tunnel("raw.example.com:9000");
    fixture.publish(POLICY.replace("port: 9000, tls: skip", "port: 9000"));
    expect(await readAll(socket)).toBe("");
    expect(fixture.events.connections.at(-1)).toMatchObject({ outcome: "ended", code: "policy_changed" });
  });
});

describe("credentials", () => {
  const SECRET = "sk-live-0123456789abcdef";

  function source(value = SECRET, endpoints = [{ host: "api.example.com", port: 443, path: "" }], identity = "id-1") {
    const state = new CredentialState();
    const applied = state.apply({
      revision: value,
      values: [
        {
          name: "API_KEY",
          value: new Secret(value),
          classification: "static_credential",
          endpoints,
          identity,
          expiresAt: undefined,
          provider: "api",
        },
      ],
    });
    if (!applied.ok) throw new Error(applied.problem.message);
    return {
      credentials: createCredentialSource(state.current, Date.now),
      placeholder: state.current.childEnvironment().get("API_KEY")!,
    };
  }

  test("the origin gets the value, the agent gets its placeholder back, and the echo is a finding", async () => {
    const { credentials, placeholder } = source();
    fixture.publish(POLICY, credentials);
    let seen = "";
    await fixture.https("api.example.com", (req, res) => {
      seen = `${req.headers.authorization} ${req.headers["accept-encoding"]}`;
      res.setHeader("X-Echo", String(req.headers.authorization));
      res.write(`your key is ${SECRET.slice(0, 10)}`);
      setTimeout(() => res.end(`${SECRET.slice(10)}.`), 10);
    });
    const tls = await inspected();
    const text = `GET / HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer ${placeholder}\r\nAccept-Encoding: gzip\r\n\r\n`;
    const answer = await request(tls, text);
    expect(seen).toBe(`Bearer ${SECRET} identity`);
    expect(answer.body).toBe(`your key is ${placeholder}.`);
    expect(answer.head).toContain(`X-Echo: Bearer ${placeholder}`);
    expect(answer.head + answer.body).not.toContain(SECRET);
    expect(fixture.events.findings.map((finding) => finding.uid)).toEqual(["openshell.credentials.response_leak"]);
    expect(JSON.stringify(fixture.events)).not.toContain(SECRET);
    tls.destroy();
  });

  test("a compressed echo is opened and searched", async () => {
    const { gzipSync } = await import("node:zlib");
    const { credentials, placeholder } = source();
    fixture.publish(POLICY, credentials);
    await fixture.https("api.example.com", (_, res) => {
      res.setHeader("Content-Encoding", "gzip");
      res.end(gzipSync(`x ${SECRET} y`));
    });
    const tls = await inspected();
    const answer = await request(tls, `GET / HTTP/1.1\r\nHost: api.example.com\r\nX-Api-Key: ${placeholder}\r\n\r\n`);
    expect(answer.body).toBe(`x ${placeholder} y`);
    expect(answer.head).not.toMatch(/content-encoding/i);
    tls.destroy();
  });

  test("a placeholder for another endpoint is refused and found; nothing is dialled", async () => {
    const { credentials, placeholder } = source(SECRET, [{ host: "other.example.com", port: 443, path: "" }]);
    fixture.publish(POLICY, credentials);
    const tls = await inspected();
    const answer = await request(
      tls,
      `GET / HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer ${placeholder}\r\n\r\n`,
    );
    expect(answer.status).toBe(403);
    expect(JSON.parse(answer.body).error).toBe("credential_endpoint_mismatch");
    expect(fixture.events.findings[0]?.uid).toBe("openshell.provider_credential.endpoint_mismatch");
    expect(fixture.dialled).toEqual([]);
    tls.destroy();
  });

  test("a credential never goes over plain http", async () => {
    const { credentials, placeholder } = source(SECRET, [{ host: "plain.example.com", port: 80, path: "" }]);
    fixture.publish(POLICY, credentials);
    const socket = await fixture.proxy();
    const text = `GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\nX-Key: ${placeholder}\r\n\r\n`;
    expect((await request(socket, text)).status).toBe(403);
    expect(fixture.dialled).toEqual([]);
    socket.destroy();
  });

  test("TRACE with a credential is refused", async () => {
    const { credentials, placeholder } = source();
    fixture.publish(POLICY, credentials);
    const tls = await inspected();
    expect(
      (await request(tls, `TRACE / HTTP/1.1\r\nHost: api.example.com\r\nX-Key: ${placeholder}\r\n\r\n`)).status,
    ).toBe(403);
    expect(fixture.dialled).toEqual([]);
    tls.destroy();
  });

  test("a placeholder in a body never reaches the origin", async () => {
    const { credentials, placeholder } = source();
    fixture.publish(POLICY, credentials);
    let received = "";
    await fixture.https("api.example.com", (req) => {
      req.on("data", (chunk) => {
        received += chunk;
      });
      req.on("error", () => undefined);
    });
    const tls = await inspected();
    const body = `{"key":"${placeholder}"}`;
    tls.write(`POST /echo HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
    const answer = await readAll(tls);
    expect(answer).toMatch(/^HTTP\/1\.1 403 /);
    expect(jsonOf(answer).error).toBe("credential_placeholder_in_request_body");
    expect(received).not.toContain("openshell:resolve");
    expect(fixture.events.findings[0]?.uid).toBe("openshell.credentials.traffic_uninspectable");
  });

  test("a rotated value is used by the next request, with the same placeholder", async () => {
    const first = source();
    const second = source("sk-live-rotated-987654");
    expect(second.placeholder).toBe(first.placeholder);
    fixture.publish(POLICY, first.credentials);
    const seen: string[] = [];
    await fixture.https("api.example.com", (req, res) => {
      seen.push(String(req.headers["x-key"]));
      res.end();
    });
    const tls = await inspected();
    const text = `GET / HTTP/1.1\r\nHost: api.example.com\r\nX-Key: ${first.placeholder}\r\n\r\n`;
    await request(tls, text);
    fixture.publish(POLICY, second.credentials);
    await request(tls, text);
    expect(seen).toEqual([SECRET, "sk-live-rotated-987654"]);
    tls.destroy();
  });

  test("a withdrawn credential ends the request that carries it", async () => {
    const { credentials, placeholder } = source();
    fixture.publish(POLICY, credentials);
    await fixture.https("api.example.com", (_, res) => res.write("start"));
    const tls = await inspected();
    tls.on("error", () => undefined);
    tls.write(`GET / HTTP/1.1\r\nHost: api.example.com\r\nX-Key: ${placeholder}\r\n\r\n`);
    await readUntil(tls, "start");
    fixture.publish(POLICY, new Fixed());
    await readAll(tls);
    expect(fixture.events.requests.at(-1)).toMatchObject({ outcome: "ended", engine: "credential" });
  });

  /** No credential at all. */
  class Fixed {
    redact = (text: string): string => text;
    allows = (): boolean => false;
    rewrite = () => ({ kind: "none", scanBody: false }) as const;
  }
});

describe("identity", () => {
  test("a process that nobody can name is refused", async () => {
    await fixture[Symbol.asyncDispose]();
    fixture = await Fixture.create({ owners: () => [] });
    const socket = await fixture.proxy();
    socket.write("CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect(jsonOf(await readAll(socket))).toMatchObject({
      error: "policy_denied",
      reason: expect.stringContaining("failed to resolve peer binary"),
    });
  });

  test("every owner of a shared socket must be allowed", async () => {
    await fixture[Symbol.asyncDispose]();
    fixture = await Fixture.create({ owners: () => [...ownProcess(), ...ownProcess("/bin/sh")] });
    const socket = await fixture.proxy();
    socket.write("CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect(jsonOf(await readAll(socket)).reason).toContain("binary '/bin/sh' not allowed");
  });

  test("after a second of idling the owner is looked up again", async () => {
    let exe = EXE;
    await fixture[Symbol.asyncDispose]();
    fixture = await Fixture.create({ owners: () => ownProcess(exe) });
    await fixture.https("api.example.com", (_, res) => res.end("ok"));
    const tls = await inspected();
    expect((await request(tls, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).status).toBe(200);
    exe = "/bin/sh";
    expect((await request(tls, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).status).toBe(200);
    await new Promise((resolve) => setTimeout(resolve, 1_100));
    expect((await request(tls, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).status).toBe(403);
    tls.destroy();
  });
});

describe("limits", () => {
  test("connections above the limit wait for one to end", async () => {
    await fixture[Symbol.asyncDispose]();
    fixture = await Fixture.create({ deps: { limits: { flows: 2 } } });
    await fixture.http("plain.example.com", (_, res) => res.end("ok"));
    const [first, second] = [await fixture.proxy(), await fixture.proxy()];
    const third = await fixture.proxy();
    third.write("GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n");
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(fixture.egress.flows).toBe(2);
    expect(third.bytesRead).toBe(0);
    first.destroy();
    expect((await readResponse(third)).body).toBe("ok");
    second.destroy();
    third.destroy();
  });

  test("clients that do not read stop their origins; what is held stays within the sandbox's limit", async () => {
    await fixture[Symbol.asyncDispose]();
    fixture = await Fixture.create({ deps: { limits: { bufferedBytes: 2 << 20 } } });
    let written = 0;
    await fixture.http("plain.example.com", (_, res) => {
      const piece = Buffer.alloc(1 << 20);
      const more = (): void => {
        while (written < 400 << 20 && !res.destroyed) {
          written += piece.length;
          if (!res.write(piece)) {
            res.once("drain", more);
            return;
          }
        }
      };
      more();
    });
    const sockets = await Promise.all(Array.from({ length: 20 }, () => fixture.proxy()));
    for (const socket of sockets) {
      socket.pause();
      socket.write("GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n");
    }
    // The kernel's own buffers grow for a while.
    for (let before = -1; before !== written; ) {
      before = written;
      await new Promise((resolve) => setTimeout(resolve, 400));
    }
    expect(written).toBeLessThan(400 << 20);
    // A connection may overshoot by what it reads and writes at once.
    expect(fixture.egress.bufferedBytes).toBeLessThan((2 << 20) + 20 * (256 << 10));
    expect(fixture.egress.bufferedBytes).toBeGreaterThan(1 << 20);
    const closed = sockets.map((socket) => readAll(socket));
    for (const socket of sockets) socket.destroy();
    await Promise.all(closed);
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(fixture.egress.bufferedBytes).toBe(0);
    expect(fixture.egress.flows).toBe(0);
  });

  test("a head that is too large is refused before anything is decided", async () => {
    const socket = await fixture.proxy();
    socket.write(`GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\nX: ${"a".repeat(9000)}\r\n\r\n`);
    expect(await readAll(socket)).toMatch(/^HTTP\/1\.1 431 /);
  });
});
