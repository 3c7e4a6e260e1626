import { createServer, type Http2Server, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import { connect } from "node:net";
import {
  createContextKey,
  createContextValues,
  type HandlerContext,
  type ServiceImpl,
  type Transport,
} from "@connectrpc/connect";
import { SupervisorGateway } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { createLaneTransport, grpcLane } from "@openshell/rpc";

/** SessionAccepted, as the host reads it. Bytes. */
const MESSAGE_BYTES = 8 * 1024 * 1024;

/** What a call carries on to the gateway, and when it ends. */
export interface CallOptions {
  readonly headers: Headers;
  readonly signal: AbortSignal;
}

export interface HostLinkOptions<Connection> {
  /** The gateway's host socket; asked for at each connection. */
  readonly target: () => string;
  /** How long the last messages of a gateway that ended have on their way to the host. Milliseconds; 0 by default. */
  readonly lastMs?: number;
  /** What is kept of a connection: `transport` leads to the gateway, `end` ends the host's side. */
  readonly open: (transport: Transport, end: () => void) => Connection;
  /** The service that hosts see; `called` says whose call it is and how it goes on. */
  readonly service: (
    called: (context: HandlerContext) => { readonly connection: Connection; readonly options: CallOptions },
  ) => ServiceImpl<typeof SupervisorGateway>;
}

/**
 * Stands between supervisor hosts and their gateway: takes their connections and opens one to the gateway for each. A
 * connection that ends on one side ends on the other.
 */
export class HostLink<Connection> implements AsyncDisposable {
  readonly #options: HostLinkOptions<Connection>;
  readonly #server: Http2Server;
  readonly #connections = new Map<ServerHttp2Session, Connection>();

  constructor(options: HostLinkOptions<Connection>) {
    this.#options = options;
    const key = createContextKey<Connection | undefined>(undefined);
    const lane = grpcLane({
      readMaxBytes: MESSAGE_BYTES,
      contextValues: (stream) => createContextValues().set(key, this.#connections.get(stream.session as never)),
      routes: (router) => {
        const service = options.service((context) => {
          const connection = context.values.get(key);
          if (connection === undefined) throw new Error("the connection has ended");
          return { connection, options: callOptions(context) };
        });
        router.service(SupervisorGateway, service);
      },
    });
    this.#server = createServer();
    this.#server.on("stream", (stream, headers) => void lane.handle(stream as ServerHttp2Stream, headers));
    this.#server.on("session", (session) => this.#open(session));
  }

  async listen(path: string): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once("error", reject);
      this.#server.listen(path, resolve);
    });
  }

  /** Those that are open. */
  connections(): readonly Connection[] {
    return [...this.#connections.values()];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const session of this.#connections.keys()) session.destroy();
    if (this.#server.listening) await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }

  #open(session: ServerHttp2Session): void {
    const { target, lastMs = 0, open } = this.#options;
    const dial = () => {
      const socket = connect(target());
      socket.on("close", () => (lastMs === 0 ? session.destroy() : setTimeout(() => session.destroy(), lastMs)));
      return socket;
    };
    const transport = createLaneTransport({ dial, readMaxBytes: MESSAGE_BYTES });
    this.#connections.set(
      session,
      open(transport, () => session.destroy()),
    );
    session.on("error", () => {});
    session.on("close", () => {
      this.#connections.delete(session);
      void transport[Symbol.asyncDispose]();
    });
  }
}

function callOptions({ requestHeader, signal }: HandlerContext): CallOptions {
  const headers = new Headers();
  requestHeader.forEach((value, name) => {
    if (name.startsWith("openshell-")) headers.set(name, value);
  });
  return { headers, signal };
}
