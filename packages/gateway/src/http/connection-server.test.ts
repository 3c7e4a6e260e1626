import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { Agent, request as http1Request } from "node:http";
import { type ClientHttp2Session, connect as connectHttp2 } from "node:http2";
import { connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { userSocketPeer } from "../auth/identify.ts";
import { ConnectionServer } from "./connection-server.ts";
import { answer, Dispatcher, pathOf } from "./dispatcher.ts";
import { livenessRoute } from "./health.ts";
import { HttpLimits } from "./limits.ts";
import { type Listener, listenPreferring, listenTcp, listenUnix } from "./listen.ts";
import type { Peer } from "./peer.ts";

let folder: string;
let path: string;
let server: ConnectionServer;
let listener: Listener;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "openshell-http-"));
  path = join(folder, "user.sock");
  const dispatcher = new Dispatcher({
    routes: [livenessRoute],
    rpc: {
      handler: (request, response) => {
        if (pathOf(request) === "/hang") return;
        const peers = `${request.httpVersion} ${pathOf(request)}`;
        (request as NodeJS.ReadableStream).resume();
        answer(response, 200, peers);
      },
    },
  });
  server = new ConnectionServer(dispatcher, { streams: 100, ping: false });
  listener = await listenUnix(path, (socket) => server.accept(socket, userSocketPeer(1, undefined)));
});

afterEach(async () => {
  await listener.close();
  await server.drain();
  rmSync(folder, { recursive: true });
});

async function raw(...pieces: readonly (string | Buffer)[]): Promise<Socket> {
  const socket = connect(path);
  await once(socket, "connect");
  for (const piece of pieces) {
    socket.write(piece);
    await sleep(5);
  }
  return socket;
}

async function get(session: ClientHttp2Session, target: string): Promise<string> {
  const stream = session.request({ ":path": target });
  stream.end();
  return text(stream);
}

