import { type ConnectRouter, createConnectRouter, type Interceptor } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { undecodable } from "@openshell/api/decode-error.ts";
import { errorBoundary } from "@openshell/api/error-boundary.ts";
import { decodeEncoded, grpcLane } from "@openshell/rpc";
import type { Logger } from "pino";
import { contextOf } from "../auth/context.ts";
import type { AnyRequest, AnyResponse, RpcServer } from "./dispatcher.ts";
import { FailureLog } from "./failure-log.ts";
import { JsonRequests } from "./json-requests.ts";
import { HttpLimits } from "./limits.ts";
import { translateError } from "./translate-error.ts";

/** A misspelt key of a request written by hand would be left out in silence. */
const JSON_OPTIONS = { ignoreUnknownFields: false };

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

type Handler = (request: AnyRequest, response: AnyResponse) => void;

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
    jsonOptions: JSON_OPTIONS,
    shutdownSignal: options.stopping,
  };
  const interceptors = [boundary, ...options.interceptors];
  const web = (): Handler => {
    const router = createConnectRouter();
    routes(router);
    const json = new JsonRequests(
      new Map(router.handlers.map(({ requestPath, method }) => [requestPath, method.input])),
      JSON_OPTIONS,
    );
    // The library takes a text decoder here, and does not say so in this type.
    const jsonOptions = { ...JSON_OPTIONS, textDecoder: json };
    const serve = connectNodeAdapter({
      ...shared,
      jsonOptions,
      interceptors: [decodeEncoded, ...interceptors],
      // Clients offer gzip by default; on one machine compressing costs more than the bytes it saves.
      compressMinBytes: Number.MAX_SAFE_INTEGER,
      grpcWeb: true,
      grpc: true,
      connect: true,
    }) as Handler;
    return (request, response) => json.during(request.url, () => serve(request, response));
  };
  // Made for the first who needs it: it would take a tenth of the start, and most gateways never hear anything but gRPC.
  let made: Handler | undefined;
  const handler: Handler = (request, response) => {
    made ??= web();
    made(request, response);
  };
  return { handler, lane: grpcLane({ ...shared, interceptors, undecodable }) };
}
