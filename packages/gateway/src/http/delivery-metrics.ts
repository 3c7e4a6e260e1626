import { Counter, Gauge, type Registry } from "prom-client";
import type { DeliveryScheduler } from "../delivery/scheduler.ts";
import { WAIT_BUCKETS, type WaitHistogram } from "../delivery/stats.ts";

/** What is shown of the delivery of configurations. */
export type DeliverySource = Pick<DeliveryScheduler, "stats" | "counts">;

/** Metric names; those of the public 0.1 gateway keep their meaning. */
export const DeliveryMetricName = {
  results: "openshell_supervisor_config_apply_results_total",
  bootstraps: "openshell_supervisor_config_bootstraps_total",
  mismatches: "openshell_supervisor_config_bootstrap_revision_mismatches_total",
  polling: "openshell_server_supervisor_legacy_protocol_sessions_total",
  queueWait: "openshell_supervisor_config_queue_wait_seconds",
  dirty: "openshell_supervisor_config_dirty_sessions",
  waiting: "openshell_supervisor_config_waiting_sessions",
  sessions: "openshell_server_supervisor_sessions",
} as const;

/** Metrics of delivery: the numbers are kept by the scheduler and read when somebody asks. */
export function registerDeliveryMetrics(registry: Registry, source: () => DeliverySource): void {
  const registers = [registry];
  new Counter({
    name: DeliveryMetricName.results,
    help: "Outcomes of updates of a configuration, as they were stored",
    labelNames: ["component", "outcome"],
    registers,
    collect() {
      this.reset();
      for (const [component, outcomes] of source().stats.results) {
        for (const [outcome, count] of outcomes) this.inc({ component, outcome }, count);
      }
    },
  });
  new Counter({
    name: DeliveryMetricName.bootstraps,
    help: "Ends of first configurations of sessions",
    labelNames: ["outcome"],
    registers,
    collect() {
      this.reset();
      for (const [outcome, count] of source().stats.bootstraps) this.inc({ outcome }, count);
    },
  });
  new Counter({
    name: DeliveryMetricName.mismatches,
    help: "First configurations that were answered at another revision than was sent",
    registers,
    collect() {
      this.reset();
      this.inc(source().stats.revisionMismatches);
    },
  });
  new Counter({
    name: DeliveryMetricName.polling,
    help: "Sessions of supervisors of an older protocol, which poll",
    labelNames: ["revision"],
    registers,
    collect() {
      this.reset();
      for (const [revision, count] of source().stats.pollingSessions) this.inc({ revision }, count);
    },
  });
  const gauges = {
    sessions: "connected",
    dirty: "that something is to be sent to",
    waiting: "whose answer is awaited",
  };
  const kinds = Object.keys(gauges) as (keyof typeof gauges)[];
  // Counting looks at every session: once for all of them, by the one that is asked first.
  const made = kinds.map(
    (kind, index) =>
      new Gauge({
        name: DeliveryMetricName[kind],
        help: `Supervisor sessions ${gauges[kind]}`,
        registers,
        ...(index === 0 ? { collect: () => count() } : {}),
      }),
  );
  const count = (): void => {
    const counts = source().counts();
    for (const [index, kind] of kinds.entries()) made[index]!.set(counts[kind]);
  };
  registry.registerMetric(new QueueWait(source) as never);
}

/** A histogram that is counted elsewhere, as prom-client shows metrics. */
class QueueWait {
  readonly name = DeliveryMetricName.queueWait;
  readonly help = "Time that a session waits for its turn";
  readonly type = "histogram";
  readonly aggregator = "sum";
  readonly #source: () => DeliverySource;

  constructor(source: () => DeliverySource) {
    this.#source = source;
  }

  async get() {
    const { name, help, type, aggregator } = this;
    const values = Object.entries(this.#source().stats.waits).flatMap(([lane, waits]) => series(name, lane, waits));
    return { name, help, type, aggregator, values };
  }

  reset(): void {}
}

function series(name: string, lane: string, { counts, sum }: WaitHistogram) {
  let total = 0;
  const buckets = counts.map((count, index) => {
    total += count;
    const le = WAIT_BUCKETS[index] ?? "+Inf";
    return { value: total, labels: { lane, le }, metricName: `${name}_bucket` };
  });
  return [
    ...buckets,
    { value: sum, labels: { lane }, metricName: `${name}_sum` },
    { value: total, labels: { lane }, metricName: `${name}_count` },
  ];
}
