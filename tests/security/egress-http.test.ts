import { expect } from "vitest";
import type { TestSandbox } from "../support/api.ts";
import { attack, openLab } from "../support/attack.ts";
import { CLIENT_SCRIPT, type SendOptions, send, sendAll, statuses } from "../support/attack-client.ts";
import type { TestHost } from "../support/internet/index.ts";

/** Past the rules of an inspected endpoint by HTTP: framing, authorities, paths, methods, protocols. */

const ALLOWED = "api.example-allowed.com";
const FORBIDDEN = "evil.example-other.net";
let allowed: TestHost;
let forbidden: TestHost;

/** GET below /public only; nothing below /public/private. */
const POLICY = `version: 1
network_policies:
  api:
    endpoints:
      - host: ${ALLOWED}
        ports: [80, 443]
        protocol: rest
        enforcement: enforce
        rules:
          - allow: {method: GET, path: "/public/**"}
          - allow: {method: POST, path: "/public/form"}
        deny_rules:
          - {method: "*", path: "/public/private/**"}
    binaries: [{path: "/**"}]
`;

const lab = openLab({
  scripts: CLIENT_SCRIPT,
  prepare: async (net, witness) => {
    allowed = await net.host(ALLOWED);
    forbidden = await net.host(FORBIDDEN);
    witness.trap(forbidden);
  },
  box: () => ({ policy: POLICY }),
});

const TLS: SendOptions = { to: [ALLOWED, 443], tls: true };
const PLAIN: SendOptions = { to: [ALLOWED, 80] };

function get(path: string, extra = "", host = ALLOWED): string {
  return `GET ${path} HTTP/1.1\r\nHost: ${host}\r\n${extra}\r\n`;
}

/** Every request that reached the allowed host is one that the policy allows. */
function expectOnlyAllowedRequests(): void {
  for (const { method, target, headers } of allowed.received().requests) {
    expect(`${method} ${target}`).toMatch(/^(GET \/public(\/(?!private)|\?|$)|POST \/public\/form)/);
    expect(headers.host?.replace(/:\d+$/, "")).toBe(ALLOWED);
  }
}

/** Sends each form over TLS and in the clear; nothing but allowed requests may arrive. Returns the answers' statuses. */
async function tryForms(box: TestSandbox, forms: Readonly<Record<string, string>>, via = [TLS]): Promise<string[]> {
  allowed.clearReceived();
  const shots = Object.entries(forms).flatMap(([name, bytes]) => via.map((how) => ({ ...how, name, bytes })));
  const answers = await sendAll(box, shots);
  expectOnlyAllowedRequests();
  return answers.map((answer, index) => `${shots[index]!.name}: ${statuses(answer).join(",")}`);
}

/** Each form was refused with a status of the family, or the connection was closed. */
function expectRefused(outcomes: readonly string[], expected: string): void {
  const pattern = new RegExp(`: (${expected.split(" or ").join("|").replace("closed", "")})$`);
  expect(outcomes.filter((line) => !pattern.test(line))).toEqual([]);
}

attack(
  "an allowed request, so that refusals below mean something",
  "exactly this request arrives at the allowed host",
  { root: "200", user: "200" },
  async ({ box }, expected) => {
    for (const how of [TLS, PLAIN]) {
      allowed.clearReceived();
      const answer = await send(box, get("/public/x"), how);
      expect(String(statuses(answer)), answer).toBe(expected);
      expect(allowed.received().requests.map((one) => one.target)).toEqual(["/public/x"]);
    }
  },
);