describe("ConnectionServer", () => {
  it("serves HTTP/1.1 and HTTP/2 on one socket", async () => {
    const sent = http1Request({ socketPath: path, path: "/a?b" }).end();
    const [response] = (await once(sent, "response")) as [import("node:http").IncomingMessage];
    expect(await text(response)).toBe("1.1 /a");
    const session = connectHttp2("http://x", { createConnection: () => connect(path) });
    expect(await Promise.all([get(session, "/one"), get(session, "/two?x"), get(session, "/healthz")])).toEqual([
      "2.0 /one",
      "2.0 /two",
      "ok\n",
    ]);
    session.close();
  });

  it("tells the protocol from first bytes that arrive one by one", async () => {
    const http1 = await raw("P", "R", "OPFIND / HTTP/1.1\r\n", "host: x\r\nconnection: close\r\n\r\n");
    expect(await text(http1)).toMatch(/^HTTP\/1\.1 200 OK\r\n(.*\r\n)*1\.1 \/\r\n/);
    const socket = await raw("P", "RI", " * HTT");
    const session = connectHttp2("http://x", { createConnection: () => socket });
    // The client writes its own preface after these bytes: only that the server answers in HTTP/2 matters here.
    const first = await new Promise<string>((resolve) =>
      session.once("error", (error) => resolve(error.message)).once("remoteSettings", () => resolve("settings")),
    );
    expect(["settings", "Protocol error"]).toContain(first);
    session.destroy();
  });

  it("keeps pipelined requests in order", async () => {
    const socket = await raw(
      "GET /1 HTTP/1.1\r\nhost: x\r\n\r\nGET /2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    );
    expect((await text(socket)).match(/1\.1 \/\d/g)).toEqual(["1.1 /1", "1.1 /2"]);
  });

  it("answers garbage with 400 and goes on serving others", async () => {
    const socket = await raw("\u0016\u0003\u0001garbage\r\n\r\n");
    expect(await text(socket)).toMatch(/^HTTP\/1\.1 400 /);
    const sent = http1Request({ socketPath: path, path: "/healthz" }).end();
    const [response] = (await once(sent, "response")) as [import("node:http").IncomingMessage];
    expect(response.statusCode).toBe(200);
    response.resume();
  });

  it("refuses CONNECT on HTTP/2", async () => {
    const session = connectHttp2("http://x", { createConnection: () => connect(path) });
    const stream = session.request({ ":method": "CONNECT", ":authority": "evil.example:443" });
    const [headers] = await new Promise<[Record<string, unknown>]>((resolve) =>
      stream.once("response", (h) => resolve([h])),
    );
    expect(headers[":status"]).toBe(405);
    session.destroy();
  });

  it("drains: tells clients to leave, lets calls finish, and cuts those that hang within a second", async () => {
    const session = connectHttp2("http://x", { createConnection: () => connect(path) });
    const away = once(session, "goaway");
    expect(await get(session, "/before")).toBe("2.0 /before");
    const hanging = session.request({ ":path": "/hang" });
    hanging.on("error", () => {});
    const closed = once(hanging, "close");
    await sleep(20);
    const startedAt = performance.now();
    await listener.close();
    await server.drain();
    const took = performance.now() - startedAt;
    await away;
    await closed;
    expect(took).toBeGreaterThan(500);
    expect(took).toBeLessThan(1_000);
    const refused = connect(path);
    const [error] = await once(refused, "error");
    expect((error as NodeJS.ErrnoException).code).toMatch(/ENOENT|ECONNREFUSED/);
  });

  it("drains at once past clients that keep idle connections", async () => {
    const agent = new Agent({ keepAlive: true });
    const sent = http1Request({ socketPath: path, path: "/x", agent }).end();
    const [response] = (await once(sent, "response")) as [import("node:http").IncomingMessage];
    await text(response);
    const session = connectHttp2("http://x", { createConnection: () => connect(path) });
    await get(session, "/x");
    const startedAt = performance.now();
    await listener.close();
    await server.drain();
    expect(performance.now() - startedAt).toBeLessThan(200);
    agent.destroy();
  });

  it("drains at once when nobody is connected", async () => {
    const startedAt = performance.now();
    await listener.close();
    await server.drain();
    expect(performance.now() - startedAt).toBeLessThan(100);
  });
});

describe("listenPreferring", () => {
  it("takes any port instead of a busy default, and says so when the port was asked for", async () => {
    const first = await listenTcp({ host: "127.0.0.1", port: 0 }, () => {});
    const { port } = first.address as { port: number };
    const listen = (address: { host: string; port: number }) => listenTcp(address, () => {});
    const other = await listenPreferring({ host: "127.0.0.1", port, chosen: false }, undefined, listen);
    expect((other.address as { port: number }).port).not.toBe(port);
    await expect(listenPreferring({ host: "127.0.0.1", port, chosen: true }, undefined, listen)).rejects.toMatchObject({
      code: "listen_failed",
    });
    const again = (other.address as { port: number }).port;
    await other.close();
    const second = await listenPreferring({ host: "127.0.0.1", port, chosen: false }, again, listen);
    expect((second.address as { port: number }).port).toBe(again);
    await first.close();
    await second.close();
  });

  describe("strangers, who proved nothing", () => {
    const stranger: Peer = { listener: "tcp", caller: undefined, refusal: undefined };
    let tcp: Listener;
    let port: number;
    beforeEach(async () => {
      tcp = await listenTcp({ host: "127.0.0.1", port: 0 }, (socket) => server.accept(socket, stranger));
      port = (tcp.address as { readonly port: number }).port;
    });
    afterEach(() => tcp.close());

    it("may have few calls at once on a connection", async () => {
      const session = connectHttp2(`http://127.0.0.1:${port}`);
      // The general limit comes first, the stranger's after it.
      let limit = 0;
      while (limit !== HttpLimits.strangerStreams) {
        const [settings] = (await once(session, "remoteSettings")) as [{ readonly maxConcurrentStreams: number }];
        limit = settings.maxConcurrentStreams;
      }
      expect(await get(session, "/one")).toBe("2.0 /one");
      session.destroy();
    });

    it("may have so many connections, which others do not share, and room comes back", async () => {
      const open = async () => {
        const socket = connect(port, "127.0.0.1").on("error", () => {});
        await once(socket, "connect");
        return socket;
      };
      const all: Socket[] = [];
      for (let n = 0; n < HttpLimits.strangerConnections; n++) all.push(await open());
      const refused = await open();
      refused.resume();
      await once(refused, "close");
      expect(all.every((socket) => !socket.destroyed)).toBe(true);
      const session = connectHttp2("http://x", { createConnection: () => connect(path) });
      expect(await get(session, "/owner")).toBe("2.0 /owner");
      session.close();
      for (const socket of all) socket.destroy();
      for (;;) {
        const answer = await fetch(`http://127.0.0.1:${port}/again`).then(
          (response) => response.text(),
          () => undefined,
        );
        if (answer === undefined) continue;
        expect(answer).toBe("1.1 /again");
        break;
      }
    });
  });
});
