import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Http2Server, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type BootstrapResult,
  ConfigApplyOutcome,
  type RelayDownlink,
  RelayDownlinkSchema,
  type RelayUplink,
  type SupervisorDownlink,
  SupervisorDownlinkSchema,
  SupervisorGateway,
  type SupervisorUplink,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { grpcLane } from "@openshell/rpc";

/** One session as the gateway sees it. */
export class FakeSession {
  readonly down = new BoundedQueue<SupervisorDownlink>(100);
  readonly #up: AsyncIterator<SupervisorUplink>;
  readonly token: string | null;
  /** Whether a bootstrap that was applied is admitted as soon as a test has seen its result. */
  admits = true;

  constructor(up: AsyncIterable<SupervisorUplink>, token: string | null) {
    this.#up = up[Symbol.asyncIterator]();
    this.token = token;
  }
  send(message: MessageInitShape<typeof SupervisorDownlinkSchema>): void {
    void this.down.push(create(SupervisorDownlinkSchema, message));
  }
  /** The next uplink message, which must be of this case; logs and observations in between are passed over. */
  async expect<C extends NonNullable<SupervisorUplink["message"]["case"]>>(
    wanted: C,
  ): Promise<Extract<SupervisorUplink["message"], { case: C }>["value"]> {
    for (;;) {
      const { done, value } = await this.#up.next();
      if (done) throw new Error(`session ended while waiting for ${wanted}`);
      const beside = value.message.case === "logs" || value.message.case === "readiness";
      if (beside && value.message.case !== wanted) continue;
      if (value.message.case !== wanted) throw new Error(`expected ${wanted}, got ${value.message.case}`);
      if (value.message.case === "bootstrapResult" && this.admits) this.#admit(value.message.value);
      return value.message.value as never;
    }
  }

  #admit({ sandboxConfig, providerEnvironment }: BootstrapResult): void {
    const results = [sandboxConfig, providerEnvironment];
    if (results.every((result) => result?.outcome === ConfigApplyOutcome.APPLIED))
      this.send({ message: { case: "admitted", value: {} } });
  }
}

/** One relay as the gateway sees it. */
export class FakeRelay {
  readonly down = new BoundedQueue<RelayDownlink>(100);
  readonly up: AsyncIterator<RelayUplink>;
  constructor(up: AsyncIterable<RelayUplink>) {
    this.up = up[Symbol.asyncIterator]();
  }
  send(message: MessageInitShape<typeof RelayDownlinkSchema>): void {
    void this.down.push(create(RelayDownlinkSchema, message));
  }
}

/** The gateway's end of the host socket over a real Unix socket and HTTP/2, driven by a test. */
export class FakeGateway implements AsyncDisposable {
  readonly sessions = new BoundedQueue<FakeSession>(10);
  readonly relays = new BoundedQueue<FakeRelay>(10);
  readonly #server: Http2Server;
  readonly #live = new Set<ServerHttp2Session>();
  readonly socketPath: string;
  readonly #folder: string;

  static async start(): Promise<FakeGateway> {
    const folder = await mkdtemp(join(tmpdir(), "fake-gateway-"));
    const gateway = new FakeGateway(folder);
    await new Promise<void>((resolve) => gateway.#server.listen(gateway.socketPath, resolve));
    return gateway;
  }

  private constructor(folder: string) {
    this.#folder = folder;
    this.socketPath = join(folder, "host.sock");
    const { sessions, relays } = this;
    const lane = grpcLane({
      routes: (router) => {
        router.service(SupervisorGateway, {
          async *connectSupervisor(up, context) {
            const session = new FakeSession(up, context.requestHeader.get("openshell-sandbox-token"));
            void sessions.push(session);
            yield* session.down;
          },
          async *relay(up) {
            const relay = new FakeRelay(up);
            void relays.push(relay);
            yield* relay.down;
          },
        });
      },
    });
    this.#server = createServer();
    this.#server.on("stream", (stream, headers) => void lane.handle(stream as ServerHttp2Stream, headers));
    this.#server.on("session", (session) => {
      this.#live.add(session);
      session.on("close", () => this.#live.delete(session));
    });
  }

  /** Cuts every connection, as a gateway that dies does. */
  cut(): void {
    for (const session of this.#live) session.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
    await rm(this.#folder, { recursive: true, force: true });
  }
}
