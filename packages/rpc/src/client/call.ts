import type { ClientHttp2Stream, IncomingHttpHeaders } from "node:http2";
import { readEncoding } from "../wire/compression.ts";
import { WireLimits } from "../wire/limits.ts";
import { MessageSink } from "../wire/message-sink.ts";
import { MessageSource } from "../wire/message-source.ts";
import { codeFromHttpStatus, codeFromReset, type Fields, readStatus, StatusCode, StatusError } from "../wire/status.ts";
import { formatTimeout, MAX_TIMER_MS } from "../wire/timeout.ts";

export interface CallOptions {
  /** Largest response message, decompressed. 4 MiB unless given. */
  readonly readMaxBytes?: number;
  /** The content type that was asked for: an answer in another codec is none. */
  readonly contentType?: string;
  /** Time until the call ends with DEADLINE_EXCEEDED. Milliseconds; none unless given. */
  readonly timeoutMs?: number | undefined;
}

const PROTO = "application/grpc+proto";
/** RST_STREAM code CANCEL (RFC 9113 §7). */
const CANCEL = 8;
const REFUSED_STREAM = 7;
/** END_STREAM on a HEADERS frame (RFC 9113 §6.2). */
const END_STREAM = 1;

/** Header fields of a request. `te` tells servers that trailers are understood. */
export function requestFields(
  path: string,
  contentType: string,
  timeoutMs: number | undefined,
): Record<string, string> {
  return {
    ":method": "POST",
    ":path": path,
    "content-type": contentType,
    te: "trailers",
    ...(timeoutMs === undefined ? {} : { "grpc-timeout": formatTimeout(timeoutMs) }),
  };
}

/**
 * One call on the client at the level of bytes. Messages of the server are read from `messages`, which ends when the call
 * ended with OK and throws a {@link StatusError} otherwise.
 */
export class ClientCall {
  readonly messages: MessageSource;
  readonly #stream: ClientHttp2Stream;
  readonly #sink: MessageSink;
  readonly #header = Promise.withResolvers<Fields>();
  readonly #outcome = Promise.withResolvers<void>();
  readonly #session: ClientHttp2Stream["session"];
  readonly #contentType: string;
  #headers: Fields = {};
  #trailer: Fields | undefined;
  #headersKnown = false;
  #ended = false;
  #timer: NodeJS.Timeout | undefined;
  readonly #deadline: number;

  constructor(stream: ClientHttp2Stream, options: CallOptions = {}) {
    this.#stream = stream;
    this.#session = stream.session;
    this.#contentType = options.contentType ?? PROTO;
    this.#sink = new MessageSink(stream);
    this.messages = new MessageSource(stream, {
      maxBytes: options.readMaxBytes ?? WireLimits.messageBytes,
      atEnd: () => this.#outcome.promise,
    });
    // Whoever reads learns of it there.
    this.#header.promise.catch(() => {});
    this.#outcome.promise.catch(() => {});
    stream.on("response", (headers, flags) => this.#onResponse(headers, flags));
    stream.on("trailers", (trailers) => this.#conclude(trailers));
    stream.on("error", (cause) => this.#lose(cause));
    stream.on("close", () => this.#lose(undefined));
    const { timeoutMs } = options;
    this.#deadline = performance.now() + (timeoutMs ?? Number.POSITIVE_INFINITY);
    if (timeoutMs !== undefined && timeoutMs < MAX_TIMER_MS) {
      this.#timer = setTimeout(() => this.cancel(deadlinePassed()), Math.max(0, timeoutMs));
    }
  }

  /** The server's headers. Rejects where the call ended without. */
  get header(): Promise<Fields> {
    return this.#header.promise;
  }

  /** The trailers, complete once `messages` has ended. */
  get trailer(): Fields {
    return this.#trailer ?? {};
  }

  /** True once the outcome is known. */
  get ended(): boolean {
    return this.#ended;
  }

  /** True where the server has not looked at the call, as for those that cross its GOAWAY: it may be sent again. */
  get refused(): boolean {
    return this.#stream.rstCode === REFUSED_STREAM && !this.#headersKnown;
  }

  /** Sends a message; wait for the promise, if there is one, before the next. A call that has ended swallows it. */
  send(message: Uint8Array, compressed = false): Promise<void> | undefined {
    return this.#ended ? undefined : this.#sink.write(message, compressed);
  }

  /** No more messages from this side. */
  end(): void {
    if (!this.#stream.destroyed && !this.#stream.writableEnded) this.#stream.end();
  }

  /** Ends the call from this side: the server sees it as cancelled, the reader sees `reason`. */
  cancel(reason: unknown = new StatusError(StatusCode.canceled, "the call was cancelled")): void {
    if (this.#ended) return;
    this.#settle(reason);
    this.messages.fail(reason);
    this.#stream.close(CANCEL);
  }

  /** An answer that is no gRPC cancels the call: the rest is not read. */
  #onResponse(headers: IncomingHttpHeaders, flags: number): void {
    const status = Number(headers[":status"]);
    const type = headers["content-type"] ?? "";
    if (status !== 200) {
      this.cancel(new StatusError(codeFromHttpStatus(status), `the server answered with HTTP status ${status}`));
      return;
    }
    if (type !== this.#contentType && !(this.#contentType === PROTO && type === "application/grpc")) {
      const code = type.startsWith("application/grpc") ? StatusCode.internal : StatusCode.unknown;
      this.cancel(new StatusError(code, `the server answered with the content type ${JSON.stringify(type)}`));
      return;
    }
    this.#headers = headers;
    this.#headersKnown = true;
    this.#header.resolve(headers);
    if ((flags & END_STREAM) !== 0) {
      this.#conclude(headers);
      return;
    }
    try {
      this.messages.gzipped = readEncoding(headers["grpc-encoding"], StatusCode.internal);
    } catch (error) {
      this.cancel(error);
    }
  }

  #conclude(trailer: Fields): void {
    this.#trailer ??= trailer;
    try {
      this.#settle(readStatus(trailer, this.#headers));
    } catch (error) {
      this.#settle(error);
    }
  }

  /** The stream is gone. Without a status before, the outcome is a failure; messages that came are still read. */
  #lose(cause: unknown): void {
    if (!this.#ended) this.#settle(this.#lost(cause));
    this.messages.finish();
  }

  /** @param failure undefined for OK */
  #settle(failure: unknown): void {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#timer);
    // Also of a stream that is still to be opened, and so does not close.
    this.#sink.close();
    if (failure === undefined) this.#outcome.resolve();
    else this.#outcome.reject(failure);
    if (this.#headersKnown) return;
    this.#header.reject(failure ?? new StatusError(StatusCode.internal, "the call ended without headers"));
  }

  /** Why a call has no status. */
  #lost(cause: unknown): StatusError {
    if (cause instanceof StatusError) return cause;
    // A connection that breaks takes its streams down with codes of its own making.
    const session = this.#session;
    if (session === undefined || session.destroyed) {
      return new StatusError(StatusCode.unavailable, "the connection was lost before the call ended", { cause });
    }
    const code = this.#stream.rstCode ?? 0;
    if (code === 0) return new StatusError(StatusCode.internal, "the call ended without a grpc-status", { cause });
    // A server resets what is past its deadline, and may be faster than the timer here.
    if (code === CANCEL && performance.now() >= this.#deadline - 1) return deadlinePassed();
    return new StatusError(codeFromReset(code), `the server reset the call (HTTP/2 code ${code})`, { cause });
  }
}

function deadlinePassed(): StatusError {
  return new StatusError(StatusCode.deadlineExceeded, "the deadline has passed");
}