attack(
  "request smuggling: CL.TE, TE.CL, two lengths, odd codings",
  "no second request arrives",
  { root: "400", user: "400" },
  async ({ box }, expected) => {
    const inner = get("/secret");
    const post = (headers: string, body: string) =>
      `POST /public/form HTTP/1.1\r\nHost: ${ALLOWED}\r\n${headers}\r\n${body}`;
    const outcomes = await tryForms(box, {
      "CL.TE": post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", `0\r\n\r\n${inner}`),
      "TE.CL": post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", `5c\r\n${inner}\r\n0\r\n\r\n`),
      "two lengths": post("Content-Length: 0\r\nContent-Length: 50\r\n", inner),
      "length list": post("Content-Length: 0, 50\r\n", inner),
      "signed length": post("Content-Length: +0\r\n", inner),
      "negative length": post("Content-Length: -1\r\n", inner),
      "hex length": post("Content-Length: 0x10\r\n", inner),
      "huge length": post("Content-Length: 99999999999999999999\r\n", inner),
      "chunked twice": post("Transfer-Encoding: chunked, chunked\r\n", `0\r\n\r\n${inner}`),
      "chunked not last": post("Transfer-Encoding: chunked, gzip\r\n", `0\r\n\r\n${inner}`),
      identity: post("Transfer-Encoding: identity\r\nContent-Length: 0\r\n", inner),
      xchunked: post("Transfer-Encoding: xchunked\r\n", `0\r\n\r\n${inner}`),
      quoted: post('Transfer-Encoding: "chunked"\r\n', `0\r\n\r\n${inner}`),
      "vertical tab": post("Transfer-Encoding: \x0bchunked\r\n", `0\r\n\r\n${inner}`),
      "NUL in the coding": post("Transfer-Encoding: chunked\x00\r\n", `0\r\n\r\n${inner}`),
      "two codings": post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", `0\r\n\r\n${inner}`),
      "chunked in 1.0": `POST /public/form HTTP/1.0\r\nHost: ${ALLOWED}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${inner}`,
    });
    expectRefused(outcomes, expected);
  },
);

attack(
  "chunks that hide a request: extensions, bad sizes, bare line feeds, trailers",
  "no second request arrives; what arrives has one framing",
  { root: "400 or closed", user: "400 or closed" },
  async ({ box }, expected) => {
    const inner = get("/secret");
    const chunked = (body: string) =>
      `POST /public/form HTTP/1.1\r\nHost: ${ALLOWED}\r\nTransfer-Encoding: chunked\r\n\r\n${body}`;
    const outcomes = await tryForms(box, {
      "bare LF size": chunked(`0\n\n${inner}`),
      "bare LF extension": chunked(`2;\nxx\r\n5a\r\n0\r\n\r\n${inner}\r\n0\r\n\r\n`),
      "signed size": chunked(`+0\r\n\r\n${inner}`),
      "0x size": chunked(`0x0\r\n\r\n${inner}`),
      "huge size": chunked(`ffffffffffffffffff\r\nx\r\n0\r\n\r\n${inner}`),
      "space in size": chunked(`0 0\r\n\r\n${inner}`),
      "long extension": chunked(`1;${"a".repeat(70_000)}\r\nx\r\n0\r\n\r\n`),
      "data longer than size": chunked(`1\r\nxx\r\n0\r\n\r\n${inner}`),
      "CR only": chunked(`0\r\r${inner}`),
    });
    expectRefused(
      outcomes.map((line) => line.replace(/: $/, ": closed")),
      `${expected}|502|closed`,
    );
    allowed.clearReceived();
    // Extensions and trailers are legal; they must not travel as they are.
    await send(box, chunked(`1;a="${"\r"}";b\r\nx\r\n0\r\nHost: ${FORBIDDEN}\r\nContent-Length: 9\r\n\r\n`), TLS);
    await send(box, chunked("1;x=y\r\nz\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"), TLS);
    for (const one of allowed.received().requests) expect(one.headers.host).toBe(ALLOWED);
    expectOnlyAllowedRequests();
  },
);

