import type { ClientHttp2Session, ClientHttp2Stream, IncomingHttpHeaders } from "node:http2";
import type { Socket } from "node:net";
import { type Endpoint, SERVICE_PATH, tlsOptions } from "./endpoint.ts";
import { encodeFrame, FrameSplitter } from "./framing.ts";
import { CONNECT_TIMEOUT_MS, STREAM_WINDOW_BYTES } from "./limits.ts";
import { codeFromNumber, RpcError, readStatusDetails } from "./rpc-error.ts";
import { connectionError } from "./unreachable.ts";

/**
 * One bidirectional gRPC call over a connection of its own; messages are bytes.
 * https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
 */
export class GrpcStream {
  readonly #endpoint: Endpoint;
  readonly #connection: Connection;
  readonly #stream: ClientHttp2Stream;
  #failure: RpcError | undefined;
  #status: RpcError | "ok" | undefined;

  constructor(endpoint: Endpoint, connection: Connection, stream: ClientHttp2Stream) {
    this.#endpoint = endpoint;
    this.#connection = connection;
    this.#stream = stream;
    connection.session.on("error", (error) => this.#fail(error));
    stream.on("error", (error) => this.#fail(error));
    stream.on("response", (headers) => this.#onHeaders(headers, false));
    stream.on("trailers", (headers) => this.#onHeaders(headers, true));
  }

  /** Resolves when the transport took the message; a call that has ended swallows it, since its status tells. */
  send(message: Uint8Array): Promise<void> {
    const stream = this.#stream;
    if (stream.destroyed || stream.writableEnded) return Promise.resolve();
    return new Promise((resolve) => {
      if (stream.write(encodeFrame(message))) resolve();
      else {
        const done = (): void => {
          stream.off("drain", done);
          stream.off("close", done);
          resolve();
        };
        stream.once("drain", done);
        stream.once("close", done);
      }
    });
  }

  /** No more messages from us. */
  end(): void {
    if (!this.#stream.destroyed && !this.#stream.writableEnded) this.#stream.end();
  }

  /** Messages of the gateway until the call ended with OK; throws {@link RpcError} for any other end. */
  async *messages(): AsyncGenerator<Uint8Array, void, void> {
    const splitter = new FrameSplitter();
    try {
      for await (const chunk of this.#stream) {
        for (const frame of splitter.push(chunk as Uint8Array)) {
          if (frame.flags !== 0) throw new RpcError("internal", "the gateway sent a compressed message unasked");
          yield frame.data;
        }
      }
    } catch (error) {
      throw this.#result() ?? this.#failure ?? connectionError(error, this.#endpoint);
    }
    const result = this.#result() ?? this.#failure;
    if (result !== undefined) throw result;
    if (this.#status === "ok" && splitter.empty) return;
    throw new RpcError("unavailable", "the connection to the gateway was lost before the call ended");
  }

  /**
   * Ends the call from our side, whatever its state, and the connection. Never throws.
   *
   * The socket goes first: closing the stream would end its request body in order, which for the process inside is the end
   * of its input.
   */
  close(): void {
    this.#connection.socket.destroy();
    this.#connection.session.destroy();
  }

  #fail(error: unknown): void {
    this.#failure ??= connectionError(error, this.#endpoint);
  }

  #result(): RpcError | undefined {
    return this.#status === "ok" ? undefined : this.#status;
  }

  #onHeaders(headers: IncomingHttpHeaders, trailers: boolean): void {
    const status = headers["grpc-status"];
    if (status === undefined) {
      const code = Number(headers[":status"]);
      const type = String(headers["content-type"] ?? "");
      if (!trailers && (code !== 200 || !type.startsWith("application/grpc"))) {
        this.#status = new RpcError(
          "unknown",
          `HTTP status ${code}, ${type || "no content type"}: this is no OpenShell gateway`,
        );
      }
      return;
    }
    const number = Number(status);
    this.#status = number === 0 ? "ok" : errorFromTrailers(number, headers);
  }
}

function errorFromTrailers(number: number, headers: IncomingHttpHeaders): RpcError {
  let message = String(headers["grpc-message"] ?? "");
  try {
    message = decodeURIComponent(message);
  } catch {
    // Not percent-encoded: shown as it is.
  }
  const details = headers["grpc-status-details-bin"];
  const packed = details === undefined ? undefined : readStatusDetails(Buffer.from(String(details), "base64"));
  return new RpcError(codeFromNumber(number), message, packed);
}

/** A connection for one call. */
export interface Connection {
  readonly session: ClientHttp2Session;
  /** Below the session; only for tearing it down. */
  readonly socket: Socket;
}

/** The socket of an endpoint; TLS agrees on HTTP/2 by ALPN. */
function dial(endpoint: Endpoint): Socket {
  if (endpoint.kind === "unix") return process.getBuiltinModule("node:net").connect(endpoint.path);
  const { url, tls } = endpoint;
  const host = url.hostname.replace(/^\[|\]$/g, "");
  const port = Number(url.port) || (url.protocol === "http:" ? 80 : 443);
  const { connect, isIP } = process.getBuiltinModule("node:net");
  if (url.protocol === "http:") return connect({ host, port, noDelay: true });
  const name = isIP(host) === 0 ? { servername: host } : {};
  const options = { host, port, ALPNProtocols: ["h2"], ...name, ...tlsOptions(tls) };
  return process.getBuiltinModule("node:tls").connect(options).setNoDelay(true);
}

/** Opens a connection for one call. Rejects with {@link RpcError} when it does not stand within {@link CONNECT_TIMEOUT_MS}. */
export function openConnection(endpoint: Endpoint): Promise<Connection> {
  const http2 = process.getBuiltinModule("node:http2");
  const settings = { initialWindowSize: STREAM_WINDOW_BYTES, enablePush: false };
  const origin = endpoint.kind === "unix" ? "http://localhost" : endpoint.url.origin;
  const socket = dial(endpoint);
  const session = http2.connect(origin, { settings, createConnection: () => socket });
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      session.destroy();
      reject(new RpcError("unavailable", `no connection within ${CONNECT_TIMEOUT_MS / 1000} s`));
    }, CONNECT_TIMEOUT_MS);
    const failed = (error: unknown): void => {
      clearTimeout(timer);
      reject(connectionError(error, endpoint));
    };
    session.once("error", failed);
    session.once("connect", () => {
      clearTimeout(timer);
      session.off("error", failed);
      // Until a call takes over, a loss shows in that call.
      session.on("error", () => {});
      session.setLocalWindowSize(STREAM_WINDOW_BYTES);
      resolve({ session, socket });
    });
  });
}

/** Opens a call on a connection that is then its own. */
export async function openGrpcStream(
  endpoint: Endpoint,
  connection: Promise<Connection>,
  method: string,
  headers: Readonly<Record<string, string>> = {},
): Promise<GrpcStream> {
  const opened = await connection;
  try {
    const stream = opened.session.request(
      {
        ":method": "POST",
        ":path": SERVICE_PATH + method,
        "content-type": "application/grpc+proto",
        te: "trailers",
        ...headers,
      },
      { endStream: false },
    );
    return new GrpcStream(endpoint, opened, stream);
  } catch (error) {
    throw connectionError(error, endpoint);
  }
}
