import { expect, it } from "vitest";
import { modelOf } from "./model.ts";
import { rate, run } from "./testing.ts";

const only = (...runs: Parameters<typeof modelOf>[0]) => modelOf(runs)!;

it("has nothing to say about no run, and no change to tell of a single one", () => {
  expect(modelOf([])).toBeUndefined();
  const model = only(run(1, [rate(120)]));
  expect(model).toMatchObject({ met: 1, judged: 1, compared: 0, better: [], worse: [], runs: 1 });
});

it("says how much of a budget is used, whichever way it limits", () => {
  const time = { id: "exec/time", what: "t", measured: 3, unit: "ms", limit: { atMost: 12 }, met: true } as const;
  const none = { id: "exec/wrong", what: "w", measured: 0, unit: "count", limit: { atMost: 0 }, met: true } as const;
  const some = { ...none, id: "exec/more", measured: 2, met: false };
  const figures = only(run(1, [rate(200), time, none, some])).areas[0]!.figures;
  expect(figures.map(({ share }) => share)).toEqual([0.5, 0.25, 0, Number.POSITIVE_INFINITY]);
});

it("compares by the ratio to the alternative: a slower machine is no change", () => {
  expect(only(run(1, [rate(200, 1000)]), run(2, [rate(100, 500)]))).toMatchObject({ better: [], worse: [] });
  const worse = only(run(1, [rate(200, 1000)]), run(2, [rate(200, 2000)])).worse;
  expect(worse.map(({ figure, factor }) => [figure.id, factor])).toEqual([["exec/rate", 0.5]]);
});

it("a time that grows is worse, one that shrinks is better", () => {
  const time = (measured: number) => ({ id: "a/b", what: "t", measured, unit: "ms" }) as const;
  expect(only(run(1, [time(10)]), run(2, [time(20)])).worse[0]!.factor).toBe(0.5);
  expect(only(run(1, [time(20)]), run(2, [time(10)])).better[0]!.factor).toBe(2);
});

it("takes what a figure varies anyway for noise, and a small lasting step of a steady one for a change", () => {
  const last = (values: readonly number[]) => only(...values.map((value, index) => run(index, [rate(value)])));
  expect(last([100, 160, 100, 160, 100, 160, 200]).better).toEqual([]);
  expect(last([100, 101, 100, 101, 100, 101, 120]).better).toHaveLength(1);
  // Five runs are needed to know.
  expect(last([100, 101, 120]).better).toEqual([]);
});

it("wants twice as much of a change when the machine was busy", () => {
  const now = (load: number) => only(run(1, [rate(100)]), run(2, [rate(150)], { load }));
  expect(now(1).better).toHaveLength(1);
  expect(now(9).better).toEqual([]);
});

it("a count that leaves 0 is worse, one that returns to it is better", () => {
  const wrong = (measured: number) => ({ id: "exec/wrong", what: "w", measured, unit: "count" }) as const;
  expect(only(run(1, [wrong(0)]), run(2, [wrong(3)])).worse).toHaveLength(1);
  expect(only(run(1, [wrong(3)]), run(2, [wrong(0)])).better).toHaveLength(1);
  expect(only(run(1, [wrong(0)]), run(2, [wrong(0)]))).toMatchObject({ better: [], worse: [] });
});

it("shows runs of the latest one's machine and mode alone", () => {
  const model = only(run(1, [rate(5)], { mode: "user" }), run(2, [rate(120)]));
  expect(model).toMatchObject({ runs: 1, otherRuns: 1, compared: 0 });
});

it("keeps figures that a partial run does not have, and drops those that a full one lacks", () => {
  const full = ["create", "exec", "egress", "policy", "gateway", "idle"].map((area) => rate(120, 1000, `${area}/x`));
  const ids = (...runs: Parameters<typeof modelOf>[0]) =>
    only(...runs).areas.flatMap(({ figures }) => figures.map(({ id }) => id));
  const old = run(1, [...full, rate(120, 1000, "exec/gone")]);
  expect(ids(old, run(2, [rate(120, 1000, "exec/x")]))).toContain("exec/gone");
  expect(ids(old, run(2, full))).not.toContain("exec/gone");
});

it("sorts by area, with areas that it does not know last", () => {
  const results = ["churn/a", "zebra/a", "create/a"].map((id) => rate(120, 1000, id));
  const names = only(run(1, results)).areas.map(({ name }) => name);
  expect(names).toEqual(["From a command to its output", "Sandboxes that come and go", "zebra"]);
});
