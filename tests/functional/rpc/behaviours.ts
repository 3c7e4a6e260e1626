import { crc32 } from "node:zlib";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { anyPack } from "@bufbuild/protobuf/wkt";
import { decodeBinaryHeader } from "@connectrpc/connect";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "@openshell/api/generated/google/rpc/error_details_pb.js";
import { StatusSchema } from "@openshell/api/generated/google/rpc/status_pb.js";
import { expect } from "vitest";
import { type Caller, type CallOptions, expected, standstill, until, valuesOf } from "./caller.ts";
import { patterned, payloadOfMessage } from "./payload.ts";
import type { Direction, Pair, PairOptions, PeerName } from "./peers.ts";
import type { Kind, MetadataList } from "./protocol.ts";

/** What holds between us and every peer, whoever calls: the names read as a catalogue. */
export interface Behaviour {
  readonly name: string;
  /** What the pair has to be like; absent: a plain connection over loopback that tests share. */
  readonly pair?: (files: PairFiles) => PairOptions;
  /** The pair does not survive it. */
  readonly ends?: boolean;
  /** Peers that cannot do their part, and why. */
  readonly cannot?: Partial<Record<Direction, Partial<Record<PeerName, string>>>>;
  readonly run: (pair: Pair, direction: Direction) => Promise<void>;
}

/** Made once for all pairs. */
export interface PairFiles {
  readonly tls: NonNullable<PairOptions["tls"]>;
  /** A client certificate that the server's authority did not issue. */
  readonly untrusted: NonNullable<PairOptions["tls"]>;
  /** A new path. */
  readonly socketPath: () => string;
}

const KINDS: readonly Kind[] = ["unary", "server", "client", "bidi"];
const MIB = 1024 * 1024;
const LIMIT_BYTES = 4 * MIB;
/** gRPC's status numbers. */
const OK = 0;
const CANCELLED = 1;
const DEADLINE_EXCEEDED = 4;
const RESOURCE_EXHAUSTED = 8;
const ABORTED = 10;
const UNAVAILABLE = 14;
/** Of one flow in the tests of back-pressure: far beyond every window. */
const FLOOD = { size: 16 * 1024, count: 2_048 } as const;
/**
 * Most that may be with us: our stream window of 1 MiB as receiver, what is handed to the connection as sender; and
 * some room for what lies in between.
 */
const WINDOW_BYTES = 1.5 * MIB;
/** Longer than any test. Milliseconds. */
const LONG_MS = 60_000;

let tags = 0;
/** A name that no other call of this process has. */
function newTag(): string {
  return `tag-${++tags}`;
}

const TEXT = 'käse, 100 % 価格\n"quoted" \u{1f9c0} end ';

function utf8(text: string): string {
  return Buffer.from(text).toString("base64");
}

async function roundTrips(caller: Caller, kind: Kind, size: number, options: CallOptions = {}): Promise<void> {
  const count = kind === "unary" || kind === "server" ? 1 : 3;
  const call = caller.start(kind, options).send(size, 1, count);
  if (count > 1) call.close();
  const { code, message, messages } = await call.ended();
  expect({ code, message }).toEqual({ code: OK, message: "" });
  if (kind !== "client") {
    expect(messages.map(({ length, crc }) => ({ length, crc }))).toEqual(
      Array.from({ length: count }, (_, n) => expected(size, 1 + n)),
    );
    return;
  }
  const all = Array.from({ length: count }, (_, n) => patterned(size, 1 + n));
  expect(messages[0]?.text).toBe(`${count} ${size * count} ${crc32(Buffer.concat(all))}`);
}

const METADATA: MetadataList = [
  ["x-one", "first"],
  ["x-many", "a"],
  ["x-many", "b"],
  ["x-many", "c"],
  ["x-printable", "~ !\"#$%&'()*+-./:;<=>?@[]^_`{|}"],
  ["x-bytes-bin", Buffer.from([0, 1, 127, 128, 255]).toString("base64")],
  ["x-odd-bin", Buffer.from([250]).toString("base64")],
];

