import type { Clock } from "@openshell/base";
import { describe, expect, it } from "vitest";
import { DiskWatch, FIRST_MEASURE_MS } from "./disk-watch.ts";

const LIMIT = 1_000;

/** A disk whose sizes and time are set by hand. */
function bench(limitBytes = LIMIT) {
  let now = 0;
  const sizes = new Map<string, number>();
  let used = 10_000;
  const measured: string[] = [];
  const exceeded: [id: string, bytes: number][] = [];
  const clock: Clock = { now: () => now, monotonic: () => now, sleep: () => new Promise(() => {}) };
  let tookMs = 0;
  const watch = new DiskWatch({
    clock,
    limitBytes,
    onExceeded: ({ sandboxId }, bytes) => exceeded.push([sandboxId, bytes]),
    usedBytes: async () => used,
    measure: async ({ trees }) => {
      now += tookMs;
      return trees.map(([folder = ""]) => {
        measured.push(folder);
        return { bytes: sizes.get(folder) ?? 0, entries: 1, unseen: 0 };
      });
    },
  });
  return {
    watch,
    sizes,
    measured,
    exceeded,
    add: (id: string, generation = 1n) => watch.add({ sandboxId: id, generation, folders: [id] }),
    pass: (ms: number) => {
      now += ms;
    },
    grow: (bytes: number) => {
      used += bytes;
    },
    takes: (ms: number) => {
      tookMs = ms;
    },
  };
}

describe("DiskWatch", () => {
  it("tells once when a sandbox takes more than the limit", async () => {
    const { add, exceeded, pass, sizes, watch } = bench();
    add("a");
    add("b");
    sizes.set("a", LIMIT + 1).set("b", LIMIT);
    pass(FIRST_MEASURE_MS);
    await watch.check();
    await watch.check();
    expect(exceeded).toEqual([["a", LIMIT + 1]]);
  });

  it("leaves a started sandbox time to be cleaned up", async () => {
    const { add, measured, pass, watch } = bench();
    add("a");
    pass(FIRST_MEASURE_MS - 1);
    await watch.check();
    expect(measured).toEqual([]);
    add("a");
    pass(1);
    await watch.check();
    expect(measured).toEqual(["a"]);
  });

  it("adds files up only when the file system grew by what the limit leaves, or after five minutes", async () => {
    const { add, grow, measured, pass, sizes, watch } = bench();
    add("a");
    sizes.set("a", 400);
    pass(FIRST_MEASURE_MS);
    await watch.check();
    grow(600);
    pass(10_000);
    await watch.check();
    expect(measured).toHaveLength(1);
    grow(1);
    await watch.check();
    expect(measured).toHaveLength(2);
    pass(299_999);
    await watch.check();
    expect(measured).toHaveLength(2);
    pass(1);
    await watch.check();
    expect(measured).toHaveLength(3);
  });

  it("measures together what is due, then rests for as long as keeps it below a twentieth", async () => {
    const { add, measured, pass, takes, watch } = bench();
    add("a");
    add("b");
    takes(1_000);
    pass(FIRST_MEASURE_MS);
    add("c");
    await watch.check();
    expect(measured).toEqual(["a", "b"]);
    pass(FIRST_MEASURE_MS - 1_000);
    takes(10_000);
    await watch.check();
    expect(measured).toEqual(["a", "b", "c"]);
    add("d");
    pass(189_999);
    await watch.check();
    expect(measured).toHaveLength(3);
    pass(1);
    await watch.check();
    expect(measured).toEqual(["a", "b", "c", "d"]);
  });

  it("forgets a sandbox that ended, and watches nothing without a limit", async () => {
    const { add, measured, pass, watch } = bench();
    add("a");
    watch.remove("a");
    pass(FIRST_MEASURE_MS);
    await watch.check();
    expect(measured).toEqual([]);
    const without = bench(0);
    without.add("a");
    without.pass(FIRST_MEASURE_MS);
    await without.watch.check();
    expect(without.measured).toEqual([]);
  });
});
