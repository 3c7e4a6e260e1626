import type { History, Machine, Result } from "../support/report.ts";

/** Runs for the tests of the page. */

const MACHINE: Machine = {
  cpu: "Some CPU",
  cores: 2,
  memoryGB: 8,
  kernel: "6.1",
  node: "v26",
  mode: "root",
  commit: "abc1234",
  load: 1,
};

export function run(number: number, results: readonly Result[], machine: Partial<Machine> = {}): History {
  const at = new Date(Date.UTC(2026, 0, 1) + number * 3_600_000).toISOString();
  return { at, seconds: 1, machine: { ...MACHINE, ...machine }, results };
}

/** A rate with a budget of 100, beside an alternative. */
export function rate(measured: number, reference = 1000, id = "exec/rate"): Result {
  return {
    id,
    what: `what ${id} is`,
    measured,
    unit: "/s",
    reference: { what: "direct", value: reference },
    budget: "≥ 100",
    limit: { atLeast: 100 },
    met: measured >= 100,
  };
}
