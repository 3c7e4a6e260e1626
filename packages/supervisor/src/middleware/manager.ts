import type { SandboxConfig } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, RuntimeError } from "@openshell/base";
import type { ConfigurationProblem } from "../config/compile.ts";
import type { MiddlewareConnection } from "./connection.ts";
import { MiddlewareLimit } from "./limits.ts";
import { type MiddlewareRegistry, NO_MIDDLEWARE, namedServices, problemOf, sameRegistry } from "./registry.ts";
import { type Service, serviceOf } from "./service.ts";

export interface ManagerDeps {
  readonly clock: Clock;
  /** @throws RuntimeError when the service cannot be used. */
  readonly connect: (service: Service, signal: AbortSignal) => Promise<MiddlewareConnection>;
}

/** What came of asking for the services of a configuration. */
export interface PreparedRegistry {
  readonly registry: MiddlewareRegistry;
  /** Set when the registry is not whole. */
  readonly problem: ConfigurationProblem | undefined;
}

/** The part of a configuration that names services, and that which registers them. */
export type MiddlewareDelivery = Pick<SandboxConfig, "middleware" | "policy">;

/**
 * The middleware services of one sandbox. For each configuration it makes the registry that belongs to it: connections
 * whose registration stayed the same are kept, others are opened; a service that cannot be reached as it is registered
 * now keeps its former connection. Nothing is closed before the registry that lacks it is in force.
 */
export class MiddlewareManager implements AsyncDisposable {
  readonly #deps: ManagerDeps;
  readonly #stop = new AbortController();
  /** Settings that a service accepted, over the connection on which it did. */
  readonly #accepted = new WeakMap<MiddlewareConnection, Set<string>>();
  readonly #open = new Set<MiddlewareConnection>();
  #current: MiddlewareRegistry = NO_MIDDLEWARE;
  #prepared: MiddlewareRegistry = NO_MIDDLEWARE;
  #recovering: AbortController | undefined;
  /** One registry is made at a time. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(deps: ManagerDeps) {
    this.#deps = deps;
  }

  /** The registry in force. */
  get current(): MiddlewareRegistry {
    return this.#current;
  }

  /** Ends within {@link MiddlewareLimit.prepareMs}, and never rejects. Equal registries are the same object. */
  async prepare(config: MiddlewareDelivery): Promise<PreparedRegistry> {
    this.#recovering?.abort();
    const { signal } = this.#stop;
    // Most configurations name no service, and the limit would outlive each by seconds.
    const limited =
      namedServices(config.policy).size > 0
        ? AbortSignal.any([signal, AbortSignal.timeout(MiddlewareLimit.prepareMs)])
        : signal;
    const registry = await this.#prepare(config, limited);
    return { registry, problem: problemOf(registry) };
  }

  /** `registry` is in force: what it does not hold is closed. */
  async commit(registry: MiddlewareRegistry): Promise<void> {
    this.#current = registry;
    this.#prepared = registry;
    await this.#closeUnused();
  }

