import type { Origin } from "./origin.ts";
import { median } from "./statistics.ts";

/** Direct HTTPS requests a second of 16 clients, keep-alive, on the machine that the budgets are for (docs/performance.md). */
const DIRECT_PER_SECOND = 19_000;
const ROUNDS = 3;

/**
 * How many times slower this machine is at this moment than that of the budgets, by work that none of our code takes part in; never
 * below 1. For times that have no such work of their own to stand beside.
 */
export async function slower(origin: Origin): Promise<number> {
  const rates: number[] = [];
  for (let round = 0; round < ROUNDS; round += 1)
    rates.push((await origin.direct({ kind: "keepalive", clients: 16 })).perSecond);
  return Math.max(1, DIRECT_PER_SECOND / median(rates));
}
