import type { Interceptor } from "@connectrpc/connect";
import { Code, ConnectError } from "@connectrpc/connect";
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import { type DeliverySource, registerDeliveryMetrics } from "./delivery-metrics.ts";
import { answer, type PlainRoute, pathOf } from "./dispatcher.ts";

/** What is measured beside the calls. */
export interface MetricSources {
  /** Number of sandboxes by phase name. */
  readonly sandboxes: () => Promise<ReadonlyMap<string, number>>;
  readonly hosts: () => number;
  readonly storeHealthy: () => Promise<boolean>;
  readonly delivery: () => DeliverySource;
}

/** Metric names; those of the public 0.1 gateway keep their meaning, ours begin with `openshell_gateway_`. */
export const MetricName = {
  requests: "openshell_server_grpc_requests_total",
  duration: "openshell_server_grpc_request_duration_seconds",
  storeHealthy: "openshell_server_readiness_database_healthy",
  sandboxes: "openshell_gateway_sandboxes",
  hosts: "openshell_gateway_hosts",
} as const;

/** Seconds. From a read of the store to a call that waits for a sandbox. */
const BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];

/** Prometheus metrics of one gateway. Made only when an address for them is configured: nothing is counted otherwise. */
export interface Metrics {
  /** Counts calls by method and status code; streams count when they end. */
  readonly interceptor: Interceptor;
  /** `GET /metrics`. */
  readonly route: PlainRoute;
}

export function createMetrics(sources: MetricSources): Metrics {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
  const labelNames = ["method", "code"] as const;
  const requests = new Counter({ name: MetricName.requests, help: "Calls that ended", labelNames, registers });
  const duration = new Histogram({
    name: MetricName.duration,
    help: "Time from the start to the end of a call",
    labelNames,
    buckets: BUCKETS,
    registers,
  });
  new Gauge({
    name: MetricName.storeHealthy,
    help: "1 when the store answers a read",
    registers,
    async collect() {
      this.set((await sources.storeHealthy()) ? 1 : 0);
    },
  });
  new Gauge({
    name: MetricName.hosts,
    help: "Supervisor hosts that run",
    registers,
    collect() {
      this.set(sources.hosts());
    },
  });
  new Gauge({
    name: MetricName.sandboxes,
    help: "Sandboxes by phase",
    labelNames: ["phase"],
    registers,
    async collect() {
      const counts = await sources.sandboxes().catch(() => new Map<string, number>());
      this.reset();
      for (const [phase, count] of counts) this.set({ phase }, count);
    },
  });

  registerDeliveryMetrics(registry, sources.delivery);

  const ended = (method: string, startedAt: number, error: unknown): void => {
    const code = error === undefined ? "OK" : codeName(ConnectError.from(error).code);
    requests.inc({ method, code });
    duration.observe({ method, code }, (performance.now() - startedAt) / 1000);
  };
  return {
    interceptor: (next) => async (request) => {
      const method = request.method.name;
      const startedAt = performance.now();
      try {
        const response = await next(request);
        if (!response.stream) {
          ended(method, startedAt, undefined);
          return response;
        }
        return { ...response, message: counted(response.message, (error) => ended(method, startedAt, error)) };
      } catch (error) {
        ended(method, startedAt, error);
        throw error;
      }
    },
    route: (request, response) => {
      if (pathOf(request) !== "/metrics") return false;
      void registry.metrics().then(
        (text) => answer(response, 200, text, registry.contentType),
        () => answer(response, 500, "metrics cannot be collected\n"),
      );
      return true;
    },
  };
}

async function* counted<T>(messages: AsyncIterable<T>, ended: (error: unknown) => void): AsyncGenerator<T> {
  let failure: unknown = new ConnectError("the caller left", Code.Canceled);
  try {
    yield* messages;
    failure = undefined;
  } catch (error) {
    failure = error;
    throw error;
  } finally {
    ended(failure);
  }
}

/** gRPC's spelling: `Code.NotFound` is NOT_FOUND. */
function codeName(code: Code): string {
  return Code[code].replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase();
}
