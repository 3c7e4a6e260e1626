import { type ClientHttp2Session, type ClientHttp2Stream, connect, type IncomingHttpHeaders } from "node:http2";
import { connect as connectSocket } from "node:net";
import type { DescMethod } from "@bufbuild/protobuf";
import {
  create,
  type DescMessage,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";

/** Bytes that may be under way to this client: a fast sender is never stalled by a round trip. */
const STREAM_WINDOW = 1024 * 1024;
const CONNECTION_WINDOW = 16 * 1024 * 1024;

export interface Duplex {
  readonly ended: Promise<void>;
  /** False: it should be told less for now. */
  readonly write: (frame: Buffer) => boolean;
  readonly end: () => void;
}

/**
 * The least that speaks gRPC, so that what is measured is the gateway: one HTTP/2 connection over the users' socket,
 * one message out, messages in. https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
 */
export class GrpcClient implements Disposable {
  readonly #session: ClientHttp2Session;

  constructor(socketPath: string) {
    this.#session = connect("http://gateway", {
      createConnection: () => connectSocket(socketPath),
      settings: { initialWindowSize: STREAM_WINDOW },
    });
    this.#session.on("error", () => {});
    this.#session.once("connect", () => this.#session.setLocalWindowSize(CONNECTION_WINDOW));
  }

  /** Calls with an encoded message; resolves with the encoded answers when the status is OK, and rejects otherwise. */
  async raw(path: string, message: Uint8Array, onMessage?: (message: Buffer) => void): Promise<readonly Buffer[]> {
    const stream = this.#request(path);
    const answers: Buffer[] = [];
    const ended = received(path, stream, onMessage ?? ((answer) => answers.push(answer)));
    stream.end(frameOf(message));
    await ended;
    return answers;
  }

  /** A stream both ways: takes framed messages, gives messages; `ended` is how it ends. */
  duplex(path: string, onMessage: (message: Buffer) => void): Duplex {
    const stream = this.#request(path);
    const ended = received(path, stream, onMessage);
    return { ended, write: (frame) => stream.write(frame), end: () => stream.end() };
  }

  #request(path: string): ClientHttp2Stream {
    return this.#session.request({
      ":method": "POST",
      ":path": path,
      "content-type": "application/grpc",
      te: "trailers",
    });
  }

  /** A unary call. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethod & { readonly input: I; readonly output: O },
    input: MessageInitShape<I>,
  ): Promise<MessageShape<O>> {
    const [answer] = await this.raw(pathOf(method), encode(method.input, input));
    return fromBinary(method.output, answer!);
  }

  /** A server stream, read to its end. */
  async stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethod & { readonly input: I; readonly output: O },
    input: MessageInitShape<I>,
    onMessage: (message: MessageShape<O>) => void,
  ): Promise<void> {
    await this.raw(pathOf(method), encode(method.input, input), (bytes) => onMessage(fromBinary(method.output, bytes)));
  }

  [Symbol.dispose](): void {
    this.#session.destroy();
  }
}

/** Reads a call to its end; rejects unless its status is OK. */
function received(path: string, stream: ClientHttp2Stream, onMessage: (message: Buffer) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    let rest: Buffer | undefined;
    let status: string | undefined;
    let text = "";
    const onHeaders = (headers: IncomingHttpHeaders): void => {
      if (headers["grpc-status"] === undefined) return;
      status = String(headers["grpc-status"]);
      text = String(headers["grpc-message"] ?? "");
    };
    const settle = (): void => {
      if (status === "0") resolve();
      else reject(new Error(`${path}: gRPC status ${status ?? "missing"} ${text}`));
    };
    stream.on("response", onHeaders);
    stream.on("trailers", onHeaders);
    stream.on("data", (chunk: Buffer) => {
      let bytes = rest === undefined ? chunk : Buffer.concat([rest, chunk]);
      rest = undefined;
      while (bytes.length > 0) {
        const end = bytes.length < FRAME_HEAD ? Number.POSITIVE_INFINITY : FRAME_HEAD + bytes.readUInt32BE(1);
        if (bytes.length < end) {
          rest = bytes;
          return;
        }
        onMessage(bytes.subarray(FRAME_HEAD, end));
        bytes = bytes.subarray(end);
      }
    });
    stream.on("error", reject);
    // The trailers come before it; only a call that broke has none by then.
    stream.on("end", () => status !== undefined && settle());
    stream.on("close", settle);
  });
}

/** Flag and length before each message. */
const FRAME_HEAD = 5;

/** A message with its flag and length. */
export function frameOf(message: Uint8Array): Buffer {
  const frame = Buffer.allocUnsafe(FRAME_HEAD + message.length);
  frame[0] = 0;
  frame.writeUInt32BE(message.length, 1);
  frame.set(message, FRAME_HEAD);
  return frame;
}

/** The HTTP path of a method. */
export function pathOf(method: DescMethod): string {
  return `/${method.parent.typeName}/${method.name}`;
}

export function encode<T extends DescMessage>(type: T, value: MessageInitShape<T>): Uint8Array {
  return toBinary(type, create(type, value));
}
