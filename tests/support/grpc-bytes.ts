import http2 from "node:http2";
import net from "node:net";
import tls from "node:tls";
import type { Place } from "./http2-frames.ts";

/** gRPC calls by hand over a decent HTTP/2 client: any header fields, any bytes as messages, and everything that came back. */

export interface RawCall {
  readonly path: string;
  /** In place of, or beside, those of a gRPC call; undefined leaves one out. */
  readonly headers?: Readonly<Record<string, string | undefined>>;
  readonly body?: readonly Uint8Array[];
  /** Half-closes after the body. Default: true. */
  readonly end?: boolean;
  /** Gives up, from this side. Milliseconds. */
  readonly timeoutMs?: number;
}

export interface RawAnswer {
  /** HTTP status; 0 where no headers came. */
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** Those of a trailers-only answer are its headers. */
  readonly trailers: Readonly<Record<string, string>>;
  readonly bytes: number;
  /** `grpc-status`, or undefined. */
  readonly code: number | undefined;
  readonly message: string;
  /** HTTP/2 error code of the stream's end. */
  readonly reset: number;
  /** It was this side that gave up. */
  readonly timedOut: boolean;
}

/** A connection for raw calls. */
export class GrpcBytes implements Disposable {
  readonly session: http2.ClientHttp2Session;
  #closed = false;

  constructor(place: Place) {
    const secure = "tls" in place && place.tls !== undefined;
    const dial = () =>
      secure
        ? tls.connect({ ALPNProtocols: ["h2"], ...place.tls, host: place.host, port: place.port })
        : net.connect(place as net.NetConnectOpts);
    this.session = http2.connect(secure ? "https://localhost" : "http://localhost", {
      createConnection: dial,
      // What waits to be sent counts, and Node drops answers beyond it.
      maxSessionMemory: 1_000,
    });
    this.session.on("error", () => {});
    this.session.on("close", () => {
      this.#closed = true;
    });
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** One call to its end. Never rejects. */
  call({ path, headers = {}, body = [], end = true, timeoutMs = 15_000 }: RawCall): Promise<RawAnswer> {
    const fields: Record<string, string> = {};
    const wanted = { ":method": "POST", ":path": path, "content-type": "application/grpc", te: "trailers", ...headers };
    for (const [name, value] of Object.entries(wanted)) if (value !== undefined) fields[name] = value;
    return new Promise((done) => {
      const stream = this.session.request(fields, { endStream: false });
      let status = 0;
      let bytes = 0;
      let timedOut = false;
      let head: Record<string, string> = {};
      let tail: Record<string, string> | undefined;
      const timer = setTimeout(() => {
        timedOut = true;
        stream.close(http2.constants.NGHTTP2_CANCEL);
      }, timeoutMs);
      stream.on("response", (got) => {
        status = Number(got[":status"]);
        head = got as unknown as Record<string, string>;
      });
      stream.on("trailers", (got) => {
        tail = got as unknown as Record<string, string>;
      });
      stream.on("data", (chunk: Buffer) => {
        bytes += chunk.length;
      });
      stream.on("error", () => {});
      stream.on("close", () => {
        clearTimeout(timer);
        const trailers = tail ?? head;
        const code = trailers["grpc-status"];
        done({
          status,
          headers: head,
          trailers,
          bytes,
          code: code === undefined ? undefined : Number(code),
          message: decodeURIComponent(trailers["grpc-message"] ?? ""),
          reset: stream.rstCode ?? 0,
          timedOut,
        });
      });
      void send(stream, body, end);
    });
  }

  [Symbol.dispose](): void {
    this.session.destroy();
  }
}

async function send(stream: http2.ClientHttp2Stream, body: readonly Uint8Array[], end: boolean): Promise<void> {
  for (const part of body) {
    if (stream.destroyed || stream.closed) return;
    if (stream.write(part)) continue;
    await new Promise<void>((done) => stream.once("drain", done).once("close", done));
  }
  if (end && !stream.destroyed && !stream.closed) stream.end();
}
