import { expect, it } from "vitest";
import { problems } from "./check.ts";
import { faults } from "./known-faults.ts";

it("every known fault names tests that exist and defences that are in the sources", () => {
  expect(problems(faults)).toEqual([]);
});
