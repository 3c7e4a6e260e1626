import { ConfigApplyOutcome } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { Registry } from "prom-client";
import { expect, it } from "vitest";
import { DeliveryStats } from "../delivery/stats.ts";
import { registerDeliveryMetrics } from "./delivery-metrics.ts";

it("shows outcomes, bootstraps, waits and sessions, from the start and as they are at each look", async () => {
  const registry = new Registry();
  const stats = new DeliveryStats();
  const counts = () => ({ sessions: 3, dirty: 2, waiting: 1 });
  registerDeliveryMetrics(registry, () => ({ stats, counts }));
  expect(await registry.metrics()).toContain("openshell_server_supervisor_sessions 3\n");
  stats.answered("config", ConfigApplyOutcome.APPLIED);
  stats.answered("config", ConfigApplyOutcome.APPLIED);
  stats.answered("environment", ConfigApplyOutcome.FAILED_CLOSED);
  stats.answered("config", ConfigApplyOutcome.UNSPECIFIED);
  stats.bootstrapped("applied");
  stats.bootstrapped("mismatch");
  stats.polling(1);
  stats.waited("sandbox", 0.004);
  stats.waited("sandbox", 60);
  for (const _look of [1, 2]) {
    const text = await registry.metrics();
    for (const line of [
      'openshell_supervisor_config_apply_results_total{component="config",outcome="applied"} 2',
      'openshell_supervisor_config_apply_results_total{component="environment",outcome="failed_closed"} 1',
      'openshell_supervisor_config_apply_results_total{component="config",outcome="not_sent"} 1',
      'openshell_supervisor_config_bootstraps_total{outcome="applied"} 1',
      "openshell_supervisor_config_bootstrap_revision_mismatches_total 1",
      'openshell_supervisor_config_queue_wait_seconds_bucket{lane="sandbox",le="0.001"} 0',
      'openshell_supervisor_config_queue_wait_seconds_bucket{lane="sandbox",le="0.005"} 1',
      'openshell_supervisor_config_queue_wait_seconds_bucket{lane="sandbox",le="+Inf"} 2',
      'openshell_supervisor_config_queue_wait_seconds_count{lane="sandbox"} 2',
      'openshell_supervisor_config_queue_wait_seconds_count{lane="fanout"} 0',
      'openshell_server_supervisor_legacy_protocol_sessions_total{revision="1"} 1',
      "openshell_supervisor_config_dirty_sessions 2",
      "openshell_supervisor_config_waiting_sessions 1",
    ])
      expect(text).toContain(`${line}\n`);
  }
});
