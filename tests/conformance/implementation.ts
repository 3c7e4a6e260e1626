import { connect } from "node:net";
import type { Duplex } from "node:stream";
import { connect as connectTls } from "node:tls";
import type { Registry } from "@bufbuild/protobuf";
import type { ConnectRouter, Transport } from "@connectrpc/connect";
import {
  compressionGzip,
  connectNodeAdapter,
  createGrpcTransport,
  Http2SessionManager,
} from "@connectrpc/connect-node";
import { Dispatcher, type RpcHandler } from "@openshell/gateway/http/dispatcher.ts";

/** Which code speaks the protocols. */
export type Implementation = "connect-node";

export const IMPLEMENTATIONS: readonly Implementation[] = ["connect-node"];

export function implementationNamed(name: string | undefined): Implementation {
  const found = IMPLEMENTATIONS.find((each) => each === name);
  if (found === undefined) throw new Error(`the first argument is one of: ${IMPLEMENTATIONS.join(", ")}`);
  return found;
}

export interface ServingOptions {
  readonly routes: (router: ConnectRouter) => void;
  /** Of the messages in an `Any`, for JSON. */
  readonly registry: Registry;
  readonly readMaxBytes: number | undefined;
}

/** Answers requests as the gateway's listeners do: with connections of `ConnectionServer`. */
export function dispatcherOf(_implementation: Implementation, options: ServingOptions): Dispatcher {
  const { registry, routes } = options;
  const limit = options.readMaxBytes === undefined ? {} : { readMaxBytes: options.readMaxBytes };
  const handler = connectNodeAdapter({ routes, jsonOptions: { registry }, compressMinBytes: 1, ...limit });
  return new Dispatcher([], handler as RpcHandler);
}

export interface Target {
  readonly host: string;
  readonly port: number;
  readonly tls: { readonly ca: string; readonly cert?: string; readonly key?: string } | undefined;
}

export interface CallingOptions {
  readonly target: Target;
  readonly registry: Registry;
  readonly json: boolean;
  readonly gzip: boolean;
  readonly readMaxBytes: number | undefined;
}

export type DisposableTransport = Transport & Disposable;

function dial({ host, port, tls }: Target): Duplex {
  if (tls === undefined) return connect({ host, port, noDelay: true });
  return connectTls({ host, port, ALPNProtocols: ["h2"], rejectUnauthorized: true, ...tls });
}

/** Plain gRPC over one HTTP/2 connection. */
export function transportOf(_implementation: Implementation, options: CallingOptions): DisposableTransport {
  const { target, registry, json } = options;
  const authority = `${target.tls === undefined ? "http" : "https"}://${target.host}:${target.port}`;
  const manager = new Http2SessionManager(authority, {}, { createConnection: () => dial(target) });
  const transport = createGrpcTransport({
    baseUrl: authority,
    sessionManager: manager,
    jsonOptions: { registry },
    useBinaryFormat: !json,
    compressMinBytes: 1,
    ...(options.gzip ? { sendCompression: compressionGzip } : {}),
    ...(options.readMaxBytes === undefined ? {} : { readMaxBytes: options.readMaxBytes }),
  });
  return Object.assign(transport, { [Symbol.dispose]: () => manager.abort() });
}
