import type { DescMethodStreaming, DescMethodUnary } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ContextValues,
  createContextValues,
  type Interceptor,
  type Transport,
} from "@connectrpc/connect";
import { type Codec, complete, type JsonOptions, jsonCodec, protoCodec } from "../codec.ts";
import { fromWire } from "../errors.ts";
import { ACCEPTED_ENCODINGS, gzip } from "../wire/compression.ts";
import { tooLarge } from "../wire/frame.ts";
import { addMetadata, toHeaders } from "../wire/metadata.ts";
import { type Fields, StatusCode, StatusError } from "../wire/status.ts";
import { ClientCall, requestFields } from "./call.ts";
import { Connection, type ConnectionOptions } from "./connection.ts";

export interface LaneTransportOptions extends ConnectionOptions {
  readonly interceptors?: readonly Interceptor[];
  /** False: ProtoJSON in place of the binary format. */
  readonly useBinaryFormat?: boolean;
  readonly jsonOptions?: JsonOptions;
  /** Largest response message, decompressed. 4 MiB unless given. */
  readonly readMaxBytes?: number;
  /** Largest request message. 4 GiB, the format's own bound, unless given. */
  readonly writeMaxBytes?: number;
  /** Requests from `compressMinBytes` on (1 KiB unless given) are compressed so; never unless given. */
  readonly sendCompression?: "gzip";
  readonly compressMinBytes?: number;
  /** Deadline of calls that bring none. Milliseconds. */
  readonly defaultTimeoutMs?: number;
}

/** A Connect transport on one connection of its own. */
export interface LaneTransport extends Transport, AsyncDisposable {
  /** Breaks the connection; the next call dials anew. */
  reset(): void;
}

type HeadersInit = ConstructorParameters<typeof Headers>[0];
type AnyFn = ReturnType<Interceptor>;
type AnyRequest = Parameters<AnyFn>[0];
type AnyResponse = Awaited<ReturnType<AnyFn>>;

/** Plain gRPC for Connect's clients. */
export function createLaneTransport(options: LaneTransportOptions): LaneTransport {
  const connection = new Connection(options);
  const client = new LaneClient(connection, options);
  return {
    unary: (method, signal, timeoutMs, header, input, values) =>
      client.unary(method, signal, timeoutMs, header, input, values) as never,
    stream: (method, signal, timeoutMs, header, input, values) =>
      client.stream(method, signal, timeoutMs, header, input, values) as never,
    reset: () => connection.reset(),
    [Symbol.asyncDispose]: async () => connection.close(),
  };
}

class LaneClient {
  readonly #connection: Connection;
  readonly #options: LaneTransportOptions;
  readonly #codec: Codec;

  constructor(connection: Connection, options: LaneTransportOptions) {
    this.#connection = connection;
    this.#options = options;
    this.#codec = options.useBinaryFormat === false ? jsonCodec(options.jsonOptions) : protoCodec;
  }

  async unary(
    method: DescMethodUnary,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: HeadersInit,
    input: object,
    values: ContextValues | undefined,
  ): Promise<AnyResponse> {
    const call = this.#callSignal(signal, timeoutMs);
    const message = complete(method.input, input as never);
    const request = this.#request(method, call, header, values, { stream: false, message });
    try {
      return await this.#intercepted((sent) => this.#sendUnary(method, sent, call))(request);
    } catch (error) {
      throw fromWire(error);
    } finally {
      call.end();
    }
  }

  async stream(
    method: DescMethodStreaming,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: HeadersInit,
    input: AsyncIterable<object>,
    values: ContextValues | undefined,
  ): Promise<AnyResponse> {
    const call = this.#callSignal(signal, timeoutMs);
    const request = this.#request(method, call, header, values, { stream: true, message: input });
    try {
      return await this.#intercepted((sent) => this.#sendStream(method, sent, call))(request);
    } catch (error) {
      call.end();
      throw fromWire(error);
    }
  }

