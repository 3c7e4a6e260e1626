import { ServiceStatus } from "@openshell/api";
import type { Clock } from "@openshell/base";

/** Anybody may ask for the status, as often as they like: a good one holds for this long. Milliseconds. */
export const STATUS_FRESH_MS = 50;

/**
 * Whether the gateway can work: whether its store can. A bad status is looked at again each time.
 *
 * @param check rejects when the store is not usable.
 */
export function serviceStatus(
  check: () => Promise<unknown>,
  clock: Pick<Clock, "monotonic">,
): () => Promise<ServiceStatus> {
  let healthyUntil = Number.NEGATIVE_INFINITY;
  return async () => {
    const now = clock.monotonic();
    if (now < healthyUntil) return ServiceStatus.HEALTHY;
    try {
      await check();
      healthyUntil = now + STATUS_FRESH_MS;
      return ServiceStatus.HEALTHY;
    } catch {
      healthyUntil = Number.NEGATIVE_INFINITY;
      return ServiceStatus.UNHEALTHY;
    }
  };
}
