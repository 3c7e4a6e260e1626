import {
  createServer as createHttp1,
  type Server as Http1Server,
  type IncomingMessage,
  type ServerResponse,
} from "node:http";
import {
  createServer as createHttp2,
  type Http2Server,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from "node:http2";
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { keepAlive } from "@openshell/rpc/wire/keepalive.ts";
import { HttpLimits } from "./limits.ts";
import { isStranger, type Peer, setPeer } from "./peer.ts";

/** Where requests go. One dispatcher owns `stream`: a faster lane is tried there before the general handler. */
export interface RequestSink {
  stream(stream: ServerHttp2Stream, headers: IncomingHttpHeaders, rawHeaders: string[], peer: Peer): void;
  request(request: IncomingMessage, response: ServerResponse, peer: Peer): void;
}

const KEEPALIVE = { intervalMs: HttpLimits.pingIntervalMs, timeoutMs: HttpLimits.pingTimeoutMs };

/** An HTTP/2 client says this first (RFC 9113 §3.4); four bytes tell it from every HTTP/1 method. */
const PREFACE_START = Buffer.from("PRI ");

/**
 * HTTP/1 and HTTP/2 over connections that somebody else accepted. Neither server listens: connections are handed over
 * once it is known what they speak, by ALPN or by their first bytes.
 */
export class ConnectionServer {
  readonly #http1: Http1Server;
  readonly #http2: Http2Server;
  readonly #sockets = new Set<Socket>();
  /** Connections that have not said yet what they speak. */
  readonly #silent = new Set<Socket>();
  readonly #sessions = new Set<ServerHttp2Session>();
  /** Connections that proved nothing. */
  #strangers = 0;
  #draining = false;

  constructor(sink: RequestSink, options: { readonly streams: number; readonly ping: boolean }) {
    const peers = new WeakMap<ServerHttp2Session, Peer>();
    let arriving: Peer | undefined;
    this.#http2 = createHttp2({
      settings: {
        initialWindowSize: HttpLimits.streamWindow,
        maxConcurrentStreams: options.streams,
        maxHeaderListSize: HttpLimits.headerBytes,
      },
      maxSessionMemory: HttpLimits.sessionMemoryMb,
      streamResetBurst: HttpLimits.resetBurst,
      streamResetRate: HttpLimits.resetRate,
    });
    this.#http2.on("session", (made) => {
      const session = made as ServerHttp2Session;
      // Emitted while `connection` is handed over below, so the peer is the one that just arrived.
      if (arriving !== undefined) peers.set(session, arriving);
      // After the general limit, so that it holds from the first call on.
      if (arriving !== undefined && isStranger(arriving)) {
        session.settings({ maxConcurrentStreams: HttpLimits.strangerStreams });
      }
      session.setLocalWindowSize(HttpLimits.connectionWindow);
      this.#sessions.add(session);
      session.once("close", () => this.#sessions.delete(session));
      expectSettings(session);
      if (options.ping) keepAlive(session, KEEPALIVE);
      if (this.#draining) session.close();
    });
    // A broken connection is an everyday event; whoever waits on its streams is told by the stream.
    this.#http2.on("sessionError", () => {});
    this.#http2.on("stream", (stream, headers, _flags, rawHeaders) => {
      stream.on("error", () => {});
      const peer = peers.get(stream.session as ServerHttp2Session);
      if (peer === undefined) stream.close();
      else sink.stream(stream as ServerHttp2Stream, headers, rawHeaders as unknown as string[], peer);
    });
    this.#http1 = createHttp1({
      headersTimeout: HttpLimits.http1HeadersMs,
      keepAliveTimeout: HttpLimits.http1IdleMs,
      connectionsCheckingInterval: HttpLimits.http1CheckMs,
      maxHeaderSize: HttpLimits.headerBytes,
      noDelay: false,
    });
    const http1Peers = new WeakMap<Socket, Peer>();
    // Node tracks connections, for header limits and for closing idle ones, from this event on; this server never listens.
    this.#http1.emit("listening");
    this.#http1.on("request", (request, response) => {
      if (this.#draining) response.setHeader("connection", "close");
      sink.request(request, response, http1Peers.get(request.socket)!);
    });
    this.#http1.on("clientError", (_error, socket) => {
      if (socket.writable) socket.end("HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n");
    });
    this.#hand = (socket, protocol, peer) => {
      if (socket.destroyed) return;
      if (protocol === "h2") {
        arriving = peer;
        this.#http2.emit("connection", socket);
        arriving = undefined;
      } else {
        http1Peers.set(socket, peer);
        this.#http1.emit("connection", socket);
      }
    };
  }

  readonly #hand: (socket: Socket, protocol: "h2" | "http/1.1", peer: Peer) => void;

  /** Takes a plaintext connection; its first bytes tell the protocol. */
  accept(socket: Socket, peer: Peer): void {
    if (!this.#track(socket, peer)) return;
    this.#silent.add(socket);
    socket.once("close", () => this.#silent.delete(socket));
    socket.setTimeout(HttpLimits.firstBytesMs, () => socket.destroy());
    let seen: Buffer = Buffer.alloc(0);
    const look = (): void => {
      const more: Buffer | null = socket.read();
      if (more !== null) seen = Buffer.concat([seen, more]);
      const compared = Math.min(seen.length, PREFACE_START.length);
      const http2 = seen.subarray(0, compared).equals(PREFACE_START.subarray(0, compared));
      if (http2 && compared < PREFACE_START.length) {
        socket.once("readable", look);
        return;
      }
      this.#silent.delete(socket);
      socket.setTimeout(0);
      socket.removeAllListeners("timeout");
      socket.unshift(seen);
      this.#hand(socket, http2 ? "h2" : "http/1.1", peer);
    };
    socket.once("readable", look);
  }

  /** Takes a connection whose TLS handshake is done; ALPN told the protocol. */
  acceptTls(socket: TLSSocket, peer: Peer): void {
    if (!this.#track(socket, peer)) return;
    this.#hand(socket, socket.alpnProtocol === "h2" ? "h2" : "http/1.1", peer);
  }

  /** Lets calls under way finish for `limitMs`, then closes everything. */
  async drain(limitMs: number = HttpLimits.drainMs): Promise<void> {
    this.#draining = true;
    for (const socket of this.#silent) socket.destroy();
    for (const session of this.#sessions) session.close();
    this.#http1.closeIdleConnections();
    const deadline = performance.now() + limitMs;
    while (this.#sockets.size > 0 && performance.now() < deadline) {
      await new Promise((resolve) => setTimeout(resolve, 10));
      this.#http1.closeIdleConnections();
    }
    for (const session of this.#sessions) session.destroy();
    for (const socket of this.#sockets) socket.destroy();
    this.#http1.closeAllConnections();
    // Ends the tracking; that it was not listening is no news.
    this.#http1.close(() => {});
  }

  /** False, and closed, where there are too many of its kind. */
  #track(socket: Socket, peer: Peer): boolean {
    socket.on("error", () => {});
    if (isStranger(peer)) {
      if (this.#strangers >= HttpLimits.strangerConnections) {
        socket.destroy();
        return false;
      }
      this.#strangers++;
      socket.once("close", () => this.#strangers--);
    }
    setPeer(socket, peer);
    this.#sockets.add(socket);
    socket.once("close", () => this.#sockets.delete(socket));
    socket.setNoDelay(true);
    return true;
  }
}

/** Ends a session whose other side does not finish its preface: SETTINGS come first (RFC 9113 §3.4). */
function expectSettings(session: ServerHttp2Session): void {
  const late = setTimeout(() => session.destroy(), HttpLimits.firstBytesMs);
  late.unref();
  const arrived = (): void => clearTimeout(late);
  session.once("remoteSettings", arrived);
  session.once("close", arrived);
}
