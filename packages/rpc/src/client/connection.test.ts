import { getEventListeners } from "node:events";
import { createServer, connect as dial, type Socket } from "node:net";
import { Code, ConnectError } from "@connectrpc/connect";
import { afterEach, describe, expect, it } from "vitest";
import { Echo } from "../testing/echo.ts";
import { Stand } from "../testing/stand.ts";
import { ClientCall, requestFields } from "./call.ts";
import { Connection } from "./connection.ts";

let stand: Stand;
afterEach(() => stand[Symbol.asyncDispose]());

const codeOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => "OK",
    (error: unknown) => Code[ConnectError.from(error).code],
  );

describe("a lane connection", () => {
  it("lets calls end on a connection that is told to go, and dials another for the next", async () => {
    const release = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    stand = await Stand.start({
      async unary(message) {
        if (message.value.length === 0) return message;
        begun.resolve();
        await release.promise;
        return message;
      },
    });
    const client = stand.client();
    const slow = client.unary({ value: Buffer.from("x") });
    await begun.promise;
    const [first] = stand.sessions;
    first!.close();
    await new Promise((resolve) => setTimeout(resolve, 20));
    await client.unary({});
    expect(stand.sessions.size).toBe(2);
    release.resolve();
    expect(Buffer.from((await slow).value).toString()).toBe("x");
  });

  it("ends calls with UNAVAILABLE when the connection breaks, and dials again", async () => {
    const begun = Promise.withResolvers<void>();
    stand = await Stand.start({
      unary(message) {
        if (message.value.length === 0) return message;
        begun.resolve();
        return new Promise(() => {});
      },
    });
    const client = stand.client();
    const call = codeOf(client.unary({ value: Buffer.from("x") }));
    await begun.promise;
    for (const session of stand.sessions) session.destroy();
    expect(await call).toBe("Unavailable");
    await client.unary({});
  });

  it("sends a unary call again, once, that the server refused without looking at it", async () => {
    stand = await Stand.start({ unary: (message) => message });
    let refusals = 1;
    stand.refuse = () => refusals-- > 0;
    const { signal } = new AbortController();
    expect(await codeOf(stand.client().unary({}, { signal }))).toBe("OK");
    expect(getEventListeners(signal, "abort")).toEqual([]);
    refusals = 2;
    expect(await codeOf(stand.client().unary({}))).toBe("Unavailable");
  });

  it("dials again before a connection has no stream left to open", async () => {
    stand = await Stand.start({ unary: (message) => message });
    const connection = new Connection({ dial: () => dial(stand.port, "127.0.0.1") });
    const call = async () => {
      const type = "application/grpc+proto";
      const call = new ClientCall(connection.request(requestFields(`/${Echo.typeName}/Unary`, type, undefined)));
      call.send(new Uint8Array());
      call.end();
      await call.messages.next();
      return call.messages.next();
    };
    const { session } = connection.request(requestFields("/none", "application/grpc", undefined)).on("error", () => {});
    await call();
    (session as unknown as { setNextStreamID(id: number): void }).setNextStreamID(2 ** 31 - 2 ** 16 - 3);
    for (let count = 0; count < 6; count++) await call();
    expect(session!.closed).toBe(true);
    connection.close();
  });

  it("gets every answer while many large requests wait to be sent", async () => {
    stand = await Stand.start({ unary: (message) => message }, { readMaxBytes: 1024 });
    const client = stand.client();
    const value = Buffer.alloc(4 * 1024 * 1024);
    const codes = await Promise.all(Array.from({ length: 8 }, () => codeOf(client.unary({ value }))));
    expect(new Set(codes)).toEqual(new Set(["ResourceExhausted"]));
  });

  it("may be closed in the moment in which it is made", async () => {
    stand = await Stand.start({});
    let socket: Socket | undefined;
    const connection = new Connection({
      dial: () => {
        socket = dial(stand.port, "127.0.0.1");
        return socket;
      },
    });
    const call = new ClientCall(
      connection.request(requestFields(`/${Echo.typeName}/Unary`, "application/grpc+proto", undefined)),
    );
    const ended = codeOf(call.messages.next());
    // Behind the session's own listener: it has begun by then, and says so a little later, when it is gone.
    socket!.once("connect", () => connection.close());
    expect(await ended).not.toBe("OK");
    await new Promise(setImmediate);
  });

  it("says UNAVAILABLE where nobody listens", async () => {
    stand = await Stand.start({});
    const { port } = stand;
    await stand[Symbol.asyncDispose]();
    stand = await Stand.start({});
    const { connect } = await import("node:net");
    const client = stand.client({ dial: () => connect(port === stand.port ? 1 : port, "127.0.0.1") });
    expect(await codeOf(client.unary({}))).toBe("Unavailable");
  });

  it("gives up a server that no longer answers pings", async () => {
    stand = await Stand.start({ unary: () => new Promise(() => {}) });
    const { port } = stand;
    const sockets: Socket[] = [];
    // A path that goes silent without closing.
    const { connect } = await import("node:net");
    const relay = createServer((near) => {
      const far = connect(port, "127.0.0.1");
      near.on("error", () => {}).pipe(far.on("error", () => {}));
      far.pipe(near);
      sockets.push(near, far);
      setTimeout(() => {
        near.unpipe(far);
        far.unpipe(near);
      }, 100);
    });
    await new Promise<void>((resolve) => relay.listen(0, "127.0.0.1", resolve));
    const address = relay.address() as { port: number };
    const client = stand.client({
      dial: () => connect(address.port, "127.0.0.1"),
      keepalive: { intervalMs: 50, timeoutMs: 200 },
    });
    expect(await codeOf(client.unary({}))).toBe("Unavailable");
    for (const socket of sockets) socket.destroy();
    relay.close();
  });
});
