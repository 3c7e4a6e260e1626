import { createHash, randomBytes } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";
import type { ReceivedConnection, ReceivedRequest } from "./record.ts";

/**
 * What a test host answers unless the test brings its own handler:
 *
 * | Path | Answer |
 * |---|---|
 * | `/bytes/N` | N bytes of a fixed pattern with Content-Length; `bulkSha256(N)` is their hash |
 * | `/chunks?count=&size=&interval=` | chunked: `count` chunks of `size` bytes, `interval` ms apart |
 * | `/slow?head=&body=` | waits `head` ms, sends the head, waits `body` ms, sends "slow\n" |
 * | `/count` | JSON {connection, requests}: number of this connection and of requests on it so far |
 * | `/upload` | reads the body; JSON {bytes, sha256} |
 * | `/status/CODE` | that status, body "status CODE\n" |
 * | `/redirect?to=URL&status=` | Location: URL |
 * | `/close` | closes the connection without an answer |
 * | anything else | JSON of the request head and, when there is one, the body: `Echo` |
 */

/** The size of the bulk download tests, 200 MiB, and the hash of its bytes. */
export const BULK_BYTES = 200 * 1024 * 1024;

/** What echo answers. */
export interface Echo {
  readonly method: string;
  readonly target: string;
  readonly httpVersion: string;
  readonly rawHeaders: readonly string[];
  readonly headers: IncomingMessage["headers"];
  /** The body as UTF-8 when at most 64 KiB, else absent. */
  readonly body?: string;
  readonly bodyBytes: number;
  readonly connection: number;
  readonly remoteAddress: string;
  readonly localAddress: string;
}

export interface ResponseContext {
  readonly connection: ReceivedConnection | undefined;
  readonly record: ReceivedRequest;
}

/** A test's own handler; what it throws becomes a 500 with the message. */
export type HttpHandler = (
  request: IncomingMessage,
  response: ServerResponse,
  context: ResponseContext,
) => void | Promise<void>;

const BLOCK_BYTES = 64 * 1024;
const ECHO_BODY_BYTES = 64 * 1024;
/** Neither compressible nor periodic within a block, and the same in every process. */
const BLOCK = (() => {
  const block = Buffer.alloc(BLOCK_BYTES);
  for (let at = 0; at < BLOCK_BYTES; at += 32) createHash("sha256").update(String(at)).digest().copy(block, at);
  return block;
})();

function* bulk(bytes: number): Generator<Buffer> {
  for (let left = bytes; left > 0; left -= BLOCK_BYTES) yield left >= BLOCK_BYTES ? BLOCK : BLOCK.subarray(0, left);
}

/** The hash of what `/bytes/N` answers, hex. */
export function bulkSha256(bytes: number): string {
  const hash = createHash("sha256");
  for (const part of bulk(bytes)) hash.update(part);
  return hash.digest("hex");
}

function json(response: ServerResponse, value: unknown): void {
  const body = `${JSON.stringify(value)}\n`;
  response.writeHead(200, { "content-type": "application/json", "content-length": Buffer.byteLength(body) });
  response.end(body);
}

async function drain(request: IncomingMessage, each: (chunk: Buffer) => void = () => {}): Promise<void> {
  for await (const chunk of request) each(chunk as Buffer);
}

async function echo(request: IncomingMessage, response: ServerResponse, context: ResponseContext): Promise<void> {
  await drain(request);
  const { record, connection } = context;
  const answer: Echo = {
    method: record.method,
    target: record.target,
    httpVersion: record.httpVersion,
    rawHeaders: record.rawHeaders,
    headers: record.headers,
    ...(record.bodyBytes <= ECHO_BODY_BYTES ? { body: record.body.toString() } : {}),
    bodyBytes: record.bodyBytes,
    connection: record.connection,
    remoteAddress: connection?.remoteAddress ?? "",
    localAddress: connection?.localAddress ?? "",
  };
  json(response, answer);
}

/** The answers of the file's table. */
export async function answer(
  request: IncomingMessage,
  response: ServerResponse,
  context: ResponseContext,
): Promise<void> {
  const url = new URL(request.url ?? "/", "http://host.invalid");
  const number = (name: string, otherwise: number) => Number(url.searchParams.get(name) ?? otherwise);
  const [, first, second] = url.pathname.split("/");
  switch (first) {
    case "bytes": {
      const bytes = Number(second);
      response.writeHead(200, { "content-type": "application/octet-stream", "content-length": bytes });
      return await pipeline(Readable.from(bulk(bytes)), response);
    }
    case "chunks": {
      const chunk = Buffer.alloc(number("size", 16), "chunk ");
      response.writeHead(200, { "content-type": "text/plain" });
      response.flushHeaders();
      for (let sent = 0; sent < number("count", 5) && !response.destroyed; sent++) {
        if (sent > 0) await sleep(number("interval", 10));
        response.write(chunk);
      }
      response.end();
      return;
    }
    case "slow":
      await sleep(number("head", 0));
      response.writeHead(200, { "content-type": "text/plain" });
      response.flushHeaders();
      await sleep(number("body", 0));
      response.end("slow\n");
      return;
    case "count":
      return json(response, { connection: context.record.connection, requests: context.connection?.requests.length });
    case "upload": {
      const hash = createHash("sha256");
      await drain(request, (chunk) => hash.update(chunk));
      return json(response, { bytes: context.record.bodyBytes, sha256: hash.digest("hex") });
    }
    case "status":
      response.writeHead(Number(second), { "content-type": "text/plain" });
      response.end(`status ${second}\n`);
      return;
    case "redirect":
      response.writeHead(number("status", 302), { location: url.searchParams.get("to") ?? "/" });
      response.end();
      return;
    case "close":
      request.socket.destroy();
      return;
    default:
      return await echo(request, response, context);
  }
}

/** A value that occurs nowhere else: what a test puts into a secret or a path to look for it later. */
export function marker(prefix = "marker"): string {
  return `${prefix}-${randomBytes(12).toString("hex")}`;
}
