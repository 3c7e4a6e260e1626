import type { ConnectRouter, Interceptor } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { undecodable } from "@openshell/api/decode-error.ts";
import { errorBoundary } from "@openshell/api/error-boundary.ts";
import { decodeEncoded, grpcLane } from "@openshell/rpc";
import type { Logger } from "pino";
import { contextOf } from "../auth/context.ts";
import type { AnyRequest, AnyResponse, RpcServer } from "./dispatcher.ts";
import { FailureLog } from "./failure-log.ts";
import { HttpLimits } from "./limits.ts";
import { translateError } from "./translate-error.ts";

export interface RpcOptions {
  readonly routes: (router: ConnectRouter) => void;
  /** Run inside the error boundary, in order. */
  readonly interceptors: readonly Interceptor[];
  readonly log: Logger;
  /** Largest request message; `HttpLimits.messageBytes` unless given. */
  readonly messageBytes?: number;
  /** Aborts calls under way when the gateway stops. */
  readonly stopping: AbortSignal;
}

/** Plain gRPC in the lane; gRPC-Web and Connect, and whatever comes over HTTP/1.1, in connect-node. */
export function rpcServer(options: RpcOptions): RpcServer {
  const { log, routes } = options;
  const failures = new FailureLog(log);
  const boundary = errorBoundary({
    translate: translateError,
    onInternal: (error, method) => failures.failed(error, method),
  });
  const shared = {
    routes,
    contextValues: contextOf,
    readMaxBytes: options.messageBytes ?? HttpLimits.messageBytes,
    // A misspelt key of a request written by hand would be left out in silence.
    jsonOptions: { ignoreUnknownFields: false },
    shutdownSignal: options.stopping,
  };
  const interceptors = [boundary, ...options.interceptors];
  const handler = connectNodeAdapter({
    ...shared,
    interceptors: [decodeEncoded, ...interceptors],
    // Clients offer gzip by default; on one machine compressing costs more than the bytes it saves.
    compressMinBytes: Number.MAX_SAFE_INTEGER,
    grpcWeb: true,
    grpc: true,
    connect: true,
  }) as (request: AnyRequest, response: AnyResponse) => void;
  return { handler, lane: grpcLane({ ...shared, interceptors, undecodable }) };
}
