import { type ClientHttp2Session, type ClientHttp2Stream, connect, type OutgoingHttpHeaders } from "node:http2";
import type { Duplex } from "node:stream";
import { type Keepalive, keepAlive } from "../wire/keepalive.ts";
import { StatusCode, StatusError } from "../wire/status.ts";

export interface ConnectionOptions {
  /** Opens the connection below HTTP/2: a socket, or a TLS socket that agreed on `h2`. */
  readonly dial: () => Duplex;
  /** `http://host` or `https://host`: scheme and authority of requests. */
  readonly origin?: string;
  /** A connection with calls under way is pinged; one that does not answer is given up. Milliseconds; none unless given. */
  readonly keepalive?: Keepalive;
  /** Flow-control windows in bytes. */
  readonly streamWindow?: number;
  readonly connectionWindow?: number;
}

/** 64 KiB, the protocol's default, would stall a bulk stream once a round trip. */
const STREAM_WINDOW = 1024 * 1024;
/** What waits to be sent counts, and Node drops answers beyond it: its default of 10 is three calls of 4 MiB. */
const SESSION_MEMORY_MB = 4_096;
const CONNECTION_WINDOW = 16 * 1024 * 1024;
/** From this stream on another connection is dialled: a connection has 2³⁰ streams, and their ids have 31 bits. */
const LAST_STREAM = 2 ** 31 - 2 ** 16 + 1;

/**
 * One HTTP/2 connection at a time, dialled on first use and again after it broke or the server told it to go. Calls on the
 * one that was told to go run to their end there.
 */
export class Connection {
  readonly #options: ConnectionOptions;
  #session: ClientHttp2Session | undefined;
  #closed = false;

  constructor(options: ConnectionOptions) {
    this.#options = options;
  }

  /** Opens a stream; also before the connection stands. @throws StatusError UNAVAILABLE */
  request(headers: OutgoingHttpHeaders): ClientHttp2Stream {
    if (this.#closed) throw new StatusError(StatusCode.unavailable, "this client has been closed");
    this.#session ??= this.#open();
    const session = this.#session;
    try {
      const stream = session.request(headers, { endStream: false });
      if ((stream.id ?? 0) >= LAST_STREAM) {
        this.#session = undefined;
        stream.once("close", () => session.close());
      }
      return stream;
    } catch (cause) {
      // The session ended between two of its events.
      this.#leave(session);
      throw new StatusError(StatusCode.unavailable, "the connection has ended", { cause });
    }
  }

  /** Breaks the connection; the next call dials anew. Calls under way end with UNAVAILABLE. */
  reset(): void {
    const session = this.#session;
    this.#session = undefined;
    session?.destroy();
  }

  /** Breaks the connection for good. */
  close(): void {
    this.#closed = true;
    this.reset();
  }

  #open(): ClientHttp2Session {
    const { dial, origin = "http://localhost", keepalive, streamWindow = STREAM_WINDOW } = this.#options;
    const session = connect(origin, {
      createConnection: dial,
      settings: { initialWindowSize: streamWindow, enablePush: false },
      maxSessionMemory: SESSION_MEMORY_MB,
      // grpc-go and grpcio send a status message that ends in a space as it is.
      strictFieldWhitespaceValidation: false,
    });
    const leave = (): void => this.#leave(session);
    session.once("connect", () => {
      // Told in a later turn: the session may be gone by then.
      if (!session.destroyed) session.setLocalWindowSize(this.#options.connectionWindow ?? CONNECTION_WINDOW);
    });
    // Of an error, each stream tells its caller.
    for (const event of ["goaway", "close", "error"]) session.on(event, leave);
    if (keepalive !== undefined) keepAlive(session, keepalive);
    return session;
  }

  /** Opens no more calls on a session; those under way end there. */
  #leave(session: ClientHttp2Session): void {
    if (this.#session === session) this.#session = undefined;
    session.close();
  }
}
