import { expect, test } from "vitest";
import { TokenBucket } from "./rate.ts";

test("a burst passes at once, then the rate holds", () => {
  let now = 0;
  const bucket = new TokenBucket(10, 3, () => now);
  expect([1, 2, 3, 4].map(() => bucket.take())).toEqual([true, true, true, false]);
  expect(bucket.waitMs).toBe(100);
  now = 99;
  expect(bucket.take()).toBe(false);
  now = 100;
  expect(bucket.take()).toBe(true);
  now = 10_000;
  expect([1, 2, 3, 4].map(() => bucket.take())).toEqual([true, true, true, false]);
});
