import { createHash } from "node:crypto";
import { once } from "node:events";
import { connect as connectTls } from "node:tls";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { EXE, Fixture, readAll, readResponse, readUntil, request } from "./testing/fixture.ts";

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
