import { expect, it } from "vitest";
import { FrozenClock } from "../api/testing/frozen-clock.ts";
import { settle } from "./testing/one-session.ts";
import { TimeLimits } from "./time-limits.ts";

it("each wait that is not called off is late after its own time, and no other", async () => {
  const clock = new FrozenClock();
  const limits = new TimeLimits(clock, 100);
  const late: string[] = [];
  const begin = (name: string) => limits.begin(() => late.push(name));
  begin("a");
  const callOff = begin("b");
  await clock.advance(60);
  begin("c");
  callOff();
  await clock.advance(40);
  await settle();
  expect(late).toEqual(["a"]);
  await clock.advance(60);
  await settle();
  expect(late).toEqual(["a", "c"]);
  begin("d");
  await clock.advance(100);
  await settle();
  expect(late).toEqual(["a", "c", "d"]);
});

it("nothing is late once it is closed", async () => {
  const clock = new FrozenClock();
  const limits = new TimeLimits(clock, 100);
  let late = 0;
  limits.begin(() => late++);
  limits.close();
  limits.begin(() => late++);
  await clock.advance(200);
  await settle();
  expect(late).toBe(0);
});
