import type { IncomingHttpHeaders, ServerHttp2Stream } from "node:http2";
import { Code, ConnectError, type ConnectRouter, type ContextValues, type Interceptor } from "@connectrpc/connect";
import { type Codec, codecOf } from "../codec.ts";
import { errorTrailers, toConnectError } from "../errors.ts";
import { WireLimits } from "../wire/limits.ts";
import { parseTimeout } from "../wire/timeout.ts";
import { type CallLimits, ServerCall } from "./call.ts";
import { CallContext } from "./context.ts";
import { invokeStream, invokeUnary, single } from "./invoke.ts";
import { collectRoutes, type MethodImplSpec } from "./router.ts";

export interface LaneOptions {
  /** Registers services, exactly as for connect-node's adapter. */
  readonly routes: (router: ConnectRouter) => void;
  /** Run around each handler; the first is outermost. */
  readonly interceptors?: readonly Interceptor[];
  /** Values that handlers and interceptors see, made when first asked for. */
  readonly contextValues?: (stream: ServerHttp2Stream) => ContextValues;
  /** Largest request message, decompressed; 4 MiB unless given. */
  readonly readMaxBytes?: number;
  /** Largest response message; 4 GiB, the format's own bound, unless given. */
  readonly writeMaxBytes?: number;
  /** Responses from this size on are gzipped for callers that accept it; never unless given. */
  readonly compressMinBytes?: number;
  /** Aborts the signal of each call that has not ended. */
  readonly shutdownSignal?: AbortSignal;
}

/** Serves plain gRPC (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md). */
export interface Lane {
  /** Takes a stream that carries plain gRPC, whatever its method. False: it is something else, and untouched. */
  handle(stream: ServerHttp2Stream, headers: IncomingHttpHeaders): boolean;
}

/** A lane for Connect's own handlers and interceptors, on streams of node:http2. */
export function grpcLane(options: LaneOptions): Lane {
  const specs = collectRoutes(options.routes);
  const interceptors = options.interceptors ?? [];
  const limits: CallLimits = {
    readMaxBytes: options.readMaxBytes ?? WireLimits.messageBytes,
    writeMaxBytes: options.writeMaxBytes ?? 0xffff_ffff,
    compressMinBytes: options.compressMinBytes ?? Number.POSITIVE_INFINITY,
  };
  return {
    handle(stream, headers) {
      const codec = codecOf(headers["content-type"]);
      if (codec === undefined) return false;
      if (headers[":method"] !== "POST") return refuse(stream, 405);
      if (codec === null) return refuse(stream, 415);
      const spec = specs.get(headers[":path"] ?? "");
      if (spec === undefined) return unknownMethod(stream, codec);
      const values = options.contextValues;
      const timeout = headers["grpc-timeout"];
      let timeoutMs: number | undefined;
      let failure: unknown;
      try {
        if (timeout !== undefined) timeoutMs = parseTimeout(String(timeout));
      } catch (error) {
        failure = error;
      }
      const context = new CallContext(spec.method, headers, timeoutMs, {
        values: values === undefined ? undefined : () => values(stream),
        shutdown: options.shutdownSignal,
      });
      const call = new ServerCall(stream, headers, codec.contentType, context, limits);
      void serve(call, headers, spec, codec, interceptors, failure);
      return true;
    },
  };
}

function refuse(stream: ServerHttp2Stream, status: number): true {
  stream.respond({ ":status": status, ...(status === 405 ? { allow: "POST" } : {}) }, { endStream: true });
  stream.resume();
  return true;
}

function unknownMethod(stream: ServerHttp2Stream, codec: Codec): true {
  const error = new ConnectError(
    "this server has no such method: is the client of another version?",
    Code.Unimplemented,
  );
  const headers = { ":status": 200, "content-type": codec.contentType, ...errorTrailers(error) };
  stream.respond(headers, { endStream: true });
  stream.on("error", () => {});
  stream.resume();
  return true;
}

/** Carries one call to its end. Never rejects. */
async function serve(
  call: ServerCall,
  headers: IncomingHttpHeaders,
  spec: MethodImplSpec,
  codec: Codec,
  interceptors: readonly Interceptor[],
  failure: unknown,
): Promise<void> {
  try {
    if (failure !== undefined) throw failure;
    call.readEncoding(headers);
    if (spec.kind === "unary") {
      const message = codec.decode(spec.method.input, await single(call.source));
      const output = await invokeUnary(spec, call.context, message, interceptors);
      const full = call.send(codec.encode(spec.method.output, output));
      if (full !== undefined) await full;
    } else {
      await stream(call, spec, codec, interceptors);
    }
    call.finish();
  } catch (error) {
    call.finish(toConnectError(error));
  }
}

async function stream(
  call: ServerCall,
  spec: Exclude<MethodImplSpec, { kind: "unary" }>,
  codec: Codec,
  interceptors: readonly Interceptor[],
): Promise<void> {
  const { input, output } = spec.method;
  const decoded: AsyncIterableIterator<unknown, undefined> = {
    next: async () => {
      const result = await call.source.next();
      return result.done ? result : { done: false, value: codec.decode(input, result.value) };
    },
    return: () => call.source.return(),
    [Symbol.asyncIterator]() {
      return this;
    },
  };
  for await (const message of invokeStream(spec, call.context, decoded, interceptors)) {
    const full = call.send(codec.encode(output, message));
    if (full !== undefined) await full;
    // Leaving the loop tells the handler's generator to return.
    if (call.ended) return;
  }
}