attack(
  "heads that two parsers read differently: obs-fold, bare LF, space before colon, NUL, no Host, two Hosts",
  "no such head arrives in any form",
  { root: "400 or 403", user: "400 or 403" },
  async ({ box }, expected) => {
    const line = "GET /public/x HTTP/1.1\r\n";
    const host = `Host: ${ALLOWED}\r\n`;
    const outcomes = await tryForms(box, {
      "obs-fold": `${line}${host}X: a\r\n b\r\n\r\n`,
      "first line folded": `${line} ${host}\r\n`,
      "bare LF": `GET /public/x HTTP/1.1\nHost: ${ALLOWED}\n\n`,
      "bare LF inside": `${line}${host}X: a\nY: b\r\n\r\n`,
      "bare CR inside": `${line}${host}X: a\rY: b\r\n\r\n`,
      "space before colon": `${line}Host : ${ALLOWED}\r\n\r\n`,
      "tab before colon": `${line}${host}X\t: a\r\n\r\n`,
      "NUL in a value": `${line}${host}X: a\x00b\r\n\r\n`,
      "NUL in a name": `${line}${host}X\x00: a\r\n\r\n`,
      "no name": `${line}${host}: a\r\n\r\n`,
      "no colon": `${line}${host}nothing\r\n\r\n`,
      "no Host": `${line}\r\n`,
      "two Hosts": `${line}${host}${host}\r\n`,
      "two different Hosts": `${line}${host}Host: ${FORBIDDEN}\r\n\r\n`,
      "two blanks": `GET  /public/x HTTP/1.1\r\n${host}\r\n`,
      "blank in the target": `GET /public/x y HTTP/1.1\r\n${host}\r\n`,
      "HTTP/2.0": `GET /public/x HTTP/2.0\r\n${host}\r\n`,
      "HTTP/1.10": `GET /public/x HTTP/1.10\r\n${host}\r\n`,
      "HTTP/0.9": `GET /public/x\r\n\r\n`,
      "Connection names Host": `${line}${host}Connection: Host\r\n\r\n`,
      "Connection names Content-Length": `POST /public/form HTTP/1.1\r\n${host}Connection: content-length\r\nContent-Length: 3\r\n\r\nabc`,
      "control character": `${line}${host}X: \x7f\x01\r\n\r\n`,
    });
    expectRefused(outcomes, expected);
  },
);

attack(
  "very long heads and very many fields",
  "nothing arrives; the sandbox's next request is served",
  { root: "431 or 400", user: "431 or 400" },
  async ({ box }, expected) => {
    const outcomes = await tryForms(box, {
      "one long field": get("/public/x", `X: ${"a".repeat(200_000)}\r\n`),
      "many fields": get("/public/x", "X: a\r\n".repeat(20_000)),
      "long target": get(`/public/${"a".repeat(100_000)}`),
      "no end": `GET /public/x HTTP/1.1\r\n${"X: y\r\n".repeat(50_000)}`,
    });
    expectRefused(
      outcomes.map((line) => line.replace(/: $/, ": 431")),
      expected,
    );
    expect(statuses(await send(box, get("/public/x"), TLS))).toEqual([200]);
  },
);

attack(
  "Host, absolute target, server name and connection that name different hosts (domain fronting)",
  "neither host gets a request for the other",
  { root: "403 or 400", user: "403 or 400" },
  async ({ box }, expected) => {
    const outcomes = await tryForms(box, {
      "other Host": get("/public/x", "", FORBIDDEN),
      "other port": get("/public/x", "", `${ALLOWED}:8443`),
      "Host with user": get("/public/x", "", `user@${FORBIDDEN}`),
      "Host with both": get("/public/x", "", `${ALLOWED}@${FORBIDDEN}`),
      "Host with a path": get("/public/x", "", `${ALLOWED}/../${FORBIDDEN}`),
      "Host list": get("/public/x", "", `${ALLOWED}, ${FORBIDDEN}`),
      "absolute target": `GET https://${FORBIDDEN}/public/x HTTP/1.1\r\nHost: ${ALLOWED}\r\n\r\n`,
      "absolute target and Host": `GET https://${FORBIDDEN}/public/x HTTP/1.1\r\nHost: ${FORBIDDEN}\r\n\r\n`,
      "other scheme": `GET http://${ALLOWED}/public/x HTTP/1.1\r\nHost: ${ALLOWED}\r\n\r\n`,
      "user in the target": `GET https://${ALLOWED}@${FORBIDDEN}/public/x HTTP/1.1\r\nHost: ${ALLOWED}\r\n\r\n`,
    });
    expectRefused(outcomes, expected);
    // The server name of TLS.
    allowed.clearReceived();
    const other = await send(box, get("/public/x"), { ...TLS, sni: FORBIDDEN });
    expect(other).toMatch(/^error|403/);
    const tunnelled = await send(box, get("/public/x", "", FORBIDDEN), {
      connect: `${ALLOWED}:443`,
      tls: true,
      sni: FORBIDDEN,
    });
    expect(tunnelled).toMatch(/^error|403/);
    expect(allowed.received().requests).toEqual([]);
  },
);

