import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import {
  type MiddlewareService,
  MiddlewareServiceSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { RuntimeError, systemClock } from "@openshell/base";
import type { MiddlewareConnection } from "../connection.ts";
import { MiddlewareManager } from "../manager.ts";
import type { Service } from "../service.ts";

/** A connection of a test: knows whether it was closed, and which settings it was asked about. */
export interface TestConnection {
  readonly service: Service;
  closed: boolean;
  readonly asked: object[];
}

/** Registered services of a test, without a network: those in `up` can be reached. */
export class Services {
  /** Endpoints that answer. */
  readonly up = new Set<string>();
  /** Settings that every service refuses. */
  refused: object | undefined;
  /** Connections do not end in order. */
  brokenEnd = false;
  readonly connections: TestConnection[] = [];
  readonly manager = new MiddlewareManager({
    clock: { ...systemClock, sleep: (ms, options) => systemClock.sleep(Math.min(ms, 1), options) },
    connect: async (service) => this.#connect(service),
  });

  /** Open connections, as `name@port`. */
  get open(): string[] {
    const open = this.connections.filter(({ closed }) => !closed);
    return open.map(({ service }) => `${service.name}@${service.endpoint.port}`).sort();
  }

  #connect(service: Service): MiddlewareConnection {
    if (!this.up.has(`${service.name}@${service.endpoint.port}`))
      throw new RuntimeError("middleware_unreachable", `middleware '${service.name}' is away`);
    const connection: TestConnection & Pick<MiddlewareConnection, "validate"> & AsyncDisposable = {
      service,
      closed: false,
      asked: [],
      validate: async (config) => {
        connection.asked.push(config);
        if (JSON.stringify(config) !== JSON.stringify(this.refused)) return;
        throw new RuntimeError("middleware_config_refused", `middleware '${service.name}' refuses its config`);
      },
      [Symbol.asyncDispose]: async () => {
        connection.closed = true;
        if (this.brokenEnd) throw new Error("the connection did not end in order");
      },
    };
    this.connections.push(connection);
    return connection as never;
  }
}

/** A registration as the gateway delivers it. */
export function registered(name: string, port = 1): MiddlewareService {
  return create(MiddlewareServiceSchema, {
    name,
    endpoint: `http://127.0.0.1:${port}`,
    allowInsecureTransport: true,
    maxPayloadBytes: 1_024,
    timeout: durationFromMs(500),
    audience: `urn:openshell:extension:middleware:${name}`,
  });
}