function expectMetadata(got: MetadataList, prefix: string): void {
  const bytes = (key: string) => valuesOf(got, `${prefix}${key}`).map((value) => Buffer.from(value, "base64"));
  expect(valuesOf(got, `${prefix}one`)).toEqual(["first"]);
  expect(valuesOf(got, `${prefix}many`)).toEqual(["a", "b", "c"]);
  expect(valuesOf(got, `${prefix}printable`)).toEqual(["~ !\"#$%&'()*+-./:;<=>?@[]^_`{|}"]);
  expect(bytes("bytes-bin")).toEqual([Buffer.from([0, 1, 127, 128, 255])]);
  expect(bytes("odd-bin")).toEqual([Buffer.from([250])]);
}

const sizes: readonly Behaviour[] = KINDS.map((kind) => ({
  name: `${kind}: messages of 0, 1, 16,384 and 1,048,576 bytes arrive whole`,
  run: async ({ caller }) => {
    for (const size of [0, 1, 16_384, MIB]) await roundTrips(caller, kind, size);
  },
}));

const streams: readonly Behaviour[] = [
  {
    name: "server: a thousand messages in order, and a stream of none",
    run: async ({ caller }) => {
      const many = await caller
        .start("server", {
          metadata: [
            ["do-count", "1000"],
            ["do-size", "100"],
          ],
        })
        .send(0)
        .ended();
      expect(many.code).toBe(OK);
      expect(many.messages.map(({ crc }) => crc)).toEqual(Array.from({ length: 1000 }, (_, n) => expected(100, n).crc));
      const none = await caller
        .start("server", { metadata: [["do-count", "0"]] })
        .send(0)
        .ended();
      expect([none.code, none.messages]).toEqual([OK, []]);
    },
  },
  {
    name: "client: a stream of none is answered",
    run: async ({ caller }) => {
      const { code, messages } = await caller.start("client").close().ended();
      expect([code, messages[0]?.text]).toEqual([OK, "0 0 0"]);
    },
  },
  {
    name: "bidi: each message is answered before the next is sent",
    run: async ({ caller }) => {
      const call = caller.start("bidi");
      for (let n = 0; n < 20; n++) {
        call.send(100, n);
        expect(await call.message(n + 1)).toMatchObject(expected(100, n));
      }
      expect((await call.close().ended()).code).toBe(OK);
    },
  },
  {
    name: "bidi: answers go on after the client has half-closed, and the handler knows that it has",
    run: async ({ caller }) => {
      const [tag, gate] = [newTag(), newTag()];
      const metadata: MetadataList = [
        ["do-tag", tag],
        ["do-hold", gate],
      ];
      const call = caller.start("bidi", { metadata }).send(1_000, 0, 50).close();
      await until("messages sent", () => (call.sent === 50 ? true : undefined));
      expect(call.messages).toEqual([]);
      await caller.release(gate);
      const { code, messages } = await call.ended();
      expect([code, messages.length]).toEqual([OK, 50]);
      expect(await caller.report(tag)).toMatchObject({ halfClosed: true, cancelled: false, received: 50 });
    },
  },
  {
    name: "a hundred calls at once over one connection, each answered with its own",
    run: async ({ caller }) => {
      const calls = Array.from({ length: 100 }, (_, n) => {
        const call = caller.start(KINDS[n % 4]!).send(1_000, n);
        return n % 4 < 2 ? call : call.close();
      });
      for (const [n, call] of calls.entries()) {
        const { code, messages } = await call.ended();
        const want = n % 4 === 2 ? { text: `1 1000 ${expected(1_000, n).crc}` } : expected(1_000, n);
        expect([code, messages]).toMatchObject([OK, [want]]);
      }
    },
  },
];

