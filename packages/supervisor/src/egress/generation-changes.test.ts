import { connect as netConnect, Socket } from "node:net";
import { CredentialState, Secret } from "@openshell/credentials";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { quarantine } from "../config/quarantine.ts";
import { parseAddress } from "./address.ts";
import { type CredentialSource, createCredentialSource } from "./credential-source.ts";
import { Fixture, POLICY, readAll, readUntil, request } from "./testing/fixture.ts";

/** What a publication does to connections and requests that are under way. */

let fixture: Fixture;
/** Sockets of dials that a test lets fail when it wants. */
let hanging: Socket[];

const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
const WITHOUT_RAW = POLICY.replace("host: raw.example.com", "host: elsewhere.example.com");
const WITHOUT_API = POLICY.replace(
  "host: api.example.com\n        ports: [443]",
  "host: other.example.com\n        ports: [443]",
);

/** Every name has two addresses; the first one hangs. */
async function createTwoAddresses(): Promise<Fixture> {
  hanging = [];
  const dialled: string[] = [];
  const created = await Fixture.create({
    deps: {
      resolver: () => ({ resolve: async () => [parseAddress("93.184.216.1")!, parseAddress("93.184.216.2")!] }),
      dial: (address) => {
        dialled.push(address);
        const socket = new Socket();
        hanging.push(socket);
        return socket;
      },
    },
  });
  created.dialled.push = (...addresses) => dialled.push(...addresses);
  Object.defineProperty(created, "dialled", { value: dialled });
  return created;
}

