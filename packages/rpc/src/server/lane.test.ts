import { create, toBinary } from "@bufbuild/protobuf";
import { BytesValueSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, type HandlerContext, type Interceptor, type ServiceImpl } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@openshell/api/generated/google/rpc/error_details_pb.js";
import { afterEach, describe, expect, it } from "vitest";
import { encodedMessage } from "../encoded.ts";
import type { EchoService } from "../testing/echo.ts";
import { Stand } from "../testing/stand.ts";

const bytes = (text: string) => ({ value: Buffer.from(text) });
const textOf = ({ value }: { value: Uint8Array }): string => Buffer.from(value).toString();

async function collect(messages: AsyncIterable<{ value: Uint8Array }>): Promise<string[]> {
  const seen: string[] = [];
  for await (const message of messages) seen.push(textOf(message));
  return seen;
}

async function* texts(...given: string[]) {
  for (const text of given) yield bytes(text);
}

const echo: Partial<ServiceImpl<EchoService>> = {
  unary: (message) => message,
  async clientStream(messages) {
    return bytes((await collect(messages)).join("+"));
  },
  async *serverStream(message) {
    for (const letter of textOf(message)) yield bytes(letter);
  },
  async *bidiStream(messages) {
    for await (const message of messages) yield bytes(textOf(message).toUpperCase());
  },
};

let stand: Stand;
afterEach(() => stand[Symbol.asyncDispose]());

const failure = (promise: Promise<unknown>): Promise<ConnectError> =>
  promise.then(
    () => Promise.reject(new Error("it succeeded")),
    (error: unknown) => error as ConnectError,
  );