const limits: readonly Behaviour[] = [
  {
    name: "a message of exactly 4 MiB passes both ways",
    run: async ({ caller }) => {
      const size = payloadOfMessage(LIMIT_BYTES);
      const { code, messages } = await caller.unary(size, 3);
      expect([code, messages]).toMatchObject([OK, [expected(size, 3)]]);
    },
  },
  {
    name: "a request of 4 MiB and a byte is RESOURCE_EXHAUSTED, with both numbers in the text, and the next call works",
    run: async ({ caller }, direction) => {
      for (const kind of ["unary", "client"] as const) {
        const call = caller.start(kind).send(payloadOfMessage(LIMIT_BYTES + 1));
        const { code, message } = await (kind === "unary" ? call : call.close()).ended();
        expect(code).toBe(RESOURCE_EXHAUSTED);
        if (direction === "calls us") expect(message).toMatch(/4194305.*4194304/);
      }
      expect((await caller.unary(10)).code).toBe(OK);
    },
  },
  {
    name: "an answer of 4 MiB and a byte is RESOURCE_EXHAUSTED at the client, and the next call works",
    run: async ({ caller }, direction) => {
      const metadata: MetadataList = [["do-size", String(payloadOfMessage(LIMIT_BYTES + 1))]];
      const { code, message, messages } = await caller.start("server", { metadata }).send(0).ended();
      expect([code, messages]).toEqual([RESOURCE_EXHAUSTED, []]);
      if (direction === "is called by us") expect(message).toMatch(/4194305.*4194304/);
      expect((await caller.unary(10)).code).toBe(OK);
    },
  },
];

const compression: readonly Behaviour[] = [
  {
    name: "gzip: requests of every kind, compressed on the wire and whole at the handler",
    run: async ({ caller, traffic }) => {
      await caller.unary(0);
      const before = traffic().requests;
      for (const kind of KINDS) await roundTrips(caller, kind, MIB, { gzip: true });
      expect(traffic().requests - before).toBeLessThan(MIB / 2);
    },
  },
  {
    name: "gzip: answers of every kind, compressed on the wire and whole at the client",
    pair: () => ({ gzip: true }),
    cannot: {
      "is called by us": { "grpc-js": "its server does not compress" },
    },
    run: async ({ caller, traffic }) => {
      for (const kind of KINDS) await roundTrips(caller, kind, MIB, { gzip: true });
      expect(traffic().answers).toBeLessThan(MIB / 2);
    },
  },
  {
    name: "gzip: a message whose decoded size is 4 MiB passes, a byte more is RESOURCE_EXHAUSTED",
    run: async ({ caller }) => {
      const size = payloadOfMessage(LIMIT_BYTES);
      expect((await caller.unary(size, 0, { gzip: true })).code).toBe(OK);
      expect((await caller.unary(size + 1, 0, { gzip: true })).code).toBe(RESOURCE_EXHAUSTED);
      expect((await caller.unary(10, 0, { gzip: true })).code).toBe(OK);
    },
  },
];

const metadata: readonly Behaviour[] = [
  ...KINDS.map(
    (kind): Behaviour => ({
      name: `${kind}: metadata comes back in headers and trailers: text, repeated keys in order, bytes in -bin`,
      run: async ({ caller }) => {
        const call = caller.start(kind, { metadata: [...METADATA, ["do-echo-metadata", "1"]] }).send(5);
        const { code, headers, trailers } = await (kind === "unary" || kind === "server" ? call : call.close()).ended();
        expect(code).toBe(OK);
        expectMetadata(headers, "h-");
        expectMetadata(trailers, "t-");
      },
    }),
  ),
  {
    name: "trailers come with an error too",
    run: async ({ caller }) => {
      const told: MetadataList = [
        ...METADATA,
        ["do-echo-metadata", "1"],
        ["do-fail", "9"],
        ["do-message-bin", utf8("no")],
      ];
      const { code, message, trailers } = await caller.unary(5, 0, { metadata: told });
      expect([code, message]).toEqual([9, "no"]);
      expectMetadata(trailers, "t-");
    },
  },
];

/** A status with three kinds of details, as api errors carry them. */
function richStatus(code: number, message: string) {
  const violation = { field: "spec.name", description: "zu lang: 価格 %41" };
  return create(StatusSchema, {
    code,
    message,
    details: [
      anyPack(
        ErrorInfoSchema,
        create(ErrorInfoSchema, { reason: "WRONG", domain: "openshell.nvidia.com", metadata: { kind: "sandbox" } }),
      ),
      anyPack(BadRequestSchema, create(BadRequestSchema, { fieldViolations: [violation] })),
      anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay: { seconds: 2n, nanos: 5 } })),
    ],
  });
}

