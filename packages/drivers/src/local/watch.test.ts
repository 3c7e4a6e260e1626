import type { Clock } from "@openshell/base";
import { describe, expect, it } from "vitest";
import type { DriverEvent } from "../driver.ts";
import { isAlive, type ProcessTable, parseStartTime } from "./process-table.ts";
import { InitWatch } from "./watch.ts";

class Table implements ProcessTable {
  readonly bootId = "boot";
  readonly living = new Map<number, bigint>();
  blind = false;
  startTime(pid: number): bigint | undefined {
    if (this.blind) throw Object.assign(new Error("EMFILE"), { code: "EMFILE" });
    return this.living.get(pid);
  }
  withTitle(): readonly number[] {
    return [];
  }
  kill(): void {}
}

/** Sleeps until told. */
function handClock(): { readonly clock: Clock; tick(): Promise<void>; readonly sleepers: number } {
  const waiting = new Set<() => void>();
  return {
    clock: {
      now: () => 0,
      monotonic: () => 0,
      sleep: (_ms, { signal } = {}) =>
        new Promise((resolve, reject) => {
          const wake = (): void => {
            waiting.delete(wake);
            resolve();
          };
          waiting.add(wake);
          signal?.addEventListener("abort", () => reject(signal.reason));
        }),
    },
    async tick() {
      for (const wake of [...waiting]) wake();
      await new Promise((resolve) => setImmediate(resolve));
    },
    get sleepers() {
      return waiting.size;
    },
  };
}

const record = (pid: number, startTime: bigint) => ({ bootId: "boot", pid, startTime });

describe("isAlive", () => {
  it("does not take a reused pid or another boot for the process", () => {
    const table = new Table();
    table.living.set(5, 100n);
    expect(isAlive(table, record(5, 100n))).toBe(true);
    expect(isAlive(table, record(5, 99n))).toBe(false);
    expect(isAlive(table, { ...record(5, 100n), bootId: "earlier" })).toBe(false);
  });
});

describe("parseStartTime", () => {
  const rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
  it("counts fields from the end of the name, which may hold anything", () => {
    expect(parseStartTime(`17 (a) S 9) S ${rest}`)).toBe(4242n);
  });
  it("takes a zombie for gone", () => {
    expect(parseStartTime(`17 (x) Z ${rest}`)).toBeUndefined();
    expect(parseStartTime(undefined)).toBeUndefined();
  });
});

describe("InitWatch", () => {
  it("tells every subscriber once, and polls only while there is somebody to tell", async () => {
    const table = new Table();
    const time = handClock();
    const watch = new InitWatch(table, time.clock);
    table.living.set(5, 100n);
    watch.add("a", 2n, record(5, 100n));
    expect(time.sleepers).toBe(0);

    const stop = new AbortController();
    const seen: DriverEvent[][] = [[], []];
    const readers = seen.map(async (events) => {
      for await (const event of watch.events(stop.signal)) events.push(event);
    });
    await time.tick();
    expect(time.sleepers).toBe(1);
    table.living.delete(5);
    await time.tick();
    await time.tick();
    for (const events of seen)
      expect(events).toEqual([{ kind: "ended", sandboxId: "a", generation: 2n, record: record(5, 100n) }]);
    expect(time.sleepers).toBe(0);

    // A later generation starts the polling again.
    table.living.set(6, 200n);
    watch.add("a", 3n, record(6, 200n));
    expect(time.sleepers).toBe(1);
    stop.abort();
    await Promise.all(readers);
    await watch[Symbol.asyncDispose]();
  });
  it("took every sandbox for ended when the gateway had no descriptors to look at /proc", async () => {
    const table = new Table();
    const watch = new InitWatch(table, handClock().clock);
    const stop = new AbortController();
    const seen: DriverEvent[] = [];
    const reader = (async () => {
      for await (const event of watch.events(stop.signal)) seen.push(event);
    })();
    table.living.set(5, 1n);
    watch.add("a", 1n, record(5, 1n));
    table.blind = true;
    watch.check();
    table.blind = false;
    watch.check();
    await new Promise((resolve) => setImmediate(resolve));
    expect(seen).toEqual([]);
    table.living.clear();
    watch.check();
    await new Promise((resolve) => setImmediate(resolve));
    expect(seen).toMatchObject([{ kind: "ended", sandboxId: "a" }]);
    stop.abort();
    await reader;
    await watch[Symbol.asyncDispose]();
  });
  it("does not report what the driver ended itself", () => {
    const table = new Table();
    const watch = new InitWatch(table, handClock().clock);
    watch.add("a", 1n, record(5, 1n));
    watch.remove("a");
    watch.check();
    expect(table.living.size).toBe(0);
  });
});
