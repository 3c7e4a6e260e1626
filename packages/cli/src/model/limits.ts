import type { Context } from "../context.ts";
import { object } from "./sandbox.ts";

/** Options for limits, named as the resource capabilities of a driver. */
const LIMITS = ["cpu", "memory"] as const;

/**
 * Says before the start that a limit which was asked for will not hold: the driver reports what it can limit here. Only
 * administrators may ask; others find it in the isolation report (`openshell sandbox get`).
 */
export async function warnOfLimits(context: Context): Promise<void> {
  const asked = LIMITS.filter((name) => context.args.has(name));
  if (asked.length === 0) return;
  const info = await context.call("GetGatewayInfo", {}).catch(() => undefined);
  const driver = object((info?.["computeDrivers"] as readonly unknown[] | undefined)?.[0]);
  const capabilities = object(object(driver["capabilities"])["resourceCapabilities"]);
  const missing = asked.filter(
    (name) => capabilities[name] !== undefined && object(capabilities[name])["limitSupported"] !== true,
  );
  if (missing.length === 0) return;
  const options = missing.map((name) => `--${name}`).join(" and ");
  await context.warn(
    `${options} will not hold: this gateway cannot limit it here (an ordinary user needs a delegated control group)`,
  );
}
