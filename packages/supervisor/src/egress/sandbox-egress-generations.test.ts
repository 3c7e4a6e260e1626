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

  test("a rotation leaves the request in flight that carries the credential (#1306, #1264)", async () => {
    const { credentials, placeholder } = source();
    fixture.publish(POLICY, credentials);
    let response: { end(text: string): void } | undefined;
    await fixture.https("api.example.com", (_, res) => {
      response = res;
      res.write("start");
    });
    const tls = await inspected();
    tls.on("error", () => undefined);
    tls.write(`GET / HTTP/1.1\r\nHost: api.example.com\r\nX-Key: ${placeholder}\r\n\r\n`);
    await readUntil(tls, "start");
    fixture.publish(POLICY, source("sk-live-rotated-987654").credentials);
    response!.end("more");
    await readUntil(tls, "more");
    expect(fixture.events.requests.filter(({ outcome }) => outcome === "ended")).toEqual([]);
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
    expect(fixture.events.limits).toMatchObject([{ limit: "flows", value: 2, times: 1 }]);
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
    expect(fixture.events.limits[0]).toMatchObject({ limit: "buffered_bytes", value: 2 << 20 });
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