const errors: readonly Behaviour[] = [
  {
    name: "every code from 1 to 16 arrives as it is",
    run: async ({ caller }) => {
      for (let code = 1; code <= 16; code++) {
        const told: MetadataList = [
          ["do-fail", String(code)],
          ["do-message-bin", utf8(`number ${code}`)],
        ];
        const ended = await caller.unary(1, 0, { metadata: told });
        expect([ended.code, ended.message]).toEqual([code, `number ${code}`]);
      }
    },
  },
  ...KINDS.map(
    (kind): Behaviour => ({
      name: `${kind}: an error's text with non-ASCII letters, percent signs, quotes and a line break arrives as it is`,
      run: async ({ caller }) => {
        const told: MetadataList = [
          ["do-fail", "5"],
          ["do-message-bin", utf8(TEXT)],
        ];
        const call = caller.start(kind, { metadata: told }).send(1);
        const { code, message } = await call.ended();
        expect([code, message]).toEqual([5, TEXT]);
      },
    }),
  ),
  {
    name: "status details: code and message equal the transport's, and every detail arrives byte for byte",
    run: async ({ caller }) => {
      const status = richStatus(3, TEXT);
      const told: MetadataList = [
        ["do-fail", "3"],
        ["do-message-bin", utf8(TEXT)],
        ["do-details-bin", Buffer.from(toBinary(StatusSchema, status)).toString("base64")],
      ];
      const { code, message, trailers } = await caller.unary(1, 0, { metadata: told });
      const [encoded] = valuesOf(trailers, "grpc-status-details-bin");
      const got = fromBinary(StatusSchema, decodeBinaryHeader(encoded!));
      expect([code, message]).toEqual([3, TEXT]);
      expect([got.code, got.message]).toEqual([code, message]);
      expect(got.details).toEqual(status.details);
    },
  },
  ...(["server", "bidi"] as const).map(
    (kind): Behaviour => ({
      name: `${kind}: an error after three messages comes after all three`,
      run: async ({ caller }) => {
        const told: MetadataList = [
          ["do-fail", "10"],
          ["do-fail-after", "3"],
          ["do-count", "9"],
          ["do-size", "50000"],
        ];
        const call = caller.start(kind, { metadata: told });
        if (kind === "server") call.send(0);
        else call.send(50_000, 0, 9).close();
        const { code, messages } = await call.ended();
        expect([code, messages.length]).toEqual([10, 3]);
      },
    }),
  ),
];

