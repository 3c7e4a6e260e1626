/**
 * How tests drive a peer: a program that is a gRPC client or server written with another library, told what to do by
 * lines of JSON on its standard input, and telling what happens by lines on its standard output.
 */

export type Kind = "unary" | "server" | "client" | "bidi";

export const METHOD: Readonly<Record<Kind, string>> = {
  unary: "Unary",
  server: "ServerStream",
  client: "ClientStream",
  bidi: "Bidi",
};

export const SERVICE = "openshell.test.v1.Echo";

/** Repeated keys are repeated entries; values of keys that end in `-bin` are base64. */
export type MetadataList = readonly (readonly [string, string])[];

export interface TlsFiles {
  readonly ca: string;
  readonly cert: string;
  readonly key: string;
}

/** First argument of a peer, as JSON. */
export interface PeerConfig {
  readonly role: "client" | "server";
  /** Client: `host:port` or `unix:PATH`. Server: `127.0.0.1:0` or `unix:PATH`. */
  readonly address: string;
  readonly tls?: TlsFiles;
  /** Server: compresses what it sends when the caller takes it. */
  readonly gzip?: boolean;
  /** Client: pings this often, with or without calls. */
  readonly keepaliveMs?: number;
}

export interface Start {
  readonly op: "start";
  readonly id: number;
  readonly kind: Kind;
  readonly metadata: MetadataList;
  readonly deadlineMs?: number;
  readonly gzip?: boolean;
  /** Messages that may be read before the first `read`; absent: all. */
  readonly reads?: number;
}

/** What a client is told. `send` follows `start` for every kind; unary and server streams get exactly one, and need no `close`. */
export type ClientOp =
  | Start
  | {
      readonly op: "send";
      readonly id: number;
      readonly count: number;
      readonly size: number;
      readonly seed: number;
    }
  | { readonly op: "close"; readonly id: number }
  | { readonly op: "cancel"; readonly id: number }
  | { readonly op: "read"; readonly id: number; readonly count: number };

/** What a client tells. */
export type ClientEvent =
  | { readonly id: number; readonly event: "headers"; readonly metadata: MetadataList }
  | {
      readonly id: number;
      readonly event: "message";
      readonly length: number;
      readonly crc: number;
      /** The payload itself, when it is small. */
      readonly text?: string;
    }
  /** Messages that the library took over so far: a full window shows as this number standing still. */
  | { readonly id: number; readonly event: "sent"; readonly total: number }
  | {
      readonly id: number;
      readonly event: "end";
      /** gRPC's number. */
      readonly code: number;
      readonly message: string;
      readonly trailers: MetadataList;
    };

/** Payloads up to this many bytes are reported as text. */
export const MAX_TEXT = 2_048;

/**
 * What a server does is said in the request's metadata; every key is optional.
 *
 * | Key | Meaning |
 * |---|---|
 * | `do-tag` | keeps a record of the call under this name (`Report`) |
 * | `do-report` | Unary: answers with that record, as JSON |
 * | `do-hold` | waits at this gate before it reads or answers anything, until it is released or the call is over |
 * | `do-release` | Unary: opens that gate, for good |
 * | `do-count`, `do-size` | ServerStream: how many messages of which size; absent: one, the request's payload |
 * | `do-end-after` | ClientStream, Bidi: answers and ends after so many messages, whatever the client still sends |
 * | `do-fail`, `do-message-bin`, `do-details-bin` | ends with this code, text (UTF-8) and google.rpc.Status |
 * | `do-fail-after` | with `do-fail`: after so many messages sent |
 * | `do-echo-metadata` | `x-…` comes back as header `h-…` and trailer `t-…` |
 *
 * Unary and Bidi answer each payload with itself, ClientStream with "COUNT BYTES CRC" of all.
 */
export interface Report {
  readonly started: boolean;
  readonly done: boolean;
  /** The library told the handler that nobody waits for its answer any more. */
  readonly cancelled: boolean;
  readonly received: number;
  readonly sent: number;
  /** The client half-closed and the handler saw it. */
  readonly halfClosed: boolean;
  /** Milliseconds that were left when the call arrived. */
  readonly deadlineMs: number | null;
  /** Common name of the client's certificate. */
  readonly peerName: string;
}

/** What a server tells: once its address is known, and again whenever it was told to `drain` (it listens anew then). */
export interface Listening {
  readonly listening: string;
}

/** `drain`: opens a new listener, then lets the calls of the old one finish while it takes no new ones. */
export interface ServerOp {
  readonly op: "drain";
}