attack(
  "TLS without a server name, with an odd one, with a protocol that cannot be inspected (h2)",
  "what arrives was inspected: only the allowed path",
  { root: "403", user: "403" },
  async ({ box }, expected) => {
    allowed.clearReceived();
    expect(statuses(await send(box, get("/secret"), { ...TLS, sni: "none" })).map(String)).toEqual([expected]);
    expect(await send(box, get("/public/x"), { ...TLS, alpn: "h2" })).toMatch(/^error/);
    const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (const how of [TLS, PLAIN]) {
      const answer = await send(box, `${preface}\x00\x00\x00\x04\x00\x00\x00\x00\x00`, how);
      expect(statuses(answer).concat(403)[0]).toBe(403);
    }
    const bytes = await send(box, "\x16\x03\x01\x00\x05garbage that is no ClientHello", PLAIN);
    expect(bytes).toMatch(/^error|HTTP\/1\.1 40[03]/);
    expect(await send(box, "SSH-2.0-OpenSSH_9\r\n", { ...PLAIN, timeout: 3 })).toMatch(/^error|HTTP\/1\.1 40[03]/);
    expect(allowed.received().requests).toEqual([]);
  },
);

attack(
  "path tricks: dot segments, encoded slashes and dots, double encoding, parameters, backslashes, NUL, non-ASCII",
  "no request outside /public, and none below /public/private, arrives",
  { root: "403 or 400", user: "403 or 400" },
  async ({ box }, expected) => {
    const paths = [
      ...["/secret", "/public/../secret", "/public/./../secret", "/public/%2e%2e/secret", "/public/%2E./secret"],
      ...["/public/..%2fsecret", "/public%2f..%2fsecret", "/public/x/..%2f..%2fsecret", "/public/..;/secret"],
      ...["/public/;/../secret", "/public/..;a=b/secret", "/public/%2e%2e;/secret", "//public/../secret"],
      ...["/public/..\\secret", "/public\\..\\secret", "/public/%5c..%5csecret/..", "/public/x%00/../../secret"],
      ...[
        "/public/\x00",
        "/public/%0d%0aHost:%20x",
        "/public/%",
        "/public/%zz",
        "/public/%c0%ae%c0%ae/secret",
        "/public/%252e%252e/secret",
      ],
      ...[
        "/public/private/x",
        "/public//private/x",
        "/public/./private/x",
        "/public/%70rivate/x",
        "/public/private;a/x",
      ],
      ...["/public/x/../private/x", "/public/PRIVATE/../private/x", "/public/%2e/private/x", "/../public/../secret"],
      ...["public/x", "*", "/public/x#/../../secret", "?/public/x", "", "/PUBLIC/x", "/%2fpublic/x", "/public\xe4/x"],
    ];
    const outcomes = await tryForms(box, Object.fromEntries(paths.map((path) => [path, get(path)])));
    // What is left of a trick may be an ordinary allowed path; the host's own record says which arrived.
    expectRefused(outcomes, `${expected} or 200`);
    for (const { target } of allowed.received().requests) expect(target).toMatch(/^\/public\/[A-Za-z0-9/]*$/);
  },
  120_000,
);

attack(
  "methods: other spellings, overrides by header and query, TRACE, CONNECT inside a tunnel",
  "only GET and POST as allowed arrive, without override fields that were not there before",
  { root: "403 or 400", user: "403 or 400" },
  async ({ box }, expected) => {
    const method = (name: string, path = "/public/x", extra = "") =>
      `${name} ${path} HTTP/1.1\r\nHost: ${ALLOWED}\r\n${extra}\r\n`;
    const names = [
      "get",
      "Get",
      "DELETE",
      "PUT",
      "PATCH",
      "TRACE",
      "TRACK",
      "OPTIONS",
      "PROPFIND",
      "G%45T",
      "GET\t",
      "PRI",
    ];
    const outcomes = await tryForms(box, Object.fromEntries(names.map((name) => [name, method(name)])));
    expectRefused(outcomes, expected);
    const more = await tryForms(box, {
      "CONNECT inside": `CONNECT ${FORBIDDEN}:443 HTTP/1.1\r\nHost: ${FORBIDDEN}:443\r\n\r\n`,
      "POST elsewhere": method("POST", "/public/x", "Content-Length: 0\r\n"),
    });
    expectRefused(more, expected);
  },
);