  #callSignal(signal: AbortSignal | undefined, timeoutMs: number | undefined): CallSignal {
    const { interceptors = [], defaultTimeoutMs } = this.#options;
    return new CallSignal(signal, timeoutMs ?? defaultTimeoutMs, interceptors.length > 0);
  }

  #intercepted(send: AnyFn): AnyFn {
    return (this.#options.interceptors ?? []).reduceRight((next, interceptor) => interceptor(next), send);
  }

  #request(
    method: DescMethodUnary | DescMethodStreaming,
    call: CallSignal,
    header: HeadersInit,
    values: ContextValues | undefined,
    part: { readonly stream: boolean; readonly message: unknown },
  ): AnyRequest {
    return {
      ...part,
      service: method.parent,
      method,
      requestMethod: "POST",
      url: `${this.#options.origin ?? "http://localhost"}/${method.parent.typeName}/${method.name}`,
      header: new Headers(header),
      contextValues: values ?? createContextValues(),
      signal: call.signal,
    } as AnyRequest;
  }

  /** Opens the call of a request as the interceptors left it. @throws StatusError */
  #open(method: DescMethodUnary | DescMethodStreaming, request: AnyRequest, call: CallSignal): ClientCall {
    if (request.signal.aborted) throw abortError(request.signal);
    const { readMaxBytes, sendCompression } = this.#options;
    const path = `/${method.parent.typeName}/${method.name}`;
    const timeoutMs = call.timeoutMs();
    const fields = requestFields(path, this.#codec.contentType, timeoutMs);
    fields["grpc-accept-encoding"] = ACCEPTED_ENCODINGS;
    if (sendCompression !== undefined) fields["grpc-encoding"] = sendCompression;
    addMetadata(fields, request.header);
    const opened = new ClientCall(this.#connection.request(fields), {
      timeoutMs,
      contentType: this.#codec.contentType,
      ...(readMaxBytes === undefined ? {} : { readMaxBytes }),
    });
    call.use(opened, request.signal);
    return opened;
  }

  async #sendUnary(method: DescMethodUnary, request: AnyRequest, call: CallSignal, again = true): Promise<AnyResponse> {
    const opened = this.#open(method, request, call);
    try {
      await this.#send(opened, method, request.message);
      opened.end();
      const first = await opened.messages.next();
      if (first.done) throw new StatusError(StatusCode.unimplemented, "the answer has no message");
      const second = await opened.messages.next();
      if (!second.done) throw new StatusError(StatusCode.unimplemented, "the answer has more than one message");
      const message = this.#decode(method, first.value);
      return unaryResponse(method, message, await opened.header, opened.trailer);
    } catch (error) {
      if (again && opened.refused && !request.signal.aborted) return this.#sendUnary(method, request, call, false);
      opened.cancel(error);
      throw fromWire(error);
    }
  }

  async #sendStream(method: DescMethodStreaming, request: AnyRequest, call: CallSignal): Promise<AnyResponse> {
    const opened = this.#open(method, request, call);
    const input = (request.message as AsyncIterable<object>)[Symbol.asyncIterator]();
    void this.#pump(opened, method, input);
    const trailer = new Headers();
    try {
      const header = toHeaders(await opened.header);
      const message = this.#receive(opened, method, trailer, call);
      return { stream: true, service: method.parent, method, header, trailer, message } as AnyResponse;
    } catch (error) {
      throw fromWire(error);
    }
  }

  /** Sends what the caller gives until it ends or the call does. */
  async #pump(call: ClientCall, method: DescMethodStreaming, input: AsyncIterator<object>): Promise<void> {
    try {
      for (;;) {
        const next = await input.next();
        if (next.done) break;
        if (call.ended) {
          await input.return?.();
          return;
        }
        await this.#send(call, method, next.value);
      }
      call.end();
    } catch (error) {
      call.cancel(error);
    }
  }

  #send(call: ClientCall, method: DescMethodUnary | DescMethodStreaming, message: object): Promise<void> | undefined {
    const bytes = this.#codec.encode(method.input, message as never);
    const { sendCompression, compressMinBytes = 1024, writeMaxBytes = 0xffff_ffff } = this.#options;
    if (bytes.length > writeMaxBytes) throw tooLarge(bytes.length, writeMaxBytes);
    if (sendCompression === undefined || bytes.length < compressMinBytes) return call.send(bytes);
    return gzip(bytes).then((compressed) => call.send(compressed, true));
  }

  /** An answer that does not decode is the server's fault, not the request's. */
  #decode(method: DescMethodUnary | DescMethodStreaming, bytes: Uint8Array): object {
    try {
      return this.#codec.decode(method.output, bytes);
    } catch (cause) {
      throw new StatusError(StatusCode.internal, `the answer is no ${method.output.typeName}`, { cause });
    }
  }

  async *#receive(
    call: ClientCall,
    method: DescMethodStreaming,
    trailer: Headers,
    signal: CallSignal,
  ): AsyncGenerator<object, void, void> {
    try {
      for await (const bytes of call.messages) yield this.#decode(method, bytes);
    } catch (error) {
      call.cancel(error);
      throw fromWire(error);
    } finally {
      toHeaders(call.trailer).forEach((value, name) => {
        trailer.set(name, value);
      });
      // Leaving early ends the call; after its end this does nothing.
      call.cancel();
      signal.end();
    }
  }
}

