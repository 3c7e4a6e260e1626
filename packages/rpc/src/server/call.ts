import type { IncomingHttpHeaders, ServerHttp2Stream, ServerStreamResponseOptions } from "node:http2";
import { Code, ConnectError } from "@connectrpc/connect";
import { errorTrailers } from "../errors.ts";
import { ACCEPTED_ENCODINGS, acceptsGzip, gzip, readEncoding } from "../wire/compression.ts";
import { tooLarge } from "../wire/frame.ts";
import { WireLimits } from "../wire/limits.ts";
import { MessageSink } from "../wire/message-sink.ts";
import { MessageSource } from "../wire/message-source.ts";
import { addMetadata } from "../wire/metadata.ts";
import { StatusCode } from "../wire/status.ts";
import { MAX_TIMER_MS } from "../wire/timeout.ts";
import type { CallContext } from "./context.ts";

/** RST_STREAM code CANCEL (RFC 9113 §7). */
const CANCEL = 8;
/** RST_STREAM code NO_ERROR. */
const NO_ERROR = 0;
/** `sendDate` is known to Node and not to its types; gRPC has no use for the date. */
const TRAILERS_ONLY: ServerStreamResponseOptions = { endStream: true, ...{ sendDate: false } };
const WITH_TRAILERS: ServerStreamResponseOptions = { waitForTrailers: true, ...{ sendDate: false } };

/** Between looks at whether a status has left: at first, and in the end. */
const STATUS_CHECK_MS = 5;
const STATUS_CHECK_MAX_MS = 1_000;

/** Bounds of a call's messages, in bytes. */
export interface CallLimits {
  readonly readMaxBytes: number;
  readonly writeMaxBytes: number;
  readonly compressMinBytes: number;
}

/**
 * One call on the server at the level of bytes: messages in, messages out, and exactly one end. The first of these ends it:
 * `finish`, its deadline, or the caller leaving.
 */
export class ServerCall {
  readonly source: MessageSource;
  readonly context: CallContext;
  readonly #stream: ServerHttp2Stream;
  readonly #sink: MessageSink;
  readonly #limits: CallLimits;
  readonly #contentType: string;
  readonly #gzip: boolean;
  #timer: NodeJS.Timeout | undefined;
  #trailers: Record<string, string> | undefined;

  constructor(
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    contentType: string,
    context: CallContext,
    limits: CallLimits,
  ) {
    this.#stream = stream;
    this.#limits = limits;
    this.#contentType = contentType;
    this.context = context;
    this.source = new MessageSource(stream, { maxBytes: limits.readMaxBytes });
    this.#sink = new MessageSink(stream);
    this.#gzip = limits.compressMinBytes !== Infinity && acceptsGzip(headers["grpc-accept-encoding"]);
    stream.on("wantTrailers", () => this.#sendTrailers());
    for (const event of ["aborted", "close", "error"]) stream.on(event, () => this.#abandon());
    const timeoutMs = context.timeoutMs();
    if (timeoutMs !== undefined && timeoutMs < MAX_TIMER_MS) {
      this.#timer = setTimeout(() => this.#expire(), Math.max(0, timeoutMs));
    }
  }

  /** True once the call has its outcome. */
  get ended(): boolean {
    return this.#trailers !== undefined;
  }

  /** Takes `grpc-encoding`. @throws StatusError UNIMPLEMENTED */
  readEncoding(headers: IncomingHttpHeaders): void {
    this.source.gzipped = readEncoding(headers["grpc-encoding"], StatusCode.unimplemented);
  }

  /** Sends a message; wait for the promise, if there is one, before the next. @throws StatusError RESOURCE_EXHAUSTED */
  send(message: Uint8Array): Promise<void> | undefined {
    if (message.length > this.#limits.writeMaxBytes) throw tooLarge(message.length, this.#limits.writeMaxBytes);
    if (this.ended) return undefined;
    if (!this.#stream.headersSent) this.#respond();
    if (!this.#gzip || message.length < this.#limits.compressMinBytes) return this.#sink.write(message);
    return gzip(message).then((compressed) => this.#sink.write(compressed, true));
  }

  /** Ends the call: with OK, or with the error. Only the first end counts. */
  finish(error?: ConnectError): void {
    if (this.ended) return;
    const stream = this.#stream;
    const trailers = error === undefined ? { "grpc-status": "0" } : errorTrailers(error);
    const { header, trailer } = this.context.metadata;
    this.#end(trailers, () => error ?? new ConnectError("the call has ended", Code.Canceled));
    if (stream.destroyed || stream.closed) return;
    addMetadata(trailers, trailer);
    if (!stream.headersSent && error !== undefined && header === undefined) {
      // Trailers-only. `grpc-accept-encoding` tells a peer what to use instead of an encoding that was refused.
      stream.respond(
        { ":status": 200, "content-type": this.#contentType, "grpc-accept-encoding": ACCEPTED_ENCODINGS, ...trailers },
        TRAILERS_ONLY,
      );
      stopInput(this.#stream);
      return;
    }
    if (!stream.headersSent) this.#respond();
    stream.end();
  }

  /** The caller learns it from the status, unless it does not even read: then the stream is reset. */
  #expire(): void {
    this.finish(new ConnectError("the deadline has passed", Code.DeadlineExceeded));
    this.#timer = setTimeout(() => this.#stream.close(CANCEL), WireLimits.expiredMs);
    this.#stream.once("close", () => clearTimeout(this.#timer));
  }

  #respond(): void {
    const headers: Record<string, string | number> = { ":status": 200, "content-type": this.#contentType };
    if (this.#gzip) headers["grpc-encoding"] = "gzip";
    addMetadata(headers as Record<string, string>, this.context.metadata.header);
    this.#stream.respond(headers, WITH_TRAILERS);
  }

  #sendTrailers(): void {
    const trailers = this.#trailers;
    if (trailers === undefined || this.#stream.destroyed) return;
    this.#stream.sendTrailers(trailers);
    stopInput(this.#stream);
  }

  #abandon(): void {
    this.#sink.close();
    this.#end({}, () => new ConnectError("the caller left", Code.Canceled));
  }

  /** `reason` is asked for only where somebody learns it: an error with its stack is dear, and few calls need one. */
  #end(trailers: Record<string, string>, reason: () => ConnectError): void {
    if (this.#trailers !== undefined) return;
    this.#trailers = trailers;
    clearTimeout(this.#timer);
    if (!this.source.finished) this.source.fail(reason());
    this.context.end(reason);
  }
}

/**
 * A caller that is still sending is told to stop (RFC 9113 §8.1); what it sent already is dropped. Not before the status
 * has left: a reset at once takes frames with it that still wait to be sent. One that does not read is left alone: its
 * deadline and the connection's pings end it.
 */
export function stopInput(stream: ServerHttp2Stream): void {
  if (stream.readableEnded) return;
  stream.resume();
  const stop = (waitMs: number): void => {
    if (stream.readableEnded || stream.closed || stream.destroyed) return;
    // No event tells when the last frame has left.
    if (stream.state.localClose === 1) stream.close(NO_ERROR);
    else setTimeout(stop, waitMs, Math.min(2 * waitMs, STATUS_CHECK_MAX_MS)).unref();
  };
  setImmediate(stop, STATUS_CHECK_MS);
}