describe("the lane", () => {
  it.each([{}, { useBinaryFormat: false }, { sendCompression: "gzip", compressMinBytes: 0 }] as const)(
    "carries the four kinds of calls with %j",
    async (options) => {
      stand = await Stand.start(echo, { compressMinBytes: 0 });
      const client = stand.client(options);
      expect(textOf(await client.unary(bytes("one")))).toBe("one");
      expect(textOf(await client.unary({}))).toBe("");
      expect(textOf(await client.clientStream(texts("a", "", "b")))).toBe("a++b");
      expect(await collect(client.serverStream(bytes("xyz")))).toEqual(["x", "y", "z"]);
      expect(await collect(client.serverStream(bytes("")))).toEqual([]);
      expect(await collect(client.bidiStream(texts("a", "b")))).toEqual(["A", "B"]);
    },
  );

  it("answers before the caller has said everything", async () => {
    stand = await Stand.start(echo);
    const more = Promise.withResolvers<void>();
    const answers = stand.client().bidiStream(
      (async function* () {
        yield bytes("a");
        await more.promise;
        yield bytes("b");
      })(),
    );
    const iterator = answers[Symbol.asyncIterator]();
    expect(textOf((await iterator.next()).value!)).toBe("A");
    more.resolve();
    expect(textOf((await iterator.next()).value!)).toBe("B");
    expect((await iterator.next()).done).toBe(true);
  });

  it("carries metadata both ways and details of errors, in one envelope with code and message", async () => {
    let seen: HandlerContext | undefined;
    stand = await Stand.start({
      unary(_, context) {
        seen = context;
        context.responseHeader.set("x-head", "h");
        context.responseTrailer.set("x-tail", "t");
        return {};
      },
      async *serverStream() {
        yield bytes("first");
        const detail = { desc: ErrorInfoSchema, value: { reason: "WHY", domain: "d" } };
        throw new ConnectError("ü: no\nway", Code.Aborted, { "x-extra": "e" }, [detail]);
      },
    });
    const client = stand.client();
    const got: (string | null)[] = [];
    await client.unary(
      {},
      {
        headers: { "x-mine": "1", "x-data-bin": "AQI" },
        onHeader: (headers) => got.push(headers.get("x-head")),
        onTrailer: (headers) => got.push(headers.get("x-tail")),
      },
    );
    expect(got).toEqual(["h", "t"]);
    expect([seen?.requestHeader.get("x-mine"), seen?.requestHeader.get("x-data-bin")]).toEqual(["1", "AQI"]);
    expect(new URL(seen!.url).pathname).toBe("/openshell.rpc.testing.Echo/Unary");
    const messages: string[] = [];
    const error = await failure(
      (async () => {
        for await (const message of client.serverStream({})) messages.push(textOf(message));
      })(),
    );
    expect(messages).toEqual(["first"]);
    expect(error).toMatchObject({ code: Code.Aborted, rawMessage: "ü: no\nway" });
    expect(error.metadata.get("x-extra")).toBe("e");
    expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "WHY", domain: "d" }]);
  });

  it("tells strangers nothing of an unexpected error", async () => {
    stand = await Stand.start({
      unary() {
        throw new Error("password 1234");
      },
    });
    expect(await failure(stand.client().unary({}))).toMatchObject({
      code: Code.Internal,
      rawMessage: "internal error",
    });
  });

  it("ends both sides at the deadline, whatever the handler does", async () => {
    const aborted = Promise.withResolvers<unknown>();
    stand = await Stand.start({
      unary: (_, { signal }) => {
        signal.addEventListener("abort", () => aborted.resolve((signal.reason as ConnectError).code));
        return new Promise(() => {});
      },
    });
    expect(await failure(stand.client().unary({}, { timeoutMs: 50 }))).toMatchObject({ code: Code.DeadlineExceeded });
    expect([Code.DeadlineExceeded, Code.Canceled]).toContain(await aborted.promise);
  });

  it("tells the handler that the caller left, even while its messages wait unread", async () => {
    const left = Promise.withResolvers<unknown>();
    const begun = Promise.withResolvers<void>();
    stand = await Stand.start({
      async *bidiStream(messages, { signal }) {
        begun.resolve();
        await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
        left.resolve(await failure(messages[Symbol.asyncIterator]().next()));
        yield {};
      },
    });
    const caller = new AbortController();
    const call = collect(stand.client().bidiStream(texts("a", "b"), { signal: caller.signal }));
    await begun.promise;
    caller.abort();
    expect(await failure(call)).toMatchObject({ code: Code.Canceled });
    expect(await left.promise).toMatchObject({ code: Code.Canceled });
  });

  it("returns the handler's generator when the caller stops reading", async () => {
    const returned = Promise.withResolvers<void>();
    stand = await Stand.start({
      async *serverStream() {
        try {
          for (;;) yield bytes("x".repeat(1000));
        } finally {
          returned.resolve();
        }
      },
    });
    for await (const _message of stand.client().serverStream({})) break;
    await returned.promise;
  });

  it("lets neither side run ahead of a slow reader by more than a window", async () => {
    let sent = 0;
    const payload = Buffer.alloc(64 * 1024);
    stand = await Stand.start({
      async *serverStream() {
        for (; sent < 1_000; sent++) yield { value: payload };
      },
      async clientStream(messages, { signal }) {
        await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
        void messages;
        return {};
      },
    });
    const client = stand.client({ streamWindow: 256 * 1024, connectionWindow: 256 * 1024 });
    const iterator = client.serverStream({})[Symbol.asyncIterator]();
    await iterator.next();
    const settled = async (count: () => number): Promise<number> => {
      for (let before = -1; before !== count(); ) {
        before = count();
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      return count();
    };
    // The caller's window, its read-ahead, what the kernel holds, and the sender's own bound.
    expect((await settled(() => sent)) * payload.length).toBeLessThan(8e6);
    await iterator.return?.();
    let given = 0;
    const caller = new AbortController();
    const upload = client.clientStream(
      (async function* () {
        for (; given < 1_000; given++) yield { value: payload };
      })(),
      { signal: caller.signal },
    );
    upload.catch(() => {});
    expect((await settled(() => given)) * payload.length).toBeLessThan(8e6);
    caller.abort();
    await failure(upload);
  });

  it("refuses messages beyond the limit, stating it, and decompressed sizes count", async () => {
    stand = await Stand.start(echo, { readMaxBytes: 100 });
    const large = { value: Buffer.alloc(200) };
    expect(await failure(stand.client().unary(large))).toMatchObject({
      code: Code.ResourceExhausted,
      rawMessage: "a message of 203 bytes exceeds the limit of 100 bytes: send less at once",
    });
    const bomb = stand.client({ sendCompression: "gzip", compressMinBytes: 0 });
    expect(await failure(bomb.unary({ value: Buffer.alloc(1e6) }))).toMatchObject({ code: Code.ResourceExhausted });
    expect(await failure(stand.client({ readMaxBytes: 10 }).unary(bytes("x".repeat(20))))).toMatchObject({
      code: Code.ResourceExhausted,
    });
  });

  it("sends encoded messages as they are, in the binary format and as JSON", async () => {
    const message = encodedMessage(
      BytesValueSchema,
      toBinary(BytesValueSchema, create(BytesValueSchema, bytes("abc"))),
    );
    stand = await Stand.start({
      unary: () => message,
      async *serverStream() {
        yield message;
      },
    });
    for (const options of [{}, { useBinaryFormat: false }]) {
      const client = stand.client(options);
      expect(textOf(await client.unary({}))).toBe("abc");
      expect(await collect(client.serverStream({}))).toEqual(["abc"]);
    }
  });

  it("runs interceptors as Connect does: outermost first, with what they change", async () => {
    const order: string[] = [];
    const tag =
      (name: string): Interceptor =>
      (next) =>
      async (request) => {
        order.push(name);
        request.header.append("x-seen", name);
        const response = await next(request);
        response.trailer.set(`x-${name}`, "1");
        return response;
      };
    let seen: string | null = null;
    stand = await Stand.start(
      {
        unary(message, context) {
          seen = context.requestHeader.get("x-seen");
          return message;
        },
      },
      { interceptors: [tag("outer"), tag("inner")] },
    );
    const trailers: Headers[] = [];
    await stand.client().unary({}, { onTrailer: (headers) => trailers.push(headers) });
    expect([order, seen]).toEqual([["outer", "inner"], "outer, inner"]);
    expect(["x-outer", "x-inner"].map((name) => trailers[0]?.get(name))).toEqual(["1", "1"]);
  });

  it("gives up calls that a stopping server has not ended", async () => {
    const stopping = new AbortController();
    const begun = Promise.withResolvers<void>();
    stand = await Stand.start(
      {
        unary: (_, { signal }) =>
          new Promise((_resolve, reject) => {
            signal.addEventListener("abort", () => reject(signal.reason));
            begun.resolve();
          }),
      },
      { shutdownSignal: stopping.signal },
    );
    const call = failure(stand.client().unary({}));
    await begun.promise;
    stopping.abort(new ConnectError("going away", Code.Unavailable));
    expect(await call).toMatchObject({ code: Code.Unavailable, rawMessage: "going away" });
  });
});
