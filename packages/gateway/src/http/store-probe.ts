import { HttpLimits } from "./limits.ts";

/** What one look at the store found. */
export interface StoreProbeResult {
  readonly healthy: boolean;
  /** Of the read, when it was answered. Milliseconds. */
  readonly latencyMs: number | undefined;
}

/** Looks at the store now, within {@link HttpLimits.storeProbeMs}. Never rejects. */
export type StoreProbe = () => Promise<StoreProbeResult>;

/**
 * The one check behind `/readyz`, gRPC health and the metric. Anybody may ask those, so askers share the read that is
 * under way, and a store that hangs has one read waiting in it however many ask.
 *
 * @param check milliseconds of one trivial read; rejects when the store is not usable.
 */
export function storeProbe(check: () => Promise<number>, limitMs: number = HttpLimits.storeProbeMs): StoreProbe {
  let reading: Promise<StoreProbeResult> | undefined;
  const read = async (): Promise<StoreProbeResult> => {
    try {
      return { healthy: true, latencyMs: await check() };
    } catch {
      return UNHEALTHY;
    } finally {
      reading = undefined;
    }
  };
  return async () => {
    reading ??= read();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<StoreProbeResult>((resolve) => {
      timer = setTimeout(() => resolve(UNHEALTHY), limitMs);
    });
    try {
      return await Promise.race([reading, late]);
    } finally {
      clearTimeout(timer);
    }
  };
}

const UNHEALTHY: StoreProbeResult = { healthy: false, latencyMs: undefined };
