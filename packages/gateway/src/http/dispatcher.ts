import type { IncomingMessage, ServerResponse } from "node:http";
import { Http2ServerRequest, Http2ServerResponse, type IncomingHttpHeaders, type ServerHttp2Stream } from "node:http2";
import type { RequestSink } from "./connection-server.ts";
import { type Peer, setRequestPeer } from "./peer.ts";

export type AnyRequest = IncomingMessage | Http2ServerRequest;
export type AnyResponse = ServerResponse | Http2ServerResponse;

/** Answers plain HTTP paths. True when it did (or will). */
export type PlainRoute = (request: AnyRequest, response: AnyResponse, peer: Peer) => boolean;

/** Answers everything else: gRPC, gRPC-Web and Connect by path. */
export type RpcHandler = (request: AnyRequest, response: AnyResponse) => void;

/**
 * The one place that every request of a listener passes: plain routes first, then RPCs. For HTTP/2 it owns the `stream`
 * event, so a lane that works on streams directly is called before the compatibility objects are made.
 */
export class Dispatcher implements RequestSink {
  readonly #routes: readonly PlainRoute[];
  readonly #rpc: RpcHandler;

  constructor(routes: readonly PlainRoute[], rpc: RpcHandler) {
    this.#routes = routes;
    this.#rpc = rpc;
  }

  stream(stream: ServerHttp2Stream, headers: IncomingHttpHeaders, rawHeaders: string[], peer: Peer): void {
    if (headers[":method"] === "CONNECT") {
      stream.respond({ ":status": 405 }, { endStream: true });
      return;
    }
    const request = new Http2ServerRequest(stream, headers, {}, rawHeaders);
    this.#handle(request, new Http2ServerResponse(stream), peer);
  }

  request(request: IncomingMessage, response: ServerResponse, peer: Peer): void {
    this.#handle(request, response, peer);
  }

  #handle(request: AnyRequest, response: AnyResponse, peer: Peer): void {
    setRequestPeer(request, peer);
    for (const route of this.#routes) if (route(request, response, peer)) return;
    this.#rpc(request, response);
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
