import { expect } from "vitest";
import {
  type Behaviour,
  KINDS,
  LIMIT_BYTES,
  MIB,
  newTag,
  OK,
  RESOURCE_EXHAUSTED,
  roundTrips,
  utf8,
} from "./behaviour.ts";
import { expected, until, valuesOf } from "./caller.ts";
import { payloadOfMessage } from "./payload.ts";
import type { MetadataList } from "./protocol.ts";

/** Messages, their limit and their compression, and metadata. */

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

export const MESSAGES: readonly Behaviour[] = [...sizes, ...streams, ...limits, ...compression, ...metadata];
