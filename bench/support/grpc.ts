import { type ClientHttp2Session, connect } from "node:http2";
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

/**
 * The least that speaks gRPC, so that what is measured is the gateway: one HTTP/2 connection over the users' socket,
 * one message out, messages in. https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
 */
export class GrpcClient implements Disposable {
  readonly #session: ClientHttp2Session;

  constructor(socketPath: string) {
    this.#session = connect("http://gateway", { createConnection: () => connectSocket(socketPath) });
    this.#session.on("error", () => {});
    // Bulk output must not wait for the client's window.
    this.#session.once("connect", () => this.#session.setLocalWindowSize(16 * 1024 * 1024));
  }

  /** Calls with an encoded message; resolves with the encoded answers when the status is OK, and rejects otherwise. */
  raw(path: string, message: Uint8Array, onMessage?: (message: Buffer) => void): Promise<readonly Buffer[]> {
    const stream = this.#session.request({
      ":method": "POST",
      ":path": path,
      "content-type": "application/grpc",
      te: "trailers",
    });
    const frame = Buffer.allocUnsafe(5 + message.length);
    frame[0] = 0;
    frame.writeUInt32BE(message.length, 1);
    frame.set(message, 5);
    stream.end(frame);
    return new Promise((resolve, reject) => {
      const answers: Buffer[] = [];
      let rest: Buffer = Buffer.alloc(0);
      let status: string | undefined;
      let text = "";
      const onHeaders = (headers: Record<string, unknown>): void => {
        if (headers["grpc-status"] === undefined) return;
        status = String(headers["grpc-status"]);
        text = String(headers["grpc-message"] ?? "");
      };
      stream.on("response", onHeaders);
      stream.on("trailers", onHeaders);
      stream.on("data", (chunk: Buffer) => {
        rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
        while (rest.length >= 5) {
          const end = 5 + rest.readUInt32BE(1);
          if (rest.length < end) return;
          const answer = rest.subarray(5, end);
          if (onMessage === undefined) answers.push(answer);
          else onMessage(answer);
          rest = rest.subarray(end);
        }
      });
      stream.on("error", reject);
      stream.on("close", () => {
        if (status === "0") resolve(answers);
        else reject(new Error(`${path}: gRPC status ${status ?? "missing"} ${text}`));
      });
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

/** The HTTP path of a method. */
export function pathOf(method: DescMethod): string {
  return `/${method.parent.typeName}/${method.name}`;
}

export function encode<T extends DescMessage>(type: T, value: MessageInitShape<T>): Uint8Array {
  return toBinary(type, create(type, value));
}
