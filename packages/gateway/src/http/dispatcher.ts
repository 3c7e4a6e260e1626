import type { IncomingMessage, ServerResponse } from "node:http";
import { Http2ServerRequest, Http2ServerResponse, type IncomingHttpHeaders, type ServerHttp2Stream } from "node:http2";
import type { Lane } from "@openshell/rpc";
import type { RequestSink } from "./connection-server.ts";
import { isStranger, type Peer, setRequestPeer } from "./peer.ts";

export type AnyRequest = IncomingMessage | Http2ServerRequest;
export type AnyResponse = ServerResponse | Http2ServerResponse;

/** Answers plain HTTP paths. True when it did (or will). */
export type PlainRoute = (request: AnyRequest, response: AnyResponse, peer: Peer) => boolean;

/** Answers RPCs: plain gRPC in the lane, gRPC-Web and Connect, and everything over HTTP/1.1, in the handler. */
export interface RpcServer {
  readonly handler: (request: AnyRequest, response: AnyResponse) => void;
  /** Without it the handler serves plain gRPC as well. */
  readonly lane?: Lane;
}

export interface DispatcherOptions {
  readonly routes: readonly PlainRoute[];
  /** Asked before anything else: why this request is not served, or undefined. */
  readonly guard?: (request: Pick<AnyRequest, "headers">) => string | undefined;
  readonly rpc: RpcServer;
  /** Serves connections that proved nothing, with narrower limits; `rpc` unless given. */
  readonly strangers?: RpcServer;
}

/**
 * The one place that every request of a listener passes: the guard, plain routes, then RPCs. For HTTP/2 it owns the
 * `stream` event, so the lane, which works on streams, is asked before the compatibility objects are made.
 */
export class Dispatcher implements RequestSink {
  readonly #options: DispatcherOptions;

  constructor(options: DispatcherOptions) {
    this.#options = options;
  }

  stream(stream: ServerHttp2Stream, headers: IncomingHttpHeaders, rawHeaders: string[], peer: Peer): void {
    if (headers[":method"] === "CONNECT") {
      stream.respond({ ":status": 405 }, { endStream: true });
      return;
    }
    const { guard } = this.#options;
    const rpc = this.#rpcFor(peer);
    if (rpc.lane !== undefined && guard?.({ headers }) === undefined) {
      setRequestPeer(stream, peer);
      if (rpc.lane.handle(stream, headers)) return;
    }
    const request = new Http2ServerRequest(stream, headers, {}, rawHeaders);
    this.#handle(request, new Http2ServerResponse(stream), peer);
  }

  request(request: IncomingMessage, response: ServerResponse, peer: Peer): void {
    this.#handle(request, response, peer);
  }

  #handle(request: AnyRequest, response: AnyResponse, peer: Peer): void {
    const { guard, routes } = this.#options;
    const refusal = guard?.(request);
    if (refusal !== undefined) {
      answer(response, 403, `${refusal}\n`);
      return;
    }
    setRequestPeer(request, peer);
    for (const route of routes) if (route(request, response, peer)) return;
    this.#rpcFor(peer).handler(request, response);
  }

  #rpcFor(peer: Peer): RpcServer {
    const { rpc, strangers } = this.#options;
    return strangers !== undefined && isStranger(peer) ? strangers : rpc;
  }
}

/** The path of a request without its query. */
export function pathOf(request: AnyRequest): string {
  return (request.url ?? "").split("?", 1)[0]!;
}

/** A complete small answer. */
export function answer(
  response: AnyResponse,
  status: number,
  body: string,
  contentType = "text/plain; charset=utf-8",
): void {
  // Both classes have these with the same meaning; their TypeScript overloads differ.
  const target = response as ServerResponse;
  target.writeHead(status, { "content-type": contentType, "cache-control": "no-store" });
  target.end(body);
}

export function answerJson(response: AnyResponse, status: number, body: unknown): void {
  answer(response, status, `${JSON.stringify(body)}\n`, "application/json");
}
