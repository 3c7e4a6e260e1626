import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { createServer as createHttp1, type IncomingMessage, type ServerResponse } from "node:http";
import { createServer as createHttp2, type IncomingHttpHeaders, type ServerHttp2Stream } from "node:http2";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { Json } from "../transport/unary.ts";

/** What a test answers to one unary call: a message, or an error body with its HTTP status. */
export type Answer =
  | { readonly message: Json; readonly afterMs?: number }
  | { readonly error: Json; readonly status?: number }
  | { readonly raw: string; readonly status: number }
  | { readonly silence: true };

/** A call as it arrived. */
export interface SeenCall {
  readonly method: string;
  readonly message: Json;
  readonly headers: IncomingMessage["headers"];
}

/** A gateway on a unix socket that speaks as the test says: HTTP/1 for unary calls, HTTP/2 for streams. */
export class FakeGateway implements AsyncDisposable {
  readonly folder: string;
  readonly socket: string;
  readonly calls: SeenCall[] = [];
  /** Method → answer. */
  readonly answers = new Map<string, Answer | ((message: Json) => Answer)>();
  /** Server-streaming calls in the Connect protocol: method → messages, then the end. */
  readonly streams = new Map<string, readonly Json[]>();
  /** Bidirectional gRPC calls. */
  onStream: (stream: ServerHttp2Stream, headers: IncomingHttpHeaders) => void = (stream) => stream.close();
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #door: Server | undefined;

  private constructor(folder: string, server: Server) {
    this.folder = folder;
    this.socket = join(folder, "run", "openshell", "openshell", "user.sock");
    this.#server = server;
  }

  static async start(): Promise<FakeGateway> {
    const folder = mkdtempSync(join(tmpdir(), "openshell-cli-"));
    const http1 = createHttp1((request, response) => void gateway.#unary(request, response));
    const http2 = createHttp2();
    http2.on("stream", (stream, headers) => {
      stream.on("error", () => {});
      gateway.onStream(stream as ServerHttp2Stream, headers);
    });
    http2.on("sessionError", () => {});
    const server = createServer((socket) => {
      gateway.#sockets.add(socket);
      socket.on("error", () => {});
      socket.once("close", () => gateway.#sockets.delete(socket));
      socket.once("readable", () => {
        const first: Buffer | null = socket.read();
        if (first === null) return;
        socket.unshift(first);
        (first.toString("latin1").startsWith("PRI") ? http2 : http1).emit("connection", socket);
      });
    });
    const gateway = new FakeGateway(folder, server);
    mkdirSync(dirname(gateway.socket), { recursive: true });
    await new Promise<void>((resolve) => server.listen(gateway.socket, resolve));
    return gateway;
  }

  /** HOME and XDG folders under which the command line finds this gateway. */
  get env(): Record<string, string> {
    return {
      HOME: join(this.folder, "home"),
      PATH: "/usr/bin:/bin",
      XDG_CONFIG_HOME: join(this.folder, "config"),
      XDG_STATE_HOME: join(this.folder, "state"),
      XDG_RUNTIME_DIR: join(this.folder, "run"),
    };
  }

  /** Opens the same gateway on a port of this machine, in the clear, and returns its URL. */
  async tcpEndpoint(): Promise<string> {
    const door = createServer((socket) => this.#server.emit("connection", socket));
    this.#door = door;
    await new Promise<void>((resolve) => door.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${(door.address() as AddressInfo).port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
    await new Promise((resolve) => (this.#door === undefined ? resolve(undefined) : this.#door.close(resolve)));
    rmSync(this.folder, { recursive: true, force: true });
  }

  async #unary(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const method = (request.url ?? "").split("/").at(-1)!;
    const body = Buffer.concat(chunks);
    const enveloped = request.headers["content-type"] === "application/connect+json";
    const streamed = this.streams.get(method);
    const message = JSON.parse((enveloped ? body.subarray(5) : body).toString() || "{}") as Json;
    this.calls.push({ method, message, headers: request.headers });
    if (streamed !== undefined) {
      response.writeHead(200, { "content-type": "application/connect+json" });
      for (const item of streamed) response.write(envelope(JSON.stringify(item), 0));
      response.end(envelope("{}", 2));
      return;
    }
    const given = this.answers.get(method);
    const unknown = { error: { code: "unimplemented", message: `${method} is not built` }, status: 501 };
    const answer: Answer = typeof given === "function" ? given(message) : (given ?? unknown);
    if ("silence" in answer) return;
    const text = "raw" in answer ? answer.raw : JSON.stringify("message" in answer ? answer.message : answer.error);
    const status = "message" in answer ? 200 : (answer.status ?? 400);
    const send = (): void => void response.writeHead(status, { "content-type": "application/json" }).end(text);
    if ("message" in answer && answer.afterMs !== undefined) setTimeout(send, answer.afterMs);
    else send();
  }
}

/** One enveloped message of a stream. */
export function envelope(data: string | Uint8Array, flags: number): Buffer {
  const body = Buffer.from(data);
  const head = Buffer.alloc(5);
  head[0] = flags;
  head.writeUInt32BE(body.length, 1);
  return Buffer.concat([head, body]);
}
