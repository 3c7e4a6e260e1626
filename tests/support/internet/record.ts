import type { IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { plainAddress } from "./addresses.ts";

/**
 * What a test host received. Everything is recorded as it arrives, before any handler looks at it, so a test can
 * assert that nothing came.
 */

/** Bytes of a connection and of a request body that are kept; all are counted. */
export const KEPT_BYTES = 1024 * 1024;
/** Connections, requests and datagrams kept a host; a test that makes more calls `clearReceived()`. */
export const MAX_RECORDS = 100_000;

/** A request that arrived in full or in part. */
export interface ReceivedRequest {
  /** Number of the connection it came on. */
  readonly connection: number;
  readonly method: string;
  /** The request target as sent. */
  readonly target: string;
  readonly httpVersion: string;
  /** Names and values as sent, in order. */
  readonly rawHeaders: readonly string[];
  /** Lower-case names; repeated fields as node:http joins them. */
  readonly headers: IncomingMessage["headers"];
  /** The body so far, at most `KEPT_BYTES`. */
  readonly body: Buffer;
  readonly bodyBytes: number;
  /** True when the request arrived to its end. */
  readonly complete: boolean;
}

/** A TCP connection that was accepted. */
export interface ReceivedConnection {
  /** Counts from 1 for each host. */
  readonly id: number;
  readonly port: number;
  /** The host's address that the client connected to. */
  readonly localAddress: string;
  readonly remoteAddress: string;
  /** Bytes as they came over TCP: ciphertext for TLS. */
  readonly bytes: number;
  /** For raw services: the first `KEPT_BYTES` bytes. */
  readonly data: Buffer;
  readonly tls?: { readonly servername: string; readonly protocol: string; readonly alpn: string };
  /** Why the TLS handshake failed. */
  readonly tlsError?: string;
  readonly closed: boolean;
  readonly requests: readonly ReceivedRequest[];
}

export interface ReceivedDatagram {
  readonly port: number;
  readonly remoteAddress: string;
  readonly data: Buffer;
}

/** All that one host received. */
export interface Received {
  readonly connections: readonly ReceivedConnection[];
  /** Requests of all connections, in order of arrival. */
  readonly requests: readonly ReceivedRequest[];
  readonly datagrams: readonly ReceivedDatagram[];
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

export class ConnectionRecord implements ReceivedConnection {
  readonly id: number;
  readonly port: number;
  readonly localAddress: string;
  readonly remoteAddress: string;
  readonly #socket: Socket;
  readonly #chunks: Buffer[] = [];
  #kept = 0;
  closed = false;
  tls?: { servername: string; protocol: string; alpn: string };
  tlsError?: string;
  readonly requests: ReceivedRequest[] = [];

  constructor(id: number, port: number, socket: Socket) {
    this.id = id;
    this.port = port;
    this.localAddress = plainAddress(socket.localAddress);
    this.remoteAddress = plainAddress(socket.remoteAddress);
    this.#socket = socket;
    socket.once("close", () => {
      this.closed = true;
    });
  }

  get bytes(): number {
    return this.#socket.bytesRead;
  }

  get data(): Buffer {
    return Buffer.concat(this.#chunks);
  }

  keep(chunk: Buffer): void {
    const room = KEPT_BYTES - this.#kept;
    if (room <= 0) return;
    this.#chunks.push(chunk.subarray(0, room));
    this.#kept += Math.min(room, chunk.length);
  }
}

function peerKey(port: number, socket: Socket): string {
  return `${port} ${socket.remoteAddress} ${socket.remotePort}`;
}

/** The records of one host. */
export class Recorder {
  #connections: ConnectionRecord[] = [];
  #requests: ReceivedRequest[] = [];
  #datagrams: ReceivedDatagram[] = [];
  #nextId = 1;
  readonly #bySocket = new WeakMap<object, ConnectionRecord>();
  /** Accepted connections by peer: what an accepted socket and the TLS socket made from it have in common. */
  readonly #byPeer = new Map<string, ConnectionRecord>();

  /** A copy of what there is now; connections and requests still in progress go on changing. */
  received(): Received {
    return {
      connections: [...this.#connections],
      requests: [...this.#requests],
      datagrams: [...this.#datagrams],
    };
  }

  clear(): void {
    this.#connections = [];
    this.#requests = [];
    this.#datagrams = [];
  }

  connection(port: number, socket: Socket): ConnectionRecord {
    const record = new ConnectionRecord(this.#nextId++, port, socket);
    this.#bySocket.set(socket, record);
    const key = peerKey(port, socket);
    this.#byPeer.set(key, record);
    socket.once("close", () => {
      if (this.#byPeer.get(key) === record) this.#byPeer.delete(key);
    });
    this.#add(this.#connections, record);
    return record;
  }

  /** Ties the TLS socket made from an accepted one to the same connection. */
  secured(port: number, socket: TLSSocket): ConnectionRecord | undefined {
    const record = this.#byPeer.get(peerKey(port, socket));
    if (record === undefined) return undefined;
    this.#bySocket.set(socket, record);
    record.tls = {
      servername: typeof socket.servername === "string" ? socket.servername : "",
      protocol: socket.getProtocol() ?? "",
      alpn: socket.alpnProtocol || "",
    };
    return record;
  }

  /** Notes why a handshake failed. */
  handshakeFailed(port: number, socket: TLSSocket, reason: string): void {
    const record =
      this.#byPeer.get(peerKey(port, socket)) ?? this.#connections.findLast((one) => one.port === port && !one.tls);
    if (record !== undefined) record.tlsError = reason;
  }

  /** The connection of a socket, accepted or secured. */
  of(socket: object): ConnectionRecord | undefined {
    return this.#bySocket.get(socket);
  }

  /** Records a request and, as it is read by the handler, its body. */
  request(message: IncomingMessage): ReceivedRequest {
    const connection = this.#bySocket.get(message.socket);
    const chunks: Buffer[] = [];
    let kept = 0;
    const record: Mutable<ReceivedRequest> = {
      connection: connection?.id ?? 0,
      method: message.method ?? "",
      target: message.url ?? "",
      httpVersion: message.httpVersion,
      rawHeaders: [...message.rawHeaders],
      headers: message.headers,
      get body() {
        return Buffer.concat(chunks);
      },
      bodyBytes: 0,
      complete: false,
    };
    // Pushed bytes are seen without starting the flow, so that a handler which never reads the body still can.
    const push = message.push.bind(message);
    message.push = (chunk: unknown, encoding?: BufferEncoding) => {
      if (chunk === null) record.complete = message.complete;
      else if (Buffer.isBuffer(chunk)) {
        record.bodyBytes += chunk.length;
        if (kept < KEPT_BYTES) chunks.push(chunk.subarray(0, KEPT_BYTES - kept));
        kept += chunk.length;
      }
      return push(chunk, encoding);
    };
    connection?.requests.push(record);
    this.#add(this.#requests, record);
    return record;
  }

  datagram(port: number, remoteAddress: string, data: Buffer): void {
    this.#add(this.#datagrams, { port, remoteAddress: plainAddress(remoteAddress), data: Buffer.from(data) });
  }

  #add<T>(list: T[], entry: T): void {
    if (list.length >= MAX_RECORDS) throw new Error(`a test host keeps ${MAX_RECORDS} records; call clearReceived()`);
    list.push(entry);
  }
}
