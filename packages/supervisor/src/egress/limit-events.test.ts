import { expect, test } from "vitest";
import { LIMIT_EVENT_MS, type LimitEvent, LimitEvents } from "./limit-events.ts";
import { DEFAULT_LIMITS } from "./limits.ts";

function open() {
  const told: LimitEvent[] = [];
  const clock = { now: 1_000 };
  const limits = new LimitEvents(
    DEFAULT_LIMITS,
    () => clock.now,
    (event) => told.push(event),
  );
  return { told, clock, limits };
}

test("a limit is told at once by its name and value, with what happens and what to do", () => {
  const { told, limits } = open();
  limits.reached("dnsQueriesPerSecond");
  limits.reached("flows");
  expect(told.map(({ limit, value, times }) => [limit, value, times])).toEqual([
    ["dns_queries_per_second", 200, 1],
    ["flows", 1024, 1],
  ]);
  for (const { effect, next } of told) expect([effect, next].every((text) => text.length > 10)).toBe(true);
});

test("a flood is one event each ten seconds, with a count; each limit by itself", () => {
  const { told, clock, limits } = open();
  for (let i = 0; i < 5_000; i++) limits.reached("newFlowsPerSecond");
  expect(told).toHaveLength(1);
  clock.now += LIMIT_EVENT_MS;
  limits.reached("newFlowsPerSecond");
  limits.reached("bufferedBytes");
  expect(told.map(({ limit, times }) => [limit, times])).toEqual([
    ["new_flows_per_second", 1],
    ["new_flows_per_second", 5_000],
    ["buffered_bytes", 1],
  ]);
});

test("what was counted last is told at the end, and nothing twice", () => {
  const { told, limits } = open();
  limits.reached("flows");
  limits.reached("flows");
  limits.reached("dnsNames");
  limits.flush();
  limits.flush();
  expect(told.map(({ limit, times }) => [limit, times])).toEqual([
    ["flows", 1],
    ["dns_names", 1],
    ["flows", 1],
  ]);
});