  /**
   * Resolves when everything that a refused first configuration needs can be reached; later attempts find the connections
   * open. Pending for ever when another configuration comes first.
   */
  async recovered(config: MiddlewareDelivery): Promise<void> {
    const own = new AbortController();
    this.#recovering?.abort();
    this.#recovering = own;
    const signal = AbortSignal.any([this.#stop.signal, own.signal]);
    for (
      let wait: number = MiddlewareLimit.retryMinimumMs;
      ;
      wait = Math.min(wait * 2, MiddlewareLimit.retryMaximumMs)
    ) {
      await this.#deps.clock.sleep(wait, { signal, unref: true }).catch(() => {});
      if (!signal.aborted) {
        const limit = AbortSignal.timeout(MiddlewareLimit.prepareMs);
        const registry = await this.#prepare(config, AbortSignal.any([signal, limit]));
        if (!signal.aborted && registry.missing.size === 0) return;
      }
      if (signal.aborted) return await new Promise<never>(() => {});
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    const open = [...this.#open];
    this.#open.clear();
    await closeAll(open);
  }

  #prepare(config: MiddlewareDelivery, signal: AbortSignal): Promise<MiddlewareRegistry> {
    const made = this.#turn.then(() => this.#make(config, signal));
    // What became of one is no business of the next.
    this.#turn = made.catch(() => {});
    return made;
  }

  async #make(config: MiddlewareDelivery, signal: AbortSignal): Promise<MiddlewareRegistry> {
    const registered = new Map(config.middleware.map((message) => [message.name, message]));
    const named = [...namedServices(config.policy)];
    if (named.length === 0) return NO_MIDDLEWARE;
    const known = new Map([...this.#current.services, ...this.#prepared.services]);
    const services = new Map<string, MiddlewareConnection>();
    const missing = new Map<string, ConfigurationProblem>();
    await Promise.all(
      named.map(async ([name, configs]) => {
        const former = this.#current.services.get(name);
        try {
          const message = registered.get(name);
          const service = message === undefined ? undefined : serviceOf(message);
          if (service === undefined) throw unregistered(name);
          const kept = [former, known.get(name)].find((one) => one?.service.key === service.key);
          const connection = kept ?? (await this.#connect(service, signal));
          await this.#validate(connection, configs, signal);
          services.set(name, connection);
        } catch (error) {
          missing.set(name, problem(name, error));
          // What worked before goes on working, unless nobody registers it any more or it refuses what it is to do.
          const fallback = error instanceof RuntimeError && error.code !== "middleware_unregistered";
          if (former !== undefined && fallback && error.code !== "middleware_config_refused")
            services.set(name, former);
        }
      }),
    );
    const found = Object.freeze({ services: sorted(services), missing: sorted(missing) });
    const same = [this.#current, this.#prepared].find((one) => sameRegistry(one, found));
    this.#prepared = same ?? found;
    await this.#closeUnused();
    return this.#prepared;
  }

  async #connect(service: Service, signal: AbortSignal): Promise<MiddlewareConnection> {
    const connection = await this.#deps.connect(service, signal);
    if (this.#stop.signal.aborted) {
      await connection[Symbol.asyncDispose]();
      throw new RuntimeError("connection_closed", "the sandbox is going away");
    }
    this.#open.add(connection);
    return connection;
  }

  /** Each different settings once a connection. */
  async #validate(connection: MiddlewareConnection, configs: readonly object[], signal: AbortSignal): Promise<void> {
    const accepted = this.#accepted.get(connection) ?? new Set();
    this.#accepted.set(connection, accepted);
    const texts = new Map(configs.map((config) => [JSON.stringify(config), config]));
    for (const [text, config] of texts) {
      if (accepted.has(text)) continue;
      await connection.validate(config, signal);
      accepted.add(text);
    }
    // Only what the policy still says is remembered.
    for (const text of accepted) if (!texts.has(text)) accepted.delete(text);
  }

  async #closeUnused(): Promise<void> {
    const used = new Set([...this.#current.services.values(), ...this.#prepared.services.values()]);
    const unused = [...this.#open].filter((connection) => !used.has(connection));
    for (const connection of unused) this.#open.delete(connection);
    await closeAll(unused);
  }
}

/** Whoever needs a registry does not care how the connections of another one ended. */
async function closeAll(connections: readonly MiddlewareConnection[]): Promise<void> {
  await Promise.allSettled(connections.map((connection) => connection[Symbol.asyncDispose]()));
}

function unregistered(name: string): RuntimeError {
  return new RuntimeError("middleware_unregistered", `the policy names middleware '${name}', which is not registered`, {
    next: "Register it in [[openshell.supervisor.middleware]] of gateway.toml, or remove it from the policy",
  });
}

function problem(name: string, error: unknown): ConfigurationProblem {
  if (error instanceof RuntimeError)
    return { code: error.code as ConfigurationProblem["code"], message: error.message, next: error.next };
  return { code: "middleware_unreachable", message: `middleware '${name}' cannot be used`, next: "" };
}

function sorted<T>(map: ReadonlyMap<string, T>): ReadonlyMap<string, T> {
  return new Map([...map].sort(([a], [b]) => (a < b ? -1 : 1)));
}
