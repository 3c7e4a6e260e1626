import { createServer, type Http2Server, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import { type AddressInfo, connect } from "node:net";
import { type Client, createClient, type ServiceImpl } from "@connectrpc/connect";
import { createLaneTransport, type LaneTransport, type LaneTransportOptions } from "../client/transport.ts";
import { grpcLane, type LaneOptions } from "../server/lane.ts";
import { Echo, type EchoService } from "./echo.ts";

/** The lane's server and client joined by a loopback connection. */
export class Stand implements AsyncDisposable {
  readonly sessions = new Set<ServerHttp2Session>();
  /** Asked for each stream: whether it is refused without being looked at. */
  refuse: () => boolean = () => false;
  readonly #server: Http2Server;
  readonly #transports: LaneTransport[] = [];

  static async start(
    implementation: Partial<ServiceImpl<EchoService>>,
    options: Partial<LaneOptions> = {},
  ): Promise<Stand> {
    const lane = grpcLane({ ...options, routes: (router) => router.service(Echo, implementation) });
    const server = createServer();
    const stand = new Stand(server);
    server.on("stream", (stream, headers) => {
      // REFUSED_STREAM (RFC 9113 §7).
      if (stand.refuse()) stream.on("error", () => {}).close(7);
      else if (!lane.handle(stream as ServerHttp2Stream, headers)) stream.destroy();
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return stand;
  }

  private constructor(server: Http2Server) {
    this.#server = server;
    server.on("session", (session) => {
      this.sessions.add(session);
      session.once("close", () => this.sessions.delete(session));
    });
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  client(options: Partial<LaneTransportOptions> = {}): Client<EchoService> {
    const transport = createLaneTransport({ dial: () => connect(this.port, "127.0.0.1"), ...options });
    this.#transports.push(transport);
    return createClient(Echo, transport);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const transport of this.#transports) await transport[Symbol.asyncDispose]();
    for (const session of this.sessions) session.destroy();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }
}
