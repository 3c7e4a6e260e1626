import type { ConnectRouter, Interceptor } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { errorBoundary } from "@openshell/api/error-boundary.ts";
import { LogField } from "@openshell/base";
import type { Logger } from "pino";
import { contextOf } from "../auth/context.ts";
import type { RpcHandler } from "./dispatcher.ts";
import { HttpLimits } from "./limits.ts";
import { translateError } from "./translate-error.ts";

export interface RpcOptions {
  readonly routes: (router: ConnectRouter) => void;
  /** Run inside the error boundary, in order. */
  readonly interceptors: readonly Interceptor[];
  readonly log: Logger;
  /** Aborts calls under way when the gateway stops. */
  readonly stopping: AbortSignal;
}

/** gRPC, gRPC-Web and Connect for the given services, in one handler. */
export function rpcHandler(options: RpcOptions): RpcHandler {
  const { log } = options;
  const boundary = errorBoundary({
    translate: translateError,
    onInternal: (error, method) => log.error({ [LogField.method]: method, err: error }, "a call failed unexpectedly"),
  });
  return connectNodeAdapter({
    routes: options.routes,
    interceptors: [boundary, ...options.interceptors],
    contextValues: contextOf,
    readMaxBytes: HttpLimits.messageBytes,
    // Clients offer gzip by default; on one machine compressing costs more than the bytes it saves.
    compressMinBytes: Number.MAX_SAFE_INTEGER,
    shutdownSignal: options.stopping,
    grpcWeb: true,
    grpc: true,
    connect: true,
  }) as RpcHandler;
}