describe("while a connection is being made", () => {
  beforeEach(async () => {
    fixture = await createTwoAddresses();
  });
  afterEach(async () => {
    for (const socket of hanging) socket.destroy();
    await fixture[Symbol.asyncDispose]();
  });
  const refuseFirst = (): void => {
    hanging[0]!.destroy(Object.assign(new Error("refused"), { code: "ECONNREFUSED" }));
  };

  test("a raw connection that is no longer allowed tries no further address, with one event", async () => {
    const socket = await fixture.proxy();
    socket.write("CONNECT raw.example.com:9000 HTTP/1.1\r\nHost: raw.example.com:9000\r\n\r\n");
    await expect.poll(() => fixture.dialled, { timeout: 9_000 }).toEqual(["93.184.216.1"]);
    fixture.publish(WITHOUT_RAW);
    refuseFirst();
    expect(await readAll(socket)).toBe("");
    await settle();
    expect(fixture.dialled).toEqual(["93.184.216.1"]);
    expect(fixture.events.connections.map(({ outcome }) => outcome)).toEqual(["allowed", "ended"]);
  });

  test("a request that is no longer allowed tries no further address, with one event", async () => {
    const tls = await fixture.tls(await fixture.tunnel("api.example.com:443"), "api.example.com");
    tls.on("error", () => undefined);
    tls.write("GET /a HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    await expect.poll(() => fixture.dialled, { timeout: 9_000 }).toEqual(["93.184.216.1"]);
    fixture.publish(POLICY.replace('method: GET, path: "/**"', 'method: GET, path: "/b"'));
    refuseFirst();
    expect(await readAll(tls)).toBe("");
    await settle();
    expect(fixture.dialled).toEqual(["93.184.216.1"]);
    expect(fixture.events.requests.map(({ outcome }) => outcome)).toEqual(["ended"]);
  });

  test("one that stays allowed goes on to the next address", async () => {
    const socket = await fixture.proxy();
    socket.write("CONNECT raw.example.com:9000 HTTP/1.1\r\nHost: raw.example.com:9000\r\n\r\n");
    await expect.poll(() => fixture.dialled, { timeout: 9_000 }).toEqual(["93.184.216.1"]);
    fixture.publish(WITHOUT_API);
    refuseFirst();
    await expect.poll(() => fixture.dialled, { timeout: 9_000 }).toEqual(["93.184.216.1", "93.184.216.2"]);
    socket.destroy();
  });
});

describe("a quarantine", () => {
  beforeEach(async () => {
    fixture = await Fixture.create();
  });
  afterEach(() => fixture[Symbol.asyncDispose]());

  test("closes what is open with one event each, refuses what comes with its cause, and leaves nothing behind", async () => {
    await fixture.tcp("raw.example.com", 9000, (socket) => socket.pipe(socket));
    await fixture.https("api.example.com", (_, res) => res.write("start"));
    await fixture.http("plain.example.com", (_, res) => res.end("ok"));
    const raw = await fixture.tunnel("raw.example.com:9000");
    const stream = await fixture.tls(await fixture.tunnel("api.example.com:443"), "api.example.com");
    stream.on("error", () => undefined);
    stream.write("GET /a HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
    await readUntil(stream, "start");
    const keptAlive = await fixture.proxy();
    const plain = "GET http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n";
    expect((await request(keptAlive, plain)).status).toBe(200);
    const before = { connections: fixture.events.connections.length, requests: fixture.events.requests.length };
    fixture.egress.publish(quarantine(7, "no rule is valid", {}));
    await Promise.all([readAll(raw), readAll(stream)]);
    expect(fixture.events.connections.slice(before.connections).map(({ outcome, host }) => [outcome, host])).toEqual(
      expect.arrayContaining([
        ["ended", "raw.example.com"],
        ["ended", "api.example.com"],
      ]),
    );
    expect(fixture.events.connections.length + fixture.events.requests.length).toBe(
      before.connections + before.requests + 2,
    );
    // Nothing was under way there: its next request is refused, and says why.
    const refused = await request(keptAlive, plain);
    expect(refused.status).toBe(403);
    expect(refused.body).toContain(
      "policy validation failed; fail-closed quarantine is active; candidate version 7 rejected: no rule is valid",
    );
    fixture.publish(POLICY);
    const again = await fixture.proxy();
    expect((await request(again, plain)).status).toBe(200);
    for (const socket of [keptAlive, again]) socket.destroy();
  });
});

describe("credentials in use", () => {
  const BOUND = POLICY.replace("protocol: rest\n", "protocol: rest\n        credential_binding: {provider: acme}\n");
  beforeEach(async () => {
    fixture = await Fixture.create();
  });
  afterEach(() => fixture[Symbol.asyncDispose]());

  function credential(value: string): { readonly source: CredentialSource; readonly placeholder: string } {
    const state = new CredentialState();
    state.apply({
      revision: value,
      values: [
        {
          name: "KEY",
          value: new Secret(value),
          classification: "static_credential",
          endpoints: [],
          identity: "id-1",
          expiresAt: undefined,
          provider: "acme",
        },
      ],
    });
    return {
      source: createCredentialSource(state.current, Date.now),
      placeholder: state.current.childEnvironment().get("KEY")!,
    };
  }

  test("a request ends when its endpoint no longer binds the provider whose credential it carries", async () => {
    const { source, placeholder } = credential("sk-live-0123456789");
    fixture.publish(BOUND, source);
    await fixture.https("api.example.com", (_, res) => res.write("start"));
    const tls = await fixture.tls(await fixture.tunnel("api.example.com:443"), "api.example.com");
    tls.on("error", () => undefined);
    tls.write(`GET / HTTP/1.1\r\nHost: api.example.com\r\nX-Key: ${placeholder}\r\n\r\n`);
    await readUntil(tls, "start");
    // The same rules in another order of words: nothing that this request needs is different.
    fixture.publish(BOUND.replace("port: 9000", "port: 9001"), source);
    expect(tls.destroyed).toBe(false);
    fixture.publish(POLICY, source);
    await readAll(tls);
    expect(fixture.events.requests.at(-1)).toMatchObject({ outcome: "ended", engine: "credential" });
  });

  test("a request gets rule and value of one generation, wherever the next one comes in between", async () => {
    const generations = ["one", "two"].map((name) => ({
      policy: BOUND.replace('method: GET, path: "/**"', `method: GET, path: "/${name}"`),
      ...credential(`value-of-${name}`),
    }));
    const { placeholder } = generations[0]!;
    expect(generations[1]!.placeholder).toBe(placeholder);
    let published = 0;
    const publish = (): void => {
      const { policy, source } = generations[published++ % 2]!;
      fixture.publish(policy, source);
    };
    await fixture[Symbol.asyncDispose]();
    const port = { origin: 0 };
    let dials = 0;
    fixture = await Fixture.create({
      deps: {
        resolver: () => ({
          resolve: async () => {
            publish();
            return [parseAddress("93.184.216.1")!];
          },
        }),
        // Two publications leave the request allowed, one does not.
        dial: () => {
          dials += 1;
          for (let times = 0; times < dials % 3; times++) publish();
          return netConnect({ host: "127.0.0.1", port: port.origin, noDelay: true, allowHalfOpen: true });
        },
      },
    });
    publish();
    const seen: string[] = [];
    port.origin = await fixture.https("api.example.com", (req, res) => {
      seen.push(`${req.url} ${req.headers["x-key"]}`);
      res.end("ok");
    });
    const answers: number[] = [];
    for (let at = 0; at < 24; at++) {
      const tls = await fixture.tls(await fixture.tunnel("api.example.com:443"), "api.example.com");
      tls.on("error", () => undefined);
      const path = at % 4 < 2 ? "one" : "two";
      const text = `GET /${path} HTTP/1.1\r\nHost: api.example.com\r\nX-Key: ${placeholder}\r\n\r\n`;
      answers.push((await request(tls, text).catch(() => undefined))?.status ?? 0);
      tls.destroy();
    }
    expect([...new Set(seen)].sort()).toEqual(["/one value-of-one", "/two value-of-two"]);
    // Answered, refused, and cut before anything was sent.
    expect(new Set(answers)).toEqual(new Set([0, 200, 403]));
    expect(answers.filter((status) => status === 200)).toHaveLength(seen.length);
  });
});