/** Headers are made for who asks. */
function unaryResponse(method: DescMethodUnary, message: object, headers: Fields, trailers: Fields): AnyResponse {
  let header: Headers | undefined;
  let trailer: Headers | undefined;
  return {
    stream: false,
    service: method.parent,
    method,
    message,
    get header() {
      header ??= toHeaders(headers);
      return header;
    },
    get trailer() {
      trailer ??= toHeaders(trailers);
      return trailer;
    },
  } as AnyResponse;
}

/** Of calls that nobody can abort. */
const NEVER = new AbortController().signal;

/**
 * The signal of one call: aborts with the caller's and, where interceptors may watch it, when the call is over.
 */
class CallSignal {
  readonly #caller: AbortSignal | undefined;
  readonly #controller: AbortController | undefined;
  readonly #deadline: number | undefined;
  #release: (() => void) | undefined;

  constructor(caller: AbortSignal | undefined, timeoutMs: number | undefined, watched: boolean) {
    this.#caller = caller;
    this.#deadline = timeoutMs === undefined ? undefined : performance.now() + timeoutMs;
    if (!watched) return;
    this.#controller = new AbortController();
    if (caller?.aborted) this.#controller.abort(caller.reason);
    else caller?.addEventListener("abort", this.#onAbort, { once: true });
  }

  get signal(): AbortSignal {
    return this.#controller?.signal ?? this.#caller ?? NEVER;
  }

  timeoutMs(): number | undefined {
    return this.#deadline === undefined ? undefined : this.#deadline - performance.now();
  }

  /** Cancels `call` when `signal` (an interceptor's, or this one) aborts. */
  use(call: ClientCall, signal: AbortSignal): void {
    this.#release?.();
    if (signal === NEVER) return;
    const cancel = (): void => call.cancel(abortError(signal));
    signal.addEventListener("abort", cancel, { once: true });
    this.#release = () => signal.removeEventListener("abort", cancel);
  }

  end(): void {
    this.#release?.();
    if (this.#controller === undefined) return;
    this.#caller?.removeEventListener("abort", this.#onAbort);
    this.#controller.abort();
  }

  #onAbort = (): void => this.#controller?.abort(this.#caller?.reason);
}

/** An abort of the caller: CANCELLED, unless the reason is an error with a code of its own. */
function abortError(signal: AbortSignal): ConnectError {
  const { reason } = signal;
  if (reason instanceof DOMException && reason.name === "TimeoutError") {
    return new ConnectError("the deadline has passed", Code.DeadlineExceeded, undefined, undefined, reason);
  }
  return ConnectError.from(reason ?? "the call was cancelled", Code.Canceled);
}
