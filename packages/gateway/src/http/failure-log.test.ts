import type { Logger } from "pino";
import { expect, test } from "vitest";
import { FailureLog } from "./failure-log.ts";
import { HttpLimits } from "./limits.ts";

test("a flood of failures is logged in part, and counted", () => {
  const lines: string[] = [];
  let now = 0;
  const log = { error: (fields: { count?: number }, text: string) => lines.push(`${fields.count ?? ""} ${text}`) };
  const failures = new FailureLog(log as unknown as Logger, () => now);
  for (let n = 0; n < HttpLimits.failuresLogged + 7; n++) failures.failed(new Error("x"), "GetSandbox");
  expect(lines).toEqual(Array.from({ length: HttpLimits.failuresLogged }, () => " a call failed unexpectedly"));
  now += HttpLimits.failureWindowMs;
  failures.failed(new Error("x"), "GetSandbox");
  expect(lines.slice(-2)).toEqual([
    "7 more calls failed unexpectedly, and were not logged",
    " a call failed unexpectedly",
  ]);
});
