import { once } from "node:events";
import { createServer, type Http2Server, type ServerHttp2Stream } from "node:http2";
import { type AddressInfo, connect } from "node:net";
import { create } from "@bufbuild/protobuf";
import { BytesValueSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { afterEach, expect, it } from "vitest";
import { Echo } from "../testing/echo.ts";
import { grpcLane } from "./lane.ts";

/**
 * A caller that is still sending when its call ends gets the status first and is then told to stop. Written in frames,
 * since libraries hide their order.
 */

const DATA = 0;
const HEADERS = 1;
const RST_STREAM = 3;
const SETTINGS = 4;
const END_STREAM = 1;
const END_HEADERS = 4;

let server: Http2Server | undefined;
afterEach(() => server?.close());

function frame(type: number, flags: number, stream: number, payload: Buffer): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head[3] = type;
  head[4] = flags;
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

/** A header field as HPACK has it without tables. */
function field(name: string, value: string): Buffer {
  return Buffer.from(`\x00${String.fromCharCode(name.length)}${name}${String.fromCharCode(value.length)}${value}`);
}

/** What interceptors saw fail. */
const intercepted: unknown[] = [];
const watching: Interceptor = (next) => async (request) => {
  const response = await next(request);
  if (!response.stream) return response;
  const { message } = response;
  async function* watched() {
    try {
      yield* message;
    } catch (error) {
      intercepted.push(error);
      throw error;
    }
  }
  return { ...response, message: watched() };
};

/** Kinds of frames of the answer to a call whose caller sends `body` and does not end, up to the reset. */
async function answerTo(method: string, body: Buffer): Promise<string[]> {
  const lane = grpcLane({
    readMaxBytes: 1024,
    interceptors: [watching],
    routes: (router) =>
      router.service(Echo, {
        async *bidiStream(messages) {
          for await (const _message of messages) {
            yield create(BytesValueSchema, { value: new Uint8Array(3) });
            throw new ConnectError("enough", Code.ResourceExhausted);
          }
        },
      }),
  });
  server = createServer();
  server.on("stream", (stream, headers) => lane.handle(stream as ServerHttp2Stream, headers));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const socket = connect((server.address() as AddressInfo).port, "127.0.0.1");
  const fields = Object.entries({
    ":method": "POST",
    ":scheme": "http",
    ":path": `/${Echo.typeName}/${method}`,
    ":authority": "x",
    "content-type": "application/grpc",
    te: "trailers",
  }).map(([name, value]) => field(name, value));
  socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  socket.write(frame(SETTINGS, 0, 0, Buffer.alloc(0)));
  socket.write(frame(HEADERS, END_HEADERS, 1, Buffer.concat(fields)));
  socket.write(frame(DATA, 0, 1, body));
  const seen: string[] = [];
  let received = Buffer.alloc(0);
  try {
    for await (const part of socket) {
      received = Buffer.concat([received, part as Buffer]);
      while (received.length >= 9 && received.length >= 9 + received.readUIntBE(0, 3)) {
        const [type, flags, stream] = [received[3]!, received[4]!, received.readUInt32BE(5)];
        received = received.subarray(9 + received.readUIntBE(0, 3));
        if (stream !== 1) continue;
        const name = { [DATA]: "data", [HEADERS]: "headers", [RST_STREAM]: "reset" }[type];
        if (name !== undefined) seen.push((flags & END_STREAM) !== 0 && type !== RST_STREAM ? `${name}, end` : name);
        if (type === RST_STREAM) return seen;
      }
    }
    return seen;
  } finally {
    socket.destroy();
  }
}

it("a message beyond the limit: the status arrives before the reset", async () => {
  const prefix = Buffer.from([0, 0, 80, 0, 0]);
  expect(await answerTo("Unary", Buffer.concat([prefix, Buffer.alloc(9_000)]))).toEqual(["headers, end", "reset"]);
});

it("a message of a stream beyond the limit: interceptors see what the caller is told", async () => {
  const prefix = Buffer.from([0, 0, 80, 0, 0]);
  intercepted.length = 0;
  const answer = await answerTo("BidiStream", Buffer.concat([prefix, Buffer.alloc(9_000)]));
  expect(answer.at(-2)).toBe("headers, end");
  expect(intercepted).toEqual([expect.any(ConnectError)]);
  expect(intercepted[0]).toMatchObject({ code: Code.ResourceExhausted });
});

it("an error after output: output and status arrive before the reset", async () => {
  const empty = Buffer.alloc(5);
  expect(await answerTo("BidiStream", empty)).toEqual(["headers", "data", "headers, end", "reset"]);
});
