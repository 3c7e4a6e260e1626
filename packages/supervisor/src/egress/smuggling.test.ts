import type { TLSSocket } from "node:tls";
import { systemClock } from "@openshell/base";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { Fixture, readAll, readResponse } from "./testing/fixture.ts";

/** What an agent may try so that the origin sees another request than the one that was judged. The origin records raw bytes. */

let fixture: Fixture;
let received = "";

beforeAll(async () => {
  fixture = await Fixture.create();
  await fixture.tcp("plain.example.com", 80, (socket) => {
    socket.on("error", () => undefined);
    socket.on("data", (chunk) => {
      received += chunk.toString("latin1");
      if (/\r\n\r\n/.test(received)) socket.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
  });
  await fixture.https("api.example.com", (req, res) => {
    received += `${req.method} ${req.url}\n`;
    req.resume();
    req.on("end", () => res.end("ok"));
  });
});
beforeEach(() => {
  received = "";
});
afterAll(async () => {
  await fixture[Symbol.asyncDispose]();
});

async function send(text: string): Promise<string> {
  const socket = await fixture.proxy();
  socket.end(text, "latin1");
  return readAll(socket);
}

async function inspected(): Promise<TLSSocket> {
  return fixture.tls(await fixture.tunnel("api.example.com:443"), "api.example.com");
}

const HEAD = "POST http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n";
const HIDDEN = "GET /hidden HTTP/1.1\r\nHost: plain.example.com\r\n\r\n";

describe("framing", () => {
  test.each<[string, string]>([
    ["CL.TE", `${HEAD}Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX${HIDDEN}`],
    ["TE.CL", `${HEAD}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n${HIDDEN}`],
    [
      "TE.TE with a blank before the colon",
      `${HEAD}Transfer-Encoding: chunked\r\nTransfer-Encoding : x\r\n\r\n0\r\n\r\n${HIDDEN}`,
    ],
    [
      "TE.TE with another coding",
      `${HEAD}Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n\r\n0\r\n\r\n${HIDDEN}`,
    ],
    ["TE with a tab", `${HEAD}Transfer-Encoding:\tchunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n${HIDDEN}`],
    ["CL.CL", `${HEAD}Content-Length: 0\r\nContent-Length: 44\r\n\r\n${HIDDEN}`],
    ["a bare line feed in the head", `${HEAD}X: y\nContent-Length: 44\r\n\r\n${HIDDEN}`],
    ["a chunk size that overflows", `${HEAD}Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n${HIDDEN}`],
    ["a chunk line ended by a bare line feed", `${HEAD}Transfer-Encoding: chunked\r\n\r\n2\nxx\r\n0\r\n\r\n${HIDDEN}`],
    ["a chunk extension with a line feed", `${HEAD}Transfer-Encoding: chunked\r\n\r\n0;\n\r\n\r\n${HIDDEN}`],
    ["a folded field", `${HEAD}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n${HIDDEN}`],
    [
      "an upgrade to h2c",
      `${HEAD}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n\r\n${HIDDEN}`,
    ],
    [
      "a Connection that names Content-Length",
      `${HEAD}Connection: Content-Length\r\nContent-Length: 44\r\n\r\n${HIDDEN}`,
    ],
  ])("%s does not carry a hidden request", async (_, text) => {
    const answer = await send(text);
    expect(answer).not.toContain("HTTP/1.1 200");
    expect(received).not.toContain("/hidden");
  });

  test("a second request on the connection is judged like the first", async () => {
    const tls = await inspected();
    tls.write(
      "GET /one HTTP/1.1\r\nHost: api.example.com\r\n\r\nDELETE /two HTTP/1.1\r\nHost: api.example.com\r\n\r\nGET /three HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    );
    expect((await readResponse(tls)).status).toBe(200);
    expect((await readResponse(tls)).status).toBe(403);
    expect((await readResponse(tls)).status).toBe(200);
    expect(received).toBe("GET /one\nGET /three\n");
    tls.destroy();
  });

  test("the body of a refused request is not read as a request", async () => {
    const tls = await inspected();
    const hidden = "GET /hidden HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
    tls.write(`DELETE /x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: ${hidden.length}\r\n\r\n${hidden}`);
    tls.write("GET /after HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect((await readResponse(tls)).status).toBe(403);
    expect((await readResponse(tls)).status).toBe(200);
    expect(received).toBe("GET /after\n");
    tls.destroy();
  });

  test("what follows a refused chunked request is never looked at", async () => {
    const tls = await inspected();
    tls.write("DELETE /x HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n");
    tls.write("GET /hidden HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect(await readAll(tls)).toContain("403 Forbidden");
    expect(received).toBe("");
  });
});

describe("fields", () => {
  test("those of one connection stay on it, named ones too; the rest arrives once and in order", async () => {
    await send(
      "GET http://plain.example.com/p HTTP/1.1\r\nHost: elsewhere.example.com\r\nConnection: X-Secret, close\r\nX-Secret: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n" +
        "Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nTrailer: x\r\nA: 1\r\nB: 2\r\na: 3\r\n\r\n",
    );
    expect(received).toBe(
      "GET /p HTTP/1.1\r\nHost: plain.example.com\r\nA: 1\r\nB: 2\r\na: 3\r\nVia: 1.1 openshell-sandbox\r\n\r\n",
    );
  });

  test("HTTP/1.0 is asked for upstream as HTTP/1.1 and answered as it was asked", async () => {
    const answer = await send("GET http://plain.example.com/p HTTP/1.0\r\n\r\n");
    expect(received).toContain("GET /p HTTP/1.1\r\nHost: plain.example.com\r\n");
    expect(answer).toMatch(/^HTTP\/1\.1 200 OK\r\n[\s\S]*Connection: close\r\n/);
  });

  test("the path that was judged is the path that is sent", async () => {
    await send(
      "GET http://plain.example.com/a/./b//c/%7euser;x/../d?q=%41&r=a%2Fb HTTP/1.1\r\nHost: plain.example.com\r\nConnection: close\r\n\r\n",
    );
    expect(received).toContain("GET /a/b/c/d?q=%41&r=a%2Fb HTTP/1.1\r\n");
  });
});

describe("connections", () => {
  test("CONNECT inside an inspected connection opens nothing", async () => {
    const tls = await inspected();
    tls.write("CONNECT other.example.com:443 HTTP/1.1\r\nHost: other.example.com:443\r\n\r\n");
    expect(await readAll(tls)).toContain("400 Bad Request");
    expect(received).toBe("");
  });

  test("bytes sent along with CONNECT are inspected like any others", async () => {
    const socket = await fixture.proxy();
    socket.write(
      "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\nGET /hidden HTTP/1.1\r\nHost: evil.example.com\r\n\r\n",
    );
    const answer = await readAll(socket);
    expect(answer).toContain("200 Connection Established");
    expect(answer).toContain("request_authority_mismatch");
    expect(received).toBe("");
  });

  test("a CONNECT with a body is malformed", async () => {
    expect(await send("CONNECT api.example.com:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")).toMatch(
      /^HTTP\/1\.1 400 /,
    );
  });

  test("a sandbox that goes away ends everything, in whatever state it is", async () => {
    const own = await Fixture.create();
    await own.tcp("raw.example.com", 9000, (socket) => socket.on("error", () => undefined));
    const sockets = [
      await own.proxy(),
      await own.tunnel("raw.example.com:9000"),
      await own.tunnel("api.example.com:443"),
    ];
    sockets[2]!.write(Buffer.from("160301", "hex"));
    const ended = sockets.map((socket) => readAll(socket));
    await own[Symbol.asyncDispose]();
    await Promise.all(ended);
    expect(own.egress.flows).toBe(0);
  });

  test("made-up host names cannot buy certificates without end", async () => {
    // Time stands still, so that the test does not depend on the machine's speed.
    const own = await Fixture.create({ policy: POLICY_WILD, deps: { clock: { ...systemClock, monotonic: () => 0 } } });
    let refused = 0;
    for (let i = 0; i < 110; i += 1) {
      const name = `n${i}.wild.example.com`;
      try {
        const tls = await own.tls(await own.tunnel(`${name}:443`), name);
        tls.destroy();
      } catch {
        refused += 1;
      }
    }
    expect(refused).toBe(10);
    expect(
      own.events.connections.some((event) => event.outcome === "failed" && event.reason.includes("More new TLS hosts")),
    ).toBe(true);
    await own[Symbol.asyncDispose]();
  });
});

const POLICY_WILD = `
version: 1
network_policies:
  wild:
    endpoints: [{host: "*.wild.example.com", port: 443, protocol: rest, enforcement: enforce, access: full}]
    binaries: [{path: "/**"}]
`;
