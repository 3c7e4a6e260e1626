import { connect, type Socket } from "node:net";
import { connect as connectTls, type TLSSocket } from "node:tls";
import { createContextValues } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { ConnectionServer } from "@openshell/gateway/http/connection-server.ts";
import { Dispatcher, type RpcServer } from "@openshell/gateway/http/dispatcher.ts";
import { HttpLimits } from "@openshell/gateway/http/limits.ts";
import { type Listener, listenTcp, listenTls, listenUnix } from "@openshell/gateway/http/listen.ts";
import type { Peer } from "@openshell/gateway/http/peer.ts";
import { createLaneTransport, grpcLane, type LaneTransport } from "@openshell/rpc";
import { echoRoutes, peerNameKey } from "./echo-handlers.ts";
import type { TlsFiles } from "./protocol.ts";

/** Our side of every pair: the echo service behind the gateway's own listeners, and our client. */

/** Bytes that went over our sockets. */
export interface Traffic {
  received: number;
  sent: number;
}

function count(socket: Socket, traffic: Traffic): void {
  socket.once("close", () => {
    traffic.received += socket.bytesRead;
    traffic.sent += socket.bytesWritten;
  });
}

/** Common name of a verified certificate. */
function nameOf(socket: unknown): string {
  const name = (socket as TLSSocket).getPeerCertificate?.()?.subject?.CN;
  return typeof name === "string" ? name : "";
}

export interface ServeOptions {
  /** `127.0.0.1:0` or `unix:PATH`. */
  readonly address: string;
  readonly tls?: TlsFiles;
  readonly gzip?: boolean;
}

/** The echo service on one address. */
export class OurServer implements AsyncDisposable {
  readonly #options: ServeOptions;
  readonly #connections: ConnectionServer;
  #listener: Listener | undefined;
  readonly #sockets = new Set<Socket>();
  readonly #closed: Traffic = { received: 0, sent: 0 };

  constructor(options: ServeOptions) {
    this.#options = options;
    const shared = {
      routes: echoRoutes(),
      readMaxBytes: HttpLimits.messageBytes,
      compressMinBytes: options.gzip ? 1 : Number.MAX_SAFE_INTEGER,
    };
    const handler = connectNodeAdapter(shared) as RpcServer["handler"];
    const lane = grpcLane({
      ...shared,
      contextValues: ({ session }) => createContextValues().set(peerNameKey, nameOf(session?.socket)),
    });
    this.#connections = new ConnectionServer(new Dispatcher({ routes: [], rpc: { handler, lane } }), {
      streams: HttpLimits.streams,
      ping: true,
    });
  }

  async listen(): Promise<void> {
    // Hosts prove themselves in their calls, and are no strangers to the listener before.
    const peer: Peer = { listener: "host", caller: undefined, refusal: undefined };
    const { address, tls } = this.#options;
    const plain = (socket: Socket): void => this.#connections.accept(this.#track(socket), peer);
    if (address.startsWith("unix:")) this.#listener = await listenUnix(address.slice(5), plain);
    else {
      const at = { host: "127.0.0.1", port: Number(address.split(":")[1]) };
      this.#listener =
        tls === undefined
          ? await listenTcp(at, plain)
          : await listenTls(at, tls, (socket) => {
              this.#track(socket);
              if (socket.authorized) this.#connections.acceptTls(socket, peer);
              else socket.destroy();
            });
    }
  }

  get address(): string {
    const { address } = this.#listener!;
    return typeof address === "string" ? `unix:${address}` : `${address.host}:${address.port}`;
  }

  /** Connections that are open. */
  get connections(): number {
    return this.#sockets.size;
  }

  traffic(): Traffic {
    const total = { ...this.#closed };
    for (const socket of this.#sockets) {
      total.received += socket.bytesRead;
      total.sent += socket.bytesWritten;
    }
    return total;
  }

  /** Takes no new connections and calls; those under way have `limitMs`. */
  async drain(limitMs: number): Promise<void> {
    await this.#listener?.close();
    await this.#connections.drain(limitMs);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.drain(0);
  }

  #track(socket: Socket): Socket {
    this.#sockets.add(socket);
    count(socket, this.#closed);
    socket.once("close", () => this.#sockets.delete(socket));
    return socket;
  }
}

export interface ClientOptions {
  /** Where the next connection goes: `host:port` or `unix:PATH`. */
  readonly address: () => string;
  readonly tls?: TlsFiles;
  readonly keepalive?: { readonly intervalMs: number; readonly timeoutMs: number };
}

/** Our client. */
export class OurClient implements AsyncDisposable {
  readonly #options: ClientOptions;
  readonly #transports = new Map<boolean, LaneTransport>();
  readonly #sockets = new Set<Socket>();
  readonly #closed: Traffic = { received: 0, sent: 0 };
  /** Connections that were opened. */
  connections = 0;

  constructor(options: ClientOptions) {
    this.#options = options;
  }

  transport(gzip: boolean): LaneTransport {
    let found = this.#transports.get(gzip);
    if (found === undefined) {
      const { keepalive, tls } = this.#options;
      found = createLaneTransport({
        dial: () => this.#dial(),
        origin: tls === undefined ? "http://localhost" : "https://localhost",
        ...(keepalive === undefined ? {} : { keepalive }),
        ...(gzip ? { sendCompression: "gzip", compressMinBytes: 1 } : {}),
      });
      this.#transports.set(gzip, found);
    }
    return found;
  }

  traffic(): Traffic {
    const total = { ...this.#closed };
    for (const socket of this.#sockets) {
      total.received += socket.bytesRead;
      total.sent += socket.bytesWritten;
    }
    return total;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const transport of this.#transports.values()) transport.reset();
    for (const socket of this.#sockets) socket.destroy();
  }

  #dial(): Socket {
    const address = this.#options.address();
    const { tls } = this.#options;
    const [host, port] = address.split(":");
    const socket = address.startsWith("unix:")
      ? connect(address.slice(5))
      : tls === undefined
        ? connect(Number(port), host)
        : connectTls({ host: host!, port: Number(port), ...tls, servername: "localhost", ALPNProtocols: ["h2"] });
    socket.setNoDelay(true);
    this.connections++;
    this.#sockets.add(socket);
    count(socket, this.#closed);
    socket.once("close", () => this.#sockets.delete(socket));
    return socket;
  }
}
