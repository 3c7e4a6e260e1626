import { CredentialState, Secret } from "@openshell/credentials";
import { afterEach, describe, expect, test } from "vitest";
import { parseAddress } from "./address.ts";
import { createCredentialSource } from "./credential-source.ts";
import { EXE, Fixture, type FixtureOptions, POLICY, readAll, readUntil, request } from "./testing/fixture.ts";

let fixture: Fixture;

afterEach(async () => {
  await fixture[Symbol.asyncDispose]();
});

function policy(...endpoints: string[]): string {
  const list = endpoints.map((endpoint) => `      - ${endpoint}\n`).join("");
  return `version: 1\nnetwork_policies:\n  api:\n    endpoints:\n${list}    binaries: [{path: "${EXE}"}]\n`;
}

async function open(text: string, options: FixtureOptions = {}): Promise<Fixture> {
  fixture = await Fixture.create({ ...options, policy: text });
  return fixture;
}

const REST = "{host: api.example.com, port: 443, protocol: rest, enforcement: enforce, access: read-only";

async function inspected() {
  return fixture.tls(await fixture.tunnel("api.example.com:443"), "api.example.com");
}

describe("endpoints that judge requests", () => {
  test("an audit endpoint passes a refused request on and says so", async () => {
    await open(policy("{host: api.example.com, port: 443, protocol: rest, access: read-only}"));
    await fixture.https("api.example.com", (req, res) => res.end(req.method));
    const tls = await inspected();
    const answer = await request(tls, "POST /x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 0\r\n\r\n");
    expect(answer.body).toBe("POST");
    expect(fixture.events.requests[0]).toMatchObject({
      outcome: "audited",
      reason: "L7_REQUEST audit POST api.example.com:443/x reason=POST /x not permitted by policy",
    });
    tls.destroy();
  });

  test("an encoded slash is refused, and kept where the endpoint allows it", async () => {
    await open(policy(`${REST}}`));
    const seen: string[] = [];
    await fixture.https("api.example.com", (req, res) => {
      seen.push(req.url!);
      res.end();
    });
    const tls = await inspected();
    const text = "GET /@scope%2fname HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
    expect((await request(tls, text)).status).toBe(403);
    fixture.publish(policy(`${REST}, allow_encoded_slash: true}`));
    expect((await request(tls, text)).status).toBe(200);
    expect(seen).toEqual(["/@scope%2Fname"]);
    tls.destroy();
  });

  test("HEAD is allowed where GET is, and its answer has no body", async () => {
    await open(policy(`${REST}}`));
    await fixture.https("api.example.com", (_, res) => {
      res.setHeader("Content-Length", 5);
      res.end("hello");
    });
    const tls = await inspected();
    const head = await request(tls, "HEAD / HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect(head.head).toContain("Content-Length: 5");
    expect((await request(tls, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).body).toBe("hello");
    tls.destroy();
  });

  test("tls: skip together with a protocol opens nothing and passes nothing on", async () => {
    await open(policy(`${REST}, tls: skip}`));
    const tls = await inspected();
    tls.write("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect(await readAll(tls)).toContain("unsupported_l7_protocol");
    expect(fixture.dialled).toEqual([]);
  });

  test("two owners with different rules may do only what both may", async () => {
    const rule = (name: string, exe: string, access: string): string =>
      `  ${name}:\n    endpoints: [{host: api.example.com, port: 443, protocol: rest, enforcement: enforce, access: ${access}}]\n    binaries: [{path: "${exe}"}]\n`;
    const { ownProcess } = await import("./testing/fixture.ts");
    await open(`version: 1\nnetwork_policies:\n${rule("a", EXE, "full")}${rule("b", "/bin/sh", "read-only")}`, {
      owners: () => [...ownProcess(), ...ownProcess("/bin/sh")],
    });
    await fixture.https("api.example.com", (_, res) => res.end("ok"));
    const tls = await inspected();
    expect((await request(tls, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")).status).toBe(200);
    const post = "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 0\r\n\r\n";
    expect((await request(tls, post)).status).toBe(403);
    tls.destroy();
  });
});

describe("endpoints that pass bytes on", () => {
  const plain = policy("{host: raw.example.com, port: 9000}");

  test("a protocol in which the server speaks first gets through", async () => {
    await open(plain);
    await fixture.tcp("raw.example.com", 9000, (socket) => {
      socket.on("error", () => undefined);
      socket.write("220 ready\r\n");
      socket.once("data", (line) => socket.end(`250 ${line}`));
    });
    const socket = await fixture.tunnel("raw.example.com:9000");
    expect(await readUntil(socket, "220 ready\r\n")).toBe("220 ready\r\n");
    socket.write("HELO\r\n");
    expect(await readAll(socket)).toBe("250 HELO\r\n");
  });

  test("silence is no way around inspection", async () => {
    await open(plain);
    let received = "";
    await fixture.tcp("raw.example.com", 9000, (socket) => {
      socket.on("error", () => undefined);
      socket.on("data", (chunk) => {
        received += chunk;
      });
    });
    const socket = await fixture.tunnel("raw.example.com:9000");
    await new Promise((resolve) => setTimeout(resolve, 900));
    socket.write("GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n");
    await readAll(socket);
    expect(received).toBe("");
  });

  test("bytes of another protocol reach the server unchanged", async () => {
    await open(plain);
    await fixture.tcp("raw.example.com", 9000, (socket) => socket.pipe(socket));
    const socket = await fixture.tunnel("raw.example.com:9000");
    socket.write("\x00\x01SQL\xff", "latin1");
    expect(await readUntil(socket, "SQL")).toBe("\x00\x01SQL");
    socket.destroy();
  });

  test("the Host still has to be that of the connection", async () => {
    await open(policy("{host: plain.example.com, port: 80}"));
    const socket = await fixture.tunnel("plain.example.com:80");
    socket.write("GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n");
    expect(await readAll(socket)).toContain("request_authority_mismatch");
  });
});

describe("destinations", () => {
  test("a name is resolved only after the policy allowed it, once for a connection", async () => {
    const asked: string[] = [];
    const resolver = () => ({
      resolve: async (host: string) => {
        asked.push(host);
        return [parseAddress("93.184.216.34")!];
      },
    });
    await open(policy(`${REST}}`), { deps: { resolver } });
    await fixture.https("api.example.com", (_, res) => res.end("ok"));
    await expect(fixture.tunnel("evil.example.com:443")).rejects.toThrow("403");
    const tls = await inspected();
    for (let i = 0; i < 3; i += 1) await request(tls, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    expect(asked).toEqual(["api.example.com"]);
    tls.destroy();
  });

  test("a name that moves to a private address is refused on the next connection, and the old one stays where it was", async () => {
    let address = "93.184.216.34";
    const resolver = () => ({ resolve: async () => [parseAddress(address)!] });
    const wild = policy('{host: "*.wild.example.com", port: 80}');
    await open(wild, { deps: { resolver } });
    await fixture.http("api.example.com", (_, res) => res.end("ok"));
    const socket = await fixture.tunnel("a.wild.example.com:80");
    const text = "GET / HTTP/1.1\r\nHost: a.wild.example.com\r\n\r\n";
    expect((await request(socket, text)).status).toBe(200);
    address = "10.0.0.1";
    expect((await request(socket, text)).status).toBe(200);
    await expect(fixture.tunnel("a.wild.example.com:80")).rejects.toThrow(/ssrf_denied[\s\S]*internal address/);
    expect(new Set(fixture.dialled)).toEqual(new Set(["93.184.216.34:80"]));
    socket.destroy();
  });

  test("a name that does not resolve is a 502 with the reason", async () => {
    const { RuntimeError } = await import("@openshell/base");
    const resolver = () => ({
      resolve: async (host: string) => {
        throw new RuntimeError("resolution_failed", `DNS resolution failed for ${host}: ENOTFOUND`, {
          next: "Check the name.",
        });
      },
    });
    await open(policy(`${REST}}`), { deps: { resolver } });
    await expect(fixture.tunnel("api.example.com:443")).rejects.toThrow(
      /502[\s\S]*DNS resolution failed for api\.example\.com/,
    );
  });

  test("what is always denied stays so, whatever the policy says", async () => {
    const network = { additionalCaPem: "", resolvers: ["10.1.2.3:53"], alwaysDenied: ["93.184.216.34:443"] };
    await open(policy(`${REST}}`, "{host: internal.example.com, ports: [53, 80]}"), { deps: { network } });
    await expect(fixture.tunnel("api.example.com:443")).rejects.toThrow("ssrf_denied");
    await expect(fixture.tunnel("internal.example.com:53")).rejects.toThrow("ssrf_denied");
    await (await fixture.tunnel("internal.example.com:80")).destroy();
  });

  test("a middleware that may be left out is left out, and that is told once; one that may not refuses", async () => {
    const middleware = (onError: string) =>
      `${policy(`${REST}}`)}\nnetwork_middlewares: {m: {middleware: acme/scan, on_error: ${onError}, endpoints: {include: ["*.example.com"]}}}\n`;
    await open(middleware("fail_open"));
    for (let times = 0; times < 2; times++) (await fixture.tunnel("api.example.com:443")).destroy();
    const told = () =>
      fixture.events.findings.filter(({ uid }) => uid === "openshell.middleware.traffic_uninspectable");
    expect(told()).toMatchObject([
      { host: "api.example.com", port: 443, description: expect.stringContaining("acme/scan") },
    ]);
    fixture.publish(middleware("fail_closed"));
    await expect(fixture.tunnel("api.example.com:443")).rejects.toThrow(
      /403[\s\S]*middleware 'acme\/scan' must see the traffic/,
    );
    expect(told()).toHaveLength(1);
  });

  test("a policy that changes while a name is being resolved decides", async () => {
    let release: (() => void) | undefined;
    const resolver = () => ({
      resolve: async () => {
        await new Promise<void>((resolve) => {
          release = resolve;
        });
        return [parseAddress("93.184.216.34")!];
      },
    });
    await open(policy(`${REST}}`), { deps: { resolver } });
    const waiting = fixture.tunnel("api.example.com:443");
    const outcome = expect(waiting).rejects.toThrow(/403[\s\S]*not allowed by any policy/);
    while (release === undefined) await new Promise((resolve) => setTimeout(resolve, 5));
    fixture.publish(policy("{host: other.example.com, port: 443}"));
    release();
    await outcome;
  });

  test.each(["nonsense", "1.2.3.4:x", "host:53"])("network settings with %s are refused", async (text) => {
    fixture = await Fixture.create();
    await expect(
      Fixture.create({ deps: { network: { additionalCaPem: "", resolvers: [text], alwaysDenied: [] } } }),
    ).rejects.toMatchObject({ code: "network_settings_invalid" });
  });
});

describe("placeholders", () => {
  const SECRET = "s3cr3t/with+signs=";

  test("are replaced in Basic, in the path and in the query, and nowhere else", async () => {
    const state = new CredentialState();
    const endpoints = [{ host: "api.example.com", port: 443, path: "" }];
    state.apply({
      revision: "1",
      values: [
        {
          name: "KEY",
          value: new Secret(SECRET),
          classification: "static_credential",
          endpoints,
          identity: "i",
          expiresAt: undefined,
          provider: "p",
        },
        {
          name: "TOKEN",
          value: new Secret("plain-token-value"),
          classification: "static_credential",
          endpoints,
          identity: "j",
          expiresAt: undefined,
          provider: "p",
        },
      ],
    });
    const environment = state.current.childEnvironment();
    const [key, token] = [environment.get("KEY")!, environment.get("TOKEN")!];
    await open(POLICY, { credentials: createCredentialSource(state.current, Date.now) });
    const seen: string[] = [];
    await fixture.https("api.example.com", (req, res) => {
      seen.push(`${req.url} ${req.headers.authorization}`);
      res.end(`saw ${req.headers.authorization}`);
    });
    const tls = await inspected();
    const basic = Buffer.from(`user:${key}`).toString("base64");
    const answer = await request(
      tls,
      `GET / HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Basic ${basic}\r\n\r\n`,
    );
    expect(seen[0]).toBe(`/ Basic ${Buffer.from(`user:${SECRET}`).toString("base64")}`);
    expect(answer.body).not.toContain(Buffer.from(`user:${SECRET}`).toString("base64"));
    await request(tls, `GET /bot${token}/get?key=${key}&x=1 HTTP/1.1\r\nHost: api.example.com\r\n\r\n`);
    expect(seen[1]).toBe(`/botplain-token-value/get?key=${encodeURIComponent(SECRET)}&x=1 undefined`);
    expect(fixture.events.requests.at(-1)?.path).toBe("/bot[CREDENTIAL]/get");
    for (const text of [
      `GET / HTTP/1.1\r\nHost: api.example.com\r\nX: a ${key} b\r\n\r\n`,
      `GET /?${key}=1 HTTP/1.1\r\nHost: api.example.com\r\n\r\n`,
      `GET /${key} HTTP/1.1\r\nHost: api.example.com\r\n\r\n`,
      "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: openshell:resolve:env:UNKNOWN\r\n\r\n",
    ]) {
      expect((await request(tls, text)).status).toBeGreaterThanOrEqual(400);
    }
    expect(seen).toHaveLength(2);
    expect(JSON.stringify([fixture.events.requests, fixture.events.findings])).not.toMatch(
      /s3cr3t|plain-token|resolve:env/,
    );
    tls.destroy();
  });

  test("without any credential a placeholder still goes nowhere", async () => {
    await open(POLICY);
    const tls = await inspected();
    const text = "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: openshell:resolve:env:v1_KEY\r\n\r\n";
    const answer = await request(tls, text);
    expect(answer.status).toBe(500);
    expect(JSON.parse(answer.body).error).toBe("credential_unavailable");
    expect(fixture.dialled).toEqual([]);
    tls.destroy();
  });
});
