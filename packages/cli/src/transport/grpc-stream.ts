import type { ClientHttp2Session } from "node:http2";
import type { Socket } from "node:net";
import { ClientCall, requestFields } from "@openshell/rpc/client/call.ts";
import { type Keepalive, keepAlive } from "@openshell/rpc/wire/keepalive.ts";
import { StatusError } from "@openshell/rpc/wire/status.ts";
import { type Endpoint, SERVICE_PATH, tlsOptions } from "./endpoint.ts";
import { CONNECT_TIMEOUT_MS, KEEPALIVE, MAX_FRAME_BYTES, STREAM_WINDOW_BYTES } from "./limits.ts";
import { codeFromNumber, RpcError, readStatusDetails } from "./rpc-error.ts";
import { connectionError } from "./unreachable.ts";

/** One bidirectional call of the gRPC lane over a connection of its own; messages are bytes. */
export class GrpcStream {
  readonly #endpoint: Endpoint;
  readonly #connection: Connection;
  readonly #call: ClientCall;
  readonly #headers: Readonly<Record<string, unknown>>;
  #lost: unknown;

  /** `headers` are those of the response; they are there before the first message. */
  constructor(
    endpoint: Endpoint,
    connection: Connection,
    call: ClientCall,
    headers: Readonly<Record<string, unknown>> = {},
  ) {
    this.#endpoint = endpoint;
    this.#connection = connection;
    this.#call = call;
    this.#headers = headers;
    connection.session.on("error", (error) => {
      this.#lost ??= error;
    });
  }

  /** A field of the response's head; undefined when there is none, or no head yet. */
  header(name: string): string | undefined {
    const value = this.#headers[name];
    return typeof value === "string" ? value : undefined;
  }

  /** Resolves when the transport took the message; a call that has ended swallows it, since its status tells. */
  async send(message: Uint8Array): Promise<void> {
    await this.#call.send(message);
  }

  /** No more messages from us. */
  end(): void {
    this.#call.end();
  }

  /** Messages of the gateway until the call ended with OK; throws {@link RpcError} for any other end. */
  async *messages(): AsyncGenerator<Uint8Array, void, void> {
    try {
      yield* this.#call.messages;
    } catch (error) {
      throw this.#explain(error);
    }
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

  #explain(error: unknown): RpcError {
    if (!(error instanceof StatusError)) return connectionError(error, this.#endpoint);
    const { code, message, details, trailer, cause } = error;
    const lost = this.#lost ?? cause;
    // Not a word of the gateway: the connection itself failed.
    if (trailer === undefined && lost !== undefined) return connectionError(lost, this.#endpoint);
    const packed = details === undefined ? undefined : readStatusDetails(details);
    return new RpcError(codeFromNumber(code), message, packed);
  }
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
export function openConnection(endpoint: Endpoint, keepalive: Keepalive = KEEPALIVE): Promise<Connection> {
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
      // The limit ended it in the same turn, and was told.
      if (session.destroyed) return;
      session.setLocalWindowSize(STREAM_WINDOW_BYTES);
      if (endpoint.kind !== "unix") keepAlive(session, keepalive);
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
  const fields = requestFields(SERVICE_PATH + method, "application/grpc+proto", undefined);
  try {
    const stream = opened.session.request({ ...fields, ...headers }, { endStream: false });
    const received: Record<string, unknown> = {};
    stream.once("response", (fields) => Object.assign(received, fields));
    return new GrpcStream(endpoint, opened, new ClientCall(stream, { readMaxBytes: MAX_FRAME_BYTES }), received);
  } catch (error) {
    throw connectionError(error, endpoint);
  }
}