attack(
  "leave HTTP/1.1 by an upgrade: websocket, h2c, TLS, any",
  "no Upgrade field arrives, and the connection stays inspected",
  { root: "403", user: "403" },
  async ({ box }, expected) => {
    const upgrade = (fields: string) => get("/public/x", fields);
    const forms = {
      websocket: upgrade(
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
      ),
      h2c: upgrade("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"),
      tls: upgrade("Connection: upgrade\r\nUpgrade: TLS/1.2, HTTP/1.1\r\n"),
      other: upgrade("Connection: keep-alive, Upgrade\r\nUpgrade: anything\r\n"),
    };
    expectRefused(await tryForms(box, forms), expected);
    // Without Connection the field means nothing; it may not be passed on either.
    await send(box, upgrade("Upgrade: websocket\r\n"), TLS);
    for (const { rawHeaders } of allowed.received().requests)
      expect(rawHeaders.map((text) => text.toLowerCase())).not.toContain("upgrade");
  },
);

attack(
  "a denied request pipelined behind an allowed one, and another host on a kept connection",
  "only the allowed requests arrive",
  { root: "200,403", user: "200,403" },
  async ({ box }, expected) => {
    allowed.clearReceived();
    for (const second of [get("/secret"), get("/public/x", "", FORBIDDEN)]) {
      for (const how of [TLS, PLAIN]) {
        expect(
          statuses(await send(box, get("/public/one") + second + get("/public/three"), { ...how, quiet: 1 }))
            .slice(0, 2)
            .join(),
        ).toBe(expected);
        expect(
          statuses(await send(box, get("/public/one") + second, { ...how, split: "\r\n\r\n", quiet: 1 })).join(),
        ).toBe(expected);
      }
    }
    // As a body of the allowed one.
    const body = get("/secret");
    await send(
      box,
      `POST /public/form HTTP/1.1\r\nHost: ${ALLOWED}\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
      TLS,
    );
    const absolute = (host: string, path: string) => `GET http://${host}${path} HTTP/1.1\r\nHost: ${host}\r\n\r\n`;
    const switched = await send(box, absolute(ALLOWED, "/public/one") + absolute(FORBIDDEN, "/public/one"), {
      quiet: 1,
    });
    expect(statuses(switched).join()).toBe(expected);
    expectOnlyAllowedRequests();
    expect(allowed.received().requests.length).toBeGreaterThanOrEqual(10);
  },
);

attack(
  "CONNECT to odd targets: other ports, hosts, spellings, with a body, with injected lines",
  "the trap host gets nothing, the allowed host no connection",
  { root: "403 or 400", user: "403 or 400" },
  async ({ box }, expected) => {
    allowed.clearReceived();
    const targets = [
      ...[`${FORBIDDEN}:443`, `${ALLOWED}:22`, `${ALLOWED}:7`, `${ALLOWED}:0`, `${ALLOWED}:65536`, `${ALLOWED}:443:80`],
      ...[`${ALLOWED}`, `:443`, `${ALLOWED}:`, `${ALLOWED}:443/`, `http://${ALLOWED}:443`, `user@${ALLOWED}:443`],
      ...[`${ALLOWED}@${FORBIDDEN}:443`, `${ALLOWED}%00.${FORBIDDEN}:443`, `${ALLOWED}%2e:443`, `[${ALLOWED}]:443`],
      ...[`${ALLOWED}:+443`, `${ALLOWED}:0443443`, `${ALLOWED}..:443`, `.${ALLOWED}:443`, `*.${ALLOWED}:443`],
      ...[`${forbidden.ipv4}:443`, `[${forbidden.ipv6}]:443`, `${allowed.ipv4}:443`, `[${allowed.ipv6}]:443`],
    ];
    const answers = await sendAll(
      box,
      targets.map((target) => ({ bytes: `CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n` })),
    );
    expectRefused(
      answers.map((answer, index) => `${targets[index]}: ${statuses(answer)}`),
      expected,
    );
    const forms = {
      body: `CONNECT ${ALLOWED}:443 HTTP/1.1\r\nHost: ${ALLOWED}\r\nContent-Length: 5\r\n\r\nabcde`,
      chunked: `CONNECT ${ALLOWED}:443 HTTP/1.1\r\nHost: ${ALLOWED}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
      "line in the target": `CONNECT ${ALLOWED}:443\r\nX: HTTP/1.1\r\n\r\n`,
      "bare LF": `CONNECT ${ALLOWED}:443 HTTP/1.1\nHost: ${ALLOWED}\n\n`,
      "long head": `CONNECT ${ALLOWED}:443 HTTP/1.1\r\nX: ${"a".repeat(100_000)}\r\n\r\n`,
      "1.0 without host": `CONNECT ${FORBIDDEN}:443 HTTP/1.0\r\n\r\n`,
    };
    for (const [name, bytes] of Object.entries(forms)) {
      const status = statuses(await send(box, bytes))[0];
      expect([400, 403, 431, undefined], name).toContain(status);
    }
    expect(allowed.received().connections).toEqual([]);
  },
);

attack(
  "the explicit proxy as an open proxy: other schemes, relative targets, other hosts",
  "the trap host gets nothing",
  { root: "403 or 400", user: "403 or 400" },
  async ({ box }, expected) => {
    const line = (target: string, host: string) => `GET ${target} HTTP/1.1\r\nHost: ${host}\r\n\r\n`;
    const outcomes = await tryForms(
      box,
      {
        "other host": line(`http://${FORBIDDEN}/`, FORBIDDEN),
        "Host disagrees": line(`http://${FORBIDDEN}/public/x`, ALLOWED),
        relative: line("/public/x", ALLOWED),
        https: line(`https://${ALLOWED}/public/x`, ALLOWED),
        ftp: line(`ftp://${FORBIDDEN}/`, FORBIDDEN),
        file: line("file:///etc/passwd", "localhost"),
        unix: line("unix:/run/user.sock", "localhost"),
        gopher: line(`gopher://${FORBIDDEN}:70/`, FORBIDDEN),
        "user information": line(`http://${ALLOWED}@${FORBIDDEN}/public/x`, ALLOWED),
        "denied path": line(`http://${ALLOWED}/secret`, ALLOWED),
        "proxy itself": line("http://127.0.0.1:3128/", "127.0.0.1:3128"),
      },
      [{}],
    );
    expectRefused(outcomes, expected);
    // The target names the allowed host, the Host field another: upstream gets the target's.
    allowed.clearReceived();
    await send(box, line(`http://${ALLOWED}/public/x`, FORBIDDEN));
    expectOnlyAllowedRequests();
  },
);

