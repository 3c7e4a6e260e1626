import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer, type Http2Server, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import { connect } from "node:net";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";
import { createClient, createContextKey, createContextValues, type HandlerContext } from "@connectrpc/connect";
import { OpenShell } from "@openshell/api";
import {
  type HostDownlink,
  type HostUplink,
  SupervisorGateway,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { createLaneTransport, grpcLane, type LaneTransport } from "@openshell/rpc";
import { buildFolder } from "../../functional/gateway/gateway-process.ts";
import { type Attachment, type Clients, PollingSession } from "./session.ts";

/** SessionAccepted, as the host reads it. Bytes. */
const MESSAGE_BYTES = 8 * 1024 * 1024;

interface Connection {
  readonly clients: Clients;
  readonly transport: LaneTransport;
}
const CONNECTION = createContextKey<Connection | undefined>(undefined);

/** Looks by what they found. */
export interface Found {
  unchanged: number;
  changed: number;
}

/** What the looks of each sandbox found. */
class Looks {
  readonly #found = new Map<string, Found>();

  of(sandboxId: string): Found {
    const found = this.#found.get(sandboxId) ?? { unchanged: 0, changed: 0 };
    this.#found.set(sandboxId, found);
    return found;
  }
}

/**
 * Makes the supervisor hosts of one gateway speak an older revision of the protocol: everything in a sandbox is the
 * product's (boundary, workload, egress, credentials), its session says revision 0 or 1, and configuration comes by
 * asking. The hosts dial a socket here instead of their gateway's; streams are passed on, except for what an older
 * supervisor does otherwise (session.ts).
 */
export class PollingHosts implements AsyncDisposable {
  /** Variables of the command that starts the gateway. */
  readonly env: Readonly<Record<string, string>>;
  readonly #folder: string;
  readonly #server: Http2Server;
  readonly #connections = new Map<ServerHttp2Session, Connection>();
  readonly #attachments = new Map<string, Attachment>();
  readonly #options: { readonly revision: number; readonly intervalMs: number };
  #hostSocket = "";
  readonly looks = new Looks();
  /** What should not have happened. */
  readonly problems: string[] = [];

  private constructor(options: { readonly revision: number; readonly intervalMs: number }) {
    this.#options = options;
    // Not TMPDIR: paths of sockets are short.
    this.#folder = mkdtempSync(join("/tmp", "op-"));
    this.env = {
      OPENSHELL_DIST: relinkedBuild(buildFolder(), this.#folder),
      OPENSHELL_TEST_HOST_SOCKET: join(this.#folder, "host.sock"),
    };
    const lane = grpcLane({
      readMaxBytes: MESSAGE_BYTES,
      contextValues: (stream) => createContextValues().set(CONNECTION, this.#connections.get(stream.session as never)),
      routes: (router) => {
        router.service(SupervisorGateway, {
          connectHost: (up, context) => {
            const { clients, options: call } = opened(context);
            return this.#learn(clients.supervisor.connectHost(this.#older(up), call));
          },
          connectSupervisor: (up, context) => {
            const { clients, options: call } = opened(context);
            const attachments = this.#attachments;
            const { looks, problems } = this;
            const session = new PollingSession({ ...this.#options, clients, attachments, looks, problems });
            return session.run(up, call);
          },
          relay: (up, context) => {
            const { clients, options: call } = opened(context);
            return clients.supervisor.relay(up, call);
          },
        });
      },
    });
    this.#server = createServer();
    this.#server.on("stream", (stream, headers) => void lane.handle(stream as ServerHttp2Stream, headers));
    this.#server.on("session", (session) => this.#open(session));
  }

  /** @param options `intervalMs`: between two looks. */
  static async start(options: { readonly revision: number; readonly intervalMs: number }): Promise<PollingHosts> {
    const hosts = new PollingHosts(options);
    await new Promise<void>((resolve, reject) => {
      hosts.#server.once("error", reject);
      hosts.#server.listen(hosts.env["OPENSHELL_TEST_HOST_SOCKET"], resolve);
    });
    return hosts;
  }

  /** Names the gateway that they belong to. */
  serve(hostSocket: string): void {
    this.#hostSocket = hostSocket;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const session of this.#connections.keys()) session.destroy();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #open(session: ServerHttp2Session): void {
    const dial = () => {
      const socket = connect(this.#hostSocket);
      socket.on("close", () => session.destroy());
      return socket;
    };
    const transport = createLaneTransport({ dial, readMaxBytes: MESSAGE_BYTES });
    const clients = { supervisor: createClient(SupervisorGateway, transport), api: createClient(OpenShell, transport) };
    this.#connections.set(session, { clients, transport });
    session.on("error", () => {});
    session.on("close", () => {
      this.#connections.delete(session);
      void transport[Symbol.asyncDispose]();
    });
  }

  async *#older(messages: AsyncIterable<HostUplink>): AsyncGenerator<HostUplink> {
    for await (const message of messages) {
      if (message.message.case === "hello") message.message.value.protocolRevision = this.#options.revision;
      yield message;
    }
  }

  /** Keeps what a sandbox is called and the token that speaks for it. */
  async *#learn(messages: AsyncIterable<HostDownlink>): AsyncGenerator<HostDownlink> {
    for await (const message of messages) {
      const { message: content } = message;
      if (content.case === "attach") {
        const { sandboxId, sandboxName, workspace, token } = content.value;
        this.#attachments.set(sandboxId, { sandboxName, workspace, token: token?.token ?? "" });
      } else if (content.case === "token") {
        const { sandboxId, token } = content.value;
        const known = this.#attachments.get(sandboxId);
        if (known !== undefined) this.#attachments.set(sandboxId, { ...known, token });
      }
      yield message;
    }
  }
}

function opened(context: HandlerContext) {
  const connection = context.values.get(CONNECTION);
  if (connection === undefined) throw new Error("the connection has ended");
  const headers = new Headers();
  context.requestHeader.forEach((value, name) => {
    if (name.startsWith("openshell-")) headers.set(name, value);
  });
  return { clients: connection.clients, options: { headers, signal: context.signal } };
}

/** The build, in a folder below `parent`, with a host that dials `$OPENSHELL_TEST_HOST_SOCKET`; everything else is linked. */
function relinkedBuild(build: string, parent: string): string {
  const folder = join(parent, basename(build));
  mkdirSync(folder, { mode: 0o755 });
  for (const name of readdirSync(build)) if (name !== "host.mjs") symlinkSync(join(build, name), join(folder, name));
  copyFileSync(join(import.meta.dirname, "../../faults/programs/link.mjs"), join(folder, "link.mjs"));
  const real = pathToFileURL(join(build, "host.mjs")).href;
  const lines = [`import { relinkGateway } from "./link.mjs";`, "relinkGateway();", `await import("${real}");`];
  writeFileSync(join(folder, "host.mjs"), `${lines.join("\n")}\n`);
  return folder;
}
