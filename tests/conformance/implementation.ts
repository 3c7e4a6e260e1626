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
import { Dispatcher, type RpcServer } from "@openshell/gateway/http/dispatcher.ts";
import { createLaneTransport, grpcLane } from "@openshell/rpc";

/** Which code speaks the protocols. */
export type Implementation = "lane" | "connect-node";

const IMPLEMENTATIONS: readonly Implementation[] = ["lane", "connect-node"];

/** Every message that is not empty is compressed where the case asks for compression. */
const COMPRESS_MIN_BYTES = 1;

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

/** Answers requests as the gateway does: `Dispatcher` gives plain gRPC over HTTP/2 to the lane, if there is one. */
export function dispatcherOf(implementation: Implementation, options: ServingOptions): Dispatcher {
  const { registry, routes } = options;
  const limit = options.readMaxBytes === undefined ? {} : { readMaxBytes: options.readMaxBytes };
  const shared = { routes, compressMinBytes: COMPRESS_MIN_BYTES, jsonOptions: { registry }, ...limit };
  const handler = connectNodeAdapter(shared) as RpcServer["handler"];
  return new Dispatcher({
    routes: [],
    rpc: implementation === "lane" ? { handler, lane: grpcLane(shared) } : { handler },
  });
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
export function transportOf(implementation: Implementation, options: CallingOptions): DisposableTransport {
  const { target, registry, json, gzip } = options;
  const authority = `${target.tls === undefined ? "http" : "https"}://${target.host}:${target.port}`;
  const shared = {
    jsonOptions: { registry },
    compressMinBytes: COMPRESS_MIN_BYTES,
    ...(options.readMaxBytes === undefined ? {} : { readMaxBytes: options.readMaxBytes }),
  };
  if (implementation === "lane") {
    const transport = createLaneTransport({
      ...shared,
      dial: () => dial(target),
      origin: authority,
      useBinaryFormat: !json,
      ...(gzip ? { sendCompression: "gzip" } : {}),
    });
    return Object.assign(transport, { [Symbol.dispose]: () => transport.reset() });
  }
  const manager = new Http2SessionManager(authority, {}, { createConnection: () => dial(target) });
  const transport = createGrpcTransport({
    ...shared,
    baseUrl: authority,
    sessionManager: manager,
    useBinaryFormat: !json,
    ...(gzip ? { sendCompression: compressionGzip } : {}),
  });
  return Object.assign(transport, { [Symbol.dispose]: () => manager.abort() });
}
