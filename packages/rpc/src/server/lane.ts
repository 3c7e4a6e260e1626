import type { IncomingHttpHeaders, ServerHttp2Stream } from "node:http2";
import type { DescMessage } from "@bufbuild/protobuf";
import { Code, ConnectError, type ConnectRouter, type ContextValues, type Interceptor } from "@connectrpc/connect";
import { type Codec, codecOf, type JsonOptions, jsonCodec, protoCodec } from "../codec.ts";
import { errorTrailers, toConnectError } from "../errors.ts";
import { WireLimits } from "../wire/limits.ts";
import { parseTimeout } from "../wire/timeout.ts";
import { type CallLimits, ServerCall, stopInput } from "./call.ts";
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
  readonly jsonOptions?: JsonOptions;
  /** The error for a request that does not decode; INVALID_ARGUMENT unless given. */
  readonly undecodable?: (schema: DescMessage, bytes: Uint8Array) => ConnectError;
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
  const json = jsonCodec(options.jsonOptions);
  const limits: CallLimits = {
    readMaxBytes: options.readMaxBytes ?? WireLimits.messageBytes,
    writeMaxBytes: options.writeMaxBytes ?? 0xffff_ffff,
    compressMinBytes: options.compressMinBytes ?? Number.POSITIVE_INFINITY,
  };
  return {
    handle(stream, headers) {
      const codec = codecOf(headers["content-type"], json);
      if (codec === undefined) return false;
      if (headers[":method"] !== "POST") return refuse(stream, 405);
      if (codec === null) return refuse(stream, 415);
      const spec = specs.get(headers[":path"] ?? "");
      if (spec === undefined) return unknownMethod(stream, codec, headers[":path"] ?? "");
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
      void serve({ call, headers, spec, codec, interceptors, undecodable: options.undecodable, failure });
      return true;
    },
  };
}

/** Characters of a caller's own text that an error repeats. */
const SHOWN_PATH = 200;

function refuse(stream: ServerHttp2Stream, status: number): true {
  stream.respond({ ":status": status, ...(status === 405 ? { allow: "POST" } : {}) }, { endStream: true });
  stopInput(stream);
  return true;
}

function unknownMethod(stream: ServerHttp2Stream, codec: Codec, path: string): true {
  const text = `unknown method ${path.slice(0, SHOWN_PATH)}: is the client of another version than this server?`;
  const error = new ConnectError(text, Code.Unimplemented);
  const headers = { ":status": 200, "content-type": codec.contentType, ...errorTrailers(error) };
  stream.respond(headers, { endStream: true });
  stream.on("error", () => {});
  stopInput(stream);
  return true;
}

/** What it takes to serve one call. */
interface Served<Spec extends MethodImplSpec = MethodImplSpec> {
  readonly call: ServerCall;
  readonly headers: IncomingHttpHeaders;
  readonly spec: Spec;
  readonly codec: Codec;
  readonly interceptors: readonly Interceptor[];
  readonly undecodable: LaneOptions["undecodable"];
  /** What was found wrong with the headers. */
  readonly failure: unknown;
}

/** Carries one call to its end. Never rejects. */
async function serve(served: Served): Promise<void> {
  const { call, spec, codec } = served;
  try {
    if (served.failure !== undefined) throw served.failure;
    call.readEncoding(served.headers);
    if (spec.kind === "unary") {
      const message = decode(served, await single(call.source));
      const output = await invokeUnary(spec, call.context, message, served.interceptors);
      const full = call.send(codec.encode(spec.method.output, output));
      if (full !== undefined) await full;
    } else {
      await stream({ ...served, spec });
    }
    call.finish();
  } catch (error) {
    call.finish(toConnectError(error));
  }
}

function decode({ spec, codec, undecodable }: Served, bytes: Uint8Array) {
  const schema = spec.method.input;
  try {
    return codec.decode(schema, bytes);
  } catch (error) {
    throw codec === protoCodec ? (undecodable?.(schema, bytes) ?? error) : error;
  }
}

async function stream(served: Served<Exclude<MethodImplSpec, { kind: "unary" }>>): Promise<void> {
  const { call, spec, codec, interceptors } = served;
  const decoded: AsyncIterableIterator<unknown, undefined> = {
    next: async () => {
      try {
        const result = await call.source.next();
        return result.done ? result : { done: false, value: decode(served, result.value) };
      } catch (error) {
        // Interceptors and handlers know Connect's errors; any other is a fault of their own to them.
        throw toConnectError(error);
      }
    },
    return: () => call.source.return(),
    [Symbol.asyncIterator]() {
      return this;
    },
  };
  const { messages, ended } = await invokeStream(spec, call.context, decoded, interceptors);
  for await (const message of messages) {
    const full = call.send(codec.encode(spec.method.output, message));
    if (full !== undefined) await full;
    // Leaving the loop tells the handler's generator to return.
    if (call.ended) return;
  }
  ended();
}
