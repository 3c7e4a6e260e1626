import { createServer, type Http2Server, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import { connect } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import {
  type Client,
  createClient,
  createContextKey,
  createContextValues,
  type HandlerContext,
} from "@connectrpc/connect";
import { FilesystemPolicySchema } from "@openshell/api";
import { SupervisorGateway } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { createLaneTransport, grpcLane, type LaneTransport } from "@openshell/rpc";
import { REFUSED_HOST } from "./origin.ts";
import { hostStep, supervisorStep } from "./steps.ts";

/** SessionAccepted, as the host reads it. Bytes. */
const MESSAGE_BYTES = 8 * 1024 * 1024;
/** The last messages of a gateway that ends reach the host before its connection ends. Milliseconds. */
const LAST_MS = 30;

/** What is done to one message, and to the parts beside it. */
export type Action = "drop" | "delay" | "duplicate" | "reorder" | "cut" | "spoil" | "kill-gateway" | "kill-host";

export interface ProxyStrike {
  readonly step: string;
  readonly action: Action;
  /** Of a cut or kill: whether the message still passes. */
  readonly after: boolean;
  /** How long a message is kept, and how long a stream with a gap goes on until its connection ends. Milliseconds. */
  readonly holdMs: number;
  /** Whose messages; any sandbox's where the step is the host's. */
  readonly sandbox: string;
  /** The message was there. */
  struck: boolean;
}

export interface ProxyHooks {
  /** Something was done, or its end has come: limits of time count from here. */
  readonly disturb: () => void;
  readonly note: (text: string) => void;
  /** `host`: process id of the host whose message it is. */
  readonly kill: (part: "gateway" | "host", host: number) => void;
}

type Message = Parameters<typeof supervisorStep>[0] | Parameters<typeof hostStep>[0];
interface Connection {
  readonly session: ServerHttp2Session;
  readonly client: Client<typeof SupervisorGateway>;
  /** Of the host, as its hello says; 0 before. */
  pid: number;
}
const CONNECTION = createContextKey<Connection | undefined>(undefined);

/**
 * Stands between hosts and their gateway: takes their connections, opens one to the gateway for each, and passes the
 * messages of their streams on in order, except for those that an armed strike is about. A connection that ends on one
 * side ends on the other.
 */
export class HostProxy implements AsyncDisposable {
  readonly #target: string;
  readonly #hooks: ProxyHooks;
  readonly #server: Http2Server;
  readonly #connections = new Map<ServerHttp2Session, Connection>();
  readonly #armed = new Set<ProxyStrike>();
  /** Names of sandboxes by id, as the gateway gave them to hosts. */
  readonly #names = new Map<string, string>();
  /** Messages by step. */
  readonly passed = new Map<string, number>();
  #closed = false;

  constructor(target: string, hooks: ProxyHooks) {
    this.#target = target;
    this.#hooks = hooks;
    const lane = grpcLane({
      readMaxBytes: MESSAGE_BYTES,
      contextValues: (stream) => createContextValues().set(CONNECTION, this.#connections.get(stream.session as never)),
      routes: (router) => {
        router.service(SupervisorGateway, {
          connectHost: (up, context) => {
            const { connection, options } = opened(context);
            const step = (message: Message) => hostStep(message as never);
            const known = identified(up, connection);
            const down = connection.client.connectHost(this.#pass(known, step, connection), options);
            return this.#pass(this.#learn(down), step, connection);
          },
          connectSupervisor: (up, context) => {
            const { connection, options } = opened(context);
            const step = (message: Message) => supervisorStep(message as never);
            const whose = { sandbox: "" };
            const known = this.#whose(up, whose);
            const down = connection.client.connectSupervisor(this.#pass(known, step, connection, whose), options);
            return this.#pass(down, step, connection, whose);
          },
          relay: (up, context) => {
            const { connection, options } = opened(context);
            return connection.client.relay(up, options);
          },
        });
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

  arm(strike: ProxyStrike): void {
    this.#armed.add(strike);
  }

  disarm(strike: ProxyStrike): void {
    this.#armed.delete(strike);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    for (const session of this.#connections.keys()) session.destroy();
    if (this.#server.listening) await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }

  #open(session: ServerHttp2Session): void {
    const dial = () => {
      const socket = connect(this.#target);
      socket.on("close", () => setTimeout(() => session.destroy(), LAST_MS));
      return socket;
    };
    const transport: LaneTransport = createLaneTransport({ dial, readMaxBytes: MESSAGE_BYTES });
    this.#connections.set(session, { session, client: createClient(SupervisorGateway, transport), pid: 0 });
    session.on("error", () => {});
    session.on("close", () => {
      this.#connections.delete(session);
      void transport[Symbol.asyncDispose]();
    });
  }

  async *#learn<T extends Message>(messages: AsyncIterable<T>): AsyncGenerator<T> {
    for await (const message of messages) {
      const { message: content } = message;
      if (content.case === "attach") this.#names.set(content.value.sandboxId, content.value.sandboxName);
      yield message;
    }
  }

  async *#whose<T extends Message>(messages: AsyncIterable<T>, whose: { sandbox: string }): AsyncGenerator<T> {
    for await (const message of messages) {
      const { message: content } = message;
      if (content.case === "hello" && "sandboxId" in content.value)
        whose.sandbox = this.#names.get(content.value.sandboxId) ?? "";
      yield message;
    }
  }

  /** One direction of one stream. */
  async *#pass<T extends Message>(
    messages: AsyncIterable<T>,
    stepOf: (message: T) => string,
    connection: Connection,
    whose?: { readonly sandbox: string },
  ): AsyncGenerator<T> {
    const source = messages[Symbol.asyncIterator]();
    let pending: Promise<IteratorResult<T>> | undefined;
    const take = (): Promise<IteratorResult<T>> => {
      const next = pending ?? source.next();
      pending = undefined;
      return next;
    };
    try {
      for (;;) {
        const { done, value: message } = await take();
        if (done) return;
        const step = stepOf(message);
        this.passed.set(step, (this.passed.get(step) ?? 0) + 1);
        const strike = this.#strike(step, message, whose);
        if (strike === undefined) {
          yield message;
          continue;
        }
        const { action, holdMs } = strike;
        switch (action) {
          case "drop":
            // A stream loses nothing while its connection lives: what is lost ends with it.
            setTimeout(() => this.#cut(connection, `the gap after ${step}`), holdMs);
            break;
          case "delay":
            await sleep(holdMs);
            this.#hooks.disturb();
            yield message;
            break;
          case "duplicate":
            yield message;
            yield message;
            break;
          case "reorder": {
            pending = source.next();
            pending.catch(() => {});
            const first = await Promise.race([pending, sleep(holdMs, undefined)]);
            this.#hooks.disturb();
            if (first !== undefined && !first.done) {
              pending = undefined;
              this.#hooks.note(`  ${stepOf(first.value)} passed before ${step}`);
              yield first.value;
            }
            yield message;
            break;
          }
          case "spoil":
            spoil(message);
            yield message;
            break;
          case "cut":
            if (strike.after) yield message;
            await sleep(strike.after ? holdMs % LAST_MS : 0);
            this.#cut(connection, step);
            break;
          default: {
            const kill = (): void => {
              this.#hooks.kill(action === "kill-gateway" ? "gateway" : "host", connection.pid);
              this.#hooks.disturb();
            };
            if (!strike.after) kill();
            else setTimeout(kill, holdMs % LAST_MS);
            yield message;
          }
        }
      }
    } finally {
      await source.return?.();
    }
  }

  #cut({ session }: Connection, why: string): void {
    if (this.#closed || session.destroyed) return;
    this.#hooks.note(`connection cut: ${why}`);
    session.destroy();
    this.#hooks.disturb();
  }

  /** The strike that is about this message, which is struck by it. */
  #strike(step: string, message: Message, whose: { readonly sandbox: string } | undefined): ProxyStrike | undefined {
    const { value } = message.message;
    const id = value !== undefined && "sandboxId" in value ? value.sandboxId : undefined;
    const sandbox = whose?.sandbox ?? (id === undefined ? undefined : this.#names.get(id));
    for (const strike of this.#armed) {
      if (strike.step !== step || (sandbox !== undefined && strike.sandbox !== sandbox)) continue;
      this.#armed.delete(strike);
      strike.struck = true;
      const how =
        strike.action === "cut" || strike.action.startsWith("kill") ? (strike.after ? " after" : " before") : "";
      this.#hooks.note(`${strike.action}${how} ${step} of ${sandbox ?? "a host"} (${strike.holdMs} ms)`);
      this.#hooks.disturb();
      return strike;
    }
    return undefined;
  }
}

/** Keeps the host's process id. */
async function* identified<T extends Message>(messages: AsyncIterable<T>, connection: Connection): AsyncGenerator<T> {
  for await (const message of messages) {
    const { message: content } = message;
    if (content.case === "hello" && "pid" in content.value) connection.pid = content.value.pid;
    yield message;
  }
}

/** Makes a component one that its receiver must refuse, and that would open what nobody may reach. */
function spoil({ message }: Message): void {
  if (message.case !== "update") return;
  const { component } = message.value;
  if (component.case === "providerEnvironment") for (const one of component.value.values) one.name = "not a name";
  if (component.case !== "sandboxConfig") return;
  const policy = component.value.policy!;
  policy.filesystem = create(FilesystemPolicySchema, { readWrite: ["/"] });
  for (const { endpoints } of Object.values(policy.networkPolicies)) {
    for (const endpoint of endpoints) {
      endpoint.host = REFUSED_HOST;
      for (const { allow } of endpoint.rules) if (allow !== undefined) allow.path = "/**";
    }
  }
}

function opened(context: HandlerContext): {
  readonly connection: Connection;
  readonly options: { readonly headers: Headers; readonly signal: AbortSignal };
} {
  const connection = context.values.get(CONNECTION);
  if (connection === undefined) throw new Error("the connection has ended");
  const headers = new Headers();
  context.requestHeader.forEach((value, name) => {
    if (name.startsWith("openshell-")) headers.set(name, value);
  });
  return { connection, options: { headers, signal: context.signal } };
}
