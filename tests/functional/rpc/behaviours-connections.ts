import { expect } from "vitest";
import { ABORTED, type Behaviour, CANCELLED, KINDS, MIB, newTag, OK, roundTrips, UNAVAILABLE } from "./behaviour.ts";
import { expected, standstill, until } from "./caller.ts";
import type { MetadataList } from "./protocol.ts";

/** Back-pressure, keepalive, drain, TLS, unix sockets. */

/** Of one flow in the tests of back-pressure: far beyond every window. */
const FLOOD = { size: 16 * 1024, count: 2_048 } as const;
/**
 * Most that may be with us: our stream window of 1 MiB as receiver, what is handed to the connection as sender; and
 * some room for what lies in between.
 */
const WINDOW_BYTES = 1.5 * MIB;
/** `taken` messages have left their maker while nobody reads them, and `wire` bytes have been sent. */
function expectWindow(taken: number, wire: number, we: "sender" | "receiver"): void {
  // What we let in is our window; what a peer lets in is its own affair (some let all in), but the rest may not pile up with us.
  if (we === "receiver") expect(taken).toBeLessThan(FLOOD.count);
  const bytes = we === "receiver" ? wire : taken * FLOOD.size - wire;
  expect(bytes).toBeLessThanOrEqual(WINDOW_BYTES);
}

const pressure: readonly Behaviour[] = [
  {
    name: "a handler that does not read: the client's messages stay with it but for one window, and all arrive later",
    run: async ({ caller, traffic }, direction) => {
      const [tag, gate] = [newTag(), newTag()];
      const told: MetadataList = [
        ["do-tag", tag],
        ["do-hold", gate],
      ];
      const before = traffic().requests;
      const call = caller.start("client", { metadata: told }).send(FLOOD.size, 0, FLOOD.count).close();
      await caller.reported(tag, "started", ({ started }) => started);
      const taken = await standstill(() => call.sent);
      expectWindow(taken, traffic().requests - before, direction === "calls us" ? "receiver" : "sender");
      await caller.release(gate);
      const { code, messages } = await call.ended();
      expect(code).toBe(OK);
      expect(messages[0]?.text).toMatch(new RegExp(`^${FLOOD.count} ${FLOOD.count * FLOOD.size} `));
    },
  },
  {
    name: "a client that does not read: the handler's messages stay with it but for one window, and all arrive later",
    run: async ({ caller, traffic }, direction) => {
      const tag = newTag();
      const told: MetadataList = [
        ["do-tag", tag],
        ["do-count", String(FLOOD.count)],
        ["do-size", String(FLOOD.size)],
      ];
      const before = traffic().answers;
      const call = caller.start("server", { metadata: told, reads: 1 }).send(0);
      await call.message(1);
      const taken = await standstill(async () => (await caller.report(tag)).sent);
      expectWindow(taken, traffic().answers - before, direction === "calls us" ? "sender" : "receiver");
      call.read(FLOOD.count);
      const { code, messages } = await call.ended();
      expect([code, messages.length]).toEqual([OK, FLOOD.count]);
    },
  },
  {
    name: "a call that nobody reads does not hold up another on the same connection",
    run: async ({ caller }) => {
      const told: MetadataList = [
        ["do-count", String(FLOOD.count)],
        ["do-size", String(FLOOD.size)],
      ];
      const call = caller.start("server", { metadata: told, reads: 1 }).send(0);
      await call.message(1);
      for (let n = 0; n < 20; n++) expect((await caller.unary(10_000, n)).code).toBe(OK);
      call.cancel();
      expect((await call.ended()).code).toBe(CANCELLED);
    },
  },
];

const connections: readonly Behaviour[] = [
  {
    name: "a client that pings ten times a second, with and without a call, is not cut off",
    pair: () => ({ keepaliveMs: 100 }),
    cannot: {
      "calls us": {
        "grpc-go": "it does not ping more often than every 10 s",
        "grpc-python": "its core does not ping more often than every 10 s without being asked for data",
      },
      "is called by us": {
        "grpc-go": "its server ends connections that ping more often than every 5 minutes (too_many_pings)",
        "grpc-python": "its server ends connections that ping more often than every 5 minutes (too_many_pings)",
      },
    },
    run: async ({ caller }) => {
      const call = caller.start("bidi").send(1);
      await call.message(1);
      // Ten pings, more or less.
      await new Promise((done) => setTimeout(done, 1_000));
      call.send(1).close();
      expect(await call.ended()).toMatchObject({ code: OK, messages: [{}, {}] });
      await new Promise((done) => setTimeout(done, 300));
      expect((await caller.unary(1)).code).toBe(OK);
    },
  },
  {
    name: "a server that has stopped answering, though its connection stands, is found out by pings",
    pair: () => ({ keepaliveMs: 300, keepaliveTimeoutMs: 600 }),
    cannot: {
      "calls us": {
        "grpc-js": "our server is the one that would have to stop",
        "grpc-python": "our server is the one that would have to stop",
        "grpc-go": "our server is the one that would have to stop",
        "connect-es": "our server is the one that would have to stop",
      },
    },
    run: async ({ caller, process }) => {
      const call = caller.start("bidi").send(1);
      await call.message(1);
      process.child.kill("SIGSTOP");
      expect((await call.ended()).code).toBe(UNAVAILABLE);
    },
  },
  {
    name: "GOAWAY: the call under way finishes, the next one goes to a new connection",
    pair: () => ({}),
    run: async ({ caller, drain }) => {
      const call = caller.start("bidi").send(100, 0);
      await call.message(1);
      const { drained, connections: made } = await drain();
      // Calls that cross the GOAWAY on their way are refused (by grpcio's server as cancelled), and may be tried again.
      await until("a call on a new connection", async () => {
        const { code, message } = await caller.unary(10);
        if (code !== OK) expect(message).toMatch(/REFUSED_STREAM|GOAWAY|HTTP\/2 code 7|^CANCELLED$/);
        return made() > 0 ? true : undefined;
      });
      for (let n = 1; n < 5; n++) {
        call.send(100, n);
        expect(await call.message(n + 1)).toMatchObject(expected(100, n));
      }
      expect((await call.close().ended()).code).toBe(OK);
      await drained;
    },
  },
  {
    name: "TLS with certificates both ways: all kinds work, and the handler reads the client's name",
    pair: ({ tls }) => ({ tls }),
    run: async ({ caller }) => {
      for (const kind of KINDS) await roundTrips(caller, kind, 100_000);
      const tag = newTag();
      await caller.unary(1, 0, { metadata: [["do-tag", tag]] });
      expect((await caller.report(tag)).peerName).toBe("the client");
    },
  },
  {
    name: "TLS: a client whose certificate another authority issued gets UNAVAILABLE, never an answer",
    pair: ({ untrusted }) => ({ tls: untrusted }),
    run: async ({ caller }, direction) => {
      const { code, message, messages } = await caller.unary(1, 0, { deadlineMs: 10_000 });
      expect(messages).toEqual([]);
      // connect-es as a client says ABORTED or CANCELLED when a connection ends before it could be used.
      expect(direction === "is called by us" ? [UNAVAILABLE] : [UNAVAILABLE, ABORTED, CANCELLED], message).toContain(
        code,
      );
    },
  },
  {
    name: "a unix socket: all kinds work",
    pair: ({ socketPath }) => ({ unix: socketPath() }),
    run: async ({ caller }) => {
      for (const kind of KINDS) await roundTrips(caller, kind, 100_000);
    },
  },
];

export const CONNECTIONS: readonly Behaviour[] = [...pressure, ...connections];
