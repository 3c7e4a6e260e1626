import type { Socket } from "node:net";
import type { SecureContext } from "node:tls";
import { create, type JsonObject } from "@bufbuild/protobuf";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import {
  DescribeRequestSchema,
  SupervisorMiddleware,
  ValidateConfigRequestSchema,
} from "@openshell/api/generated/middleware_pb.js";
import { type Clock, RuntimeError } from "@openshell/base";
import { createLaneTransport, type LaneTransport } from "@openshell/rpc";
import { dialService, unreachable } from "./dial.ts";
import { MiddlewareLimit } from "./limits.ts";
import { type Binding, checkManifest } from "./manifest.ts";
import type { Service } from "./service.ts";

export interface ConnectionDeps {
  readonly clock: Clock;
  /** Trust of the machine, for services without a CA of their own. */
  readonly roots: () => SecureContext;
  /** Told when a service that answered is lost, with why, and when it is back. */
  readonly onLink?: (name: string, problem: RuntimeError | undefined) => void;
}

/** One HTTP/2 connection whose other side described itself. */
interface Link {
  readonly transport: LaneTransport;
  readonly client: Client<typeof SupervisorMiddleware>;
  readonly bindings: readonly Binding[];
  readonly lost: Promise<void>;
}

/**
 * A connection to one registered service. Kept alive by pings; when it is lost it is dialled again, with waits that grow
 * up to half a minute, and only a service that describes itself acceptably counts as connected.
 */
export class MiddlewareConnection implements AsyncDisposable {
  readonly service: Service;
  readonly #deps: ConnectionDeps;
  readonly #stop = new AbortController();
  #link: Link | undefined;
  #keeping: Promise<void> | undefined;

  private constructor(service: Service, deps: ConnectionDeps) {
    this.service = service;
    this.#deps = deps;
  }

  /** @throws RuntimeError middleware_unreachable, middleware_manifest_invalid */
  static async open(service: Service, deps: ConnectionDeps, signal: AbortSignal): Promise<MiddlewareConnection> {
    const connection = new MiddlewareConnection(service, deps);
    const link = await connection.#connect(signal);
    connection.#link = link;
    connection.#keeping = connection.#keep(link);
    return connection;
  }

  /** Whether a call could be made now. */
  get connected(): boolean {
    return this.#link !== undefined;
  }

  /** What the service takes part in; of the last time that it was connected. */
  get bindings(): readonly Binding[] {
    return this.#link?.bindings ?? [];
  }

  /**
   * Asks whether the service takes the settings of a policy's entry. A service without settings need not know the question.
   *
   * @throws RuntimeError middleware_config_refused, middleware_unreachable
   */
  async validate(config: object, signal: AbortSignal): Promise<void> {
    const { name, timeoutMs } = this.service;
    const link = this.#link;
    if (link === undefined) throw unreachable(this.service, "the connection is lost");
    const request = create(ValidateConfigRequestSchema, { middlewareName: name, config: config as JsonObject });
    let accepted: boolean;
    try {
      ({ accepted } = await link.client.validateConfig(request, { signal, timeoutMs }));
    } catch (error) {
      const unknown = ConnectError.from(error).code === Code.Unimplemented;
      if (unknown && Object.keys(config).length === 0) return;
      throw unreachable(this.service, `ValidateConfig failed (${codeName(error)})`);
    }
    if (!accepted) {
      throw new RuntimeError("middleware_config_refused", `middleware '${name}' refuses its config`, {
        next: `Correct config of the policy's entry for '${name}'; the service's log says what is wrong`,
      });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await this.#link?.transport[Symbol.asyncDispose]();
    await this.#keeping;
  }

  async #connect(signal: AbortSignal): Promise<Link> {
    const { service } = this;
    const socket = await dialService(service, this.#deps.roots, signal);
    const lost = new Promise<void>((resolve) => void socket.once("close", () => resolve()));
    const transport = createLaneTransport({
      dial: once(socket),
      origin: `${service.endpoint.secure ? "https" : "http"}://${authority(service)}`,
      keepalive: { intervalMs: MiddlewareLimit.pingIntervalMs, timeoutMs: MiddlewareLimit.pingTimeoutMs },
      readMaxBytes: MiddlewareLimit.answerBytes,
    });
    const client = createClient(SupervisorMiddleware, transport);
    try {
      const manifest = await client.describe(create(DescribeRequestSchema), { signal, timeoutMs: service.timeoutMs });
      const bindings = checkManifest(manifest, service);
      if (typeof bindings === "string") {
        throw new RuntimeError(
          "middleware_manifest_invalid",
          `middleware '${service.name}' cannot be used: ${bindings}`,
          { next: "Update the service, or correct its entry in gateway.toml" },
        );
      }
      return { transport, client, bindings, lost };
    } catch (error) {
      await transport[Symbol.asyncDispose]();
      socket.destroy();
      if (error instanceof RuntimeError) throw error;
      throw unreachable(service, `Describe failed (${codeName(error)})`);
    }
  }

  /** Dials again whenever the connection is lost. Never rejects. */
  async #keep(first: Link): Promise<void> {
    const { clock, onLink } = this.#deps;
    const { signal } = this.#stop;
    for (let link = first; !signal.aborted; ) {
      await link.lost;
      this.#link = undefined;
      await link.transport[Symbol.asyncDispose]();
      if (signal.aborted) return;
      onLink?.(this.service.name, unreachable(this.service, "the connection is lost"));
      for (
        let wait: number = MiddlewareLimit.retryMinimumMs;
        ;
        wait = Math.min(wait * 2, MiddlewareLimit.retryMaximumMs)
      ) {
        await clock.sleep(wait, { signal, unref: true }).catch(() => {});
        if (signal.aborted) return;
        const again = await this.#connect(signal).catch(() => undefined);
        if (again === undefined) continue;
        link = again;
        break;
      }
      if (signal.aborted) {
        await link.transport[Symbol.asyncDispose]();
        return;
      }
      this.#link = link;
      onLink?.(this.service.name, undefined);
    }
  }
}

/** A lane transport dials again by itself; here a lost connection means that the service has to describe itself anew. */
function once(socket: Socket): () => Socket {
  let taken = false;
  return () => {
    if (taken) throw new RuntimeError("connection_closed", "the connection to the middleware is lost");
    taken = true;
    return socket;
  };
}

function authority({ endpoint: { host, port } }: Service): string {
  return `${host.includes(":") ? `[${host}]` : host}:${port}`;
}

function codeName(error: unknown): string {
  return Code[ConnectError.from(error).code] ?? "Unknown";
}
