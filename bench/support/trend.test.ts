import { expect, test } from "vitest";
import { growth } from "./trend.ts";

test("a straight line is found with its growth", () => {
  const line = growth([2, 3, 5].map((x) => ({ x, y: 10 + 4 * x })));
  expect(line.slope).toBeCloseTo(4);
  expect(line.first).toBeCloseTo(18);
  expect(line.total).toBeCloseTo(12);
});

test("what goes up and down by turns hardly grows", () => {
  const line = growth(Array.from({ length: 20 }, (_, x) => ({ x, y: 100 + (x % 2) })));
  expect(Math.abs(line.total)).toBeLessThan(0.5);
});

test("one point has no slope", () => {
  expect(growth([{ x: 1, y: 7 }])).toEqual({ slope: 0, first: 7, total: 0 });
});