attack(
  "answers of the server that smuggle: two lengths, unsolicited responses, endless interim ones",
  "the agent's later requests on the connection are judged by themselves",
  { root: "refused", user: "refused" },
  async ({ box, net }) => {
    const name = "raw.example-allowed.com";
    const answers = new Map([
      ["/public/two", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\nhi"],
      ["/public/both", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"],
      ["/public/interim", `${"HTTP/1.1 103 Early\r\n\r\n".repeat(200)}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n`],
      ["/public/switch", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw"],
      ["/public/fold", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n"],
      ["/public/nul", "HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n"],
      ["/public/long", `HTTP/1.1 200 OK\r\nX: ${"a".repeat(300_000)}\r\n\r\n`],
    ]);
    const host = await net.host(name, {
      services: [
        {
          kind: "tls",
          port: 443,
          handler: (socket) => {
            socket.on("data", (data: Buffer) => {
              const path = data.toString("latin1").split(" ")[1] ?? "";
              socket.write(answers.get(path) ?? "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "latin1");
            });
            socket.on("error", () => {});
          },
        },
      ],
    });
    const { create } = lab;
    await using own = await create({ policy: POLICY.replaceAll(ALLOWED, name) });
    for (const path of answers.keys()) {
      const answer = await send(own, get(path, "", name), { to: [name, 443], tls: true });
      expect(statuses(answer).at(-1), path).toBe(502);
    }
    expect(host.received().connections.length).toBeGreaterThanOrEqual(answers.size - 1);
    expect(statuses(await send(box, get("/public/x"), TLS))).toEqual([200]);
  },
);