const endings: readonly Behaviour[] = [
  ...KINDS.map(
    (kind): Behaviour => ({
      name: `${kind}: a deadline shorter than the work: the client gets DEADLINE_EXCEEDED, the handler knew it and is told`,
      run: async ({ caller }) => {
        const tag = newTag();
        const told: MetadataList = [
          ["do-tag", tag],
          ["do-hold", newTag()],
        ];
        const { code } = await caller.start(kind, { metadata: told, deadlineMs: 400 }).send(1).ended();
        expect(code).toBe(DEADLINE_EXCEEDED);
        const report = await caller.reported(tag, "cancelled", ({ cancelled }) => cancelled);
        expect(report.deadlineMs).toBeGreaterThan(0);
        // Clients round up, to whole milliseconds or more.
        expect(report.deadlineMs).toBeLessThanOrEqual(410);
      },
    }),
  ),
  {
    name: "a deadline that is long enough harms nobody, and without one the handler sees none",
    run: async ({ caller }) => {
      const tag = newTag();
      expect((await caller.unary(1, 0, { deadlineMs: LONG_MS, metadata: [["do-tag", tag]] })).code).toBe(OK);
      const { deadlineMs, cancelled } = await caller.report(tag);
      expect(cancelled).toBe(false);
      expect(deadlineMs).toBeGreaterThan(LONG_MS / 2);
      // Clients round up.
      expect(deadlineMs).toBeLessThanOrEqual(LONG_MS * 1.01);
      const other = newTag();
      await caller.unary(1, 0, { metadata: [["do-tag", other]] });
      expect((await caller.report(other)).deadlineMs).toBeNull();
    },
  },
  ...KINDS.map(
    (kind): Behaviour => ({
      name: `${kind}: the client cancels: CANCELLED there, and the handler is told`,
      run: async ({ caller }) => {
        const tag = newTag();
        const told: MetadataList = [
          ["do-tag", tag],
          ["do-hold", newTag()],
        ];
        const call = caller.start(kind, { metadata: told }).send(1);
        await caller.reported(tag, "started", ({ started }) => started);
        call.cancel();
        expect((await call.ended()).code).toBe(CANCELLED);
        await caller.reported(tag, "cancelled", ({ cancelled }) => cancelled);
      },
    }),
  ),
  {
    name: "bidi: the client cancels in the middle of a flow: the handler is told, and the connection lives",
    run: async ({ caller }) => {
      const tag = newTag();
      const call = caller.start("bidi", { metadata: [["do-tag", tag]], reads: 1 }).send(16_384, 0, 1_000);
      await call.message(1);
      call.cancel();
      expect((await call.ended()).code).toBe(CANCELLED);
      await caller.reported(tag, "cancelled", ({ cancelled }) => cancelled);
      expect((await caller.unary(10)).code).toBe(OK);
    },
  },
  ...(["client", "bidi"] as const).map(
    (kind): Behaviour => ({
      name: `${kind}: the server ends well while the client still sends: its answers and OK arrive`,
      run: async ({ caller }) => {
        const tag = newTag();
        const told: MetadataList = [
          ["do-tag", tag],
          ["do-end-after", "3"],
        ];
        const call = caller.start(kind, { metadata: told }).send(10_000, 0, 200);
        const { code, messages } = await call.ended();
        expect([code, messages.length]).toEqual([OK, kind === "client" ? 1 : 3]);
        expect(await caller.report(tag)).toMatchObject({ received: 3, done: true, cancelled: false });
        expect((await caller.unary(10)).code).toBe(OK);
      },
    }),
  ),
];

/** `taken` messages have left their maker while nobody reads them, and `wire` bytes have been sent. */
function expectWindow(taken: number, wire: number, we: "sender" | "receiver"): void {
  expect(taken).toBeLessThan(FLOOD.count);
  // What we let in is our window; what a peer lets in is its own affair, but the rest may not pile up with us.
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
      // Fifteen pings, at least.
      await new Promise((done) => setTimeout(done, 1_500));
      call.send(1).close();
      expect(await call.ended()).toMatchObject({ code: OK, messages: [{}, {}] });
      await new Promise((done) => setTimeout(done, 500));
      expect((await caller.unary(1)).code).toBe(OK);
    },
  },
  {
    name: "a server that has stopped answering, though its connection stands, is found out by pings",
    pair: () => ({ keepaliveMs: 300 }),
    ends: true,
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
    ends: true,
    pair: () => ({}),
    run: async ({ caller, drain }) => {
      const call = caller.start("bidi").send(100, 0);
      await call.message(1);
      const { drained, connections: made } = await drain();
      // Calls that cross the GOAWAY on their way are refused, and may be tried again.
      await until("a call on a new connection", async () => {
        const { code, message } = await caller.unary(10);
        if (code !== OK) expect(message).toMatch(/REFUSED_STREAM|GOAWAY|HTTP\/2 code 7/);
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
      // connect-es as a client says ABORTED when a connection ends before it could be used.
      expect(direction === "is called by us" ? [UNAVAILABLE] : [UNAVAILABLE, ABORTED], message).toContain(code);
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

export const BEHAVIOURS: readonly Behaviour[] = [
  ...sizes,
  ...streams,
  ...limits,
  ...compression,
  ...metadata,
  ...errors,
  ...endings,
  ...pressure,
  ...connections,
];
