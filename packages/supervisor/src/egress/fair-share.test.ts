import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, test } from "vitest";
import { type FairShare, FairShares } from "./fair-share.ts";
import {
  ADMISSION_BURST_MS,
  ADMISSION_COST_MS,
  ADMISSION_PART,
  ADMISSION_PAUSE_MS,
  SHARE_ALONE_MS,
  SHARE_CONTENDED_MS,
  SHARE_EVENT_MS,
  SHARE_SLICE_MS,
} from "./limits.ts";

/** Shares on a clock that only work moves. */
function setUp() {
  const clock = { now: 1_000_000 };
  const turns: (() => void)[] = [];
  let settled: (() => void)[] = [];
  const shares = new FairShares({
    now: () => clock.now,
    nextTurn: (callback) => turns.push(callback),
    afterThis: (callback) => {
      settled.push(callback);
      queueMicrotask(end);
    },
  });
  const end = (): void => {
    const callbacks = settled;
    settled = [];
    for (const callback of callbacks) callback();
  };
  /** An event of `share` that takes so long, when it is let go on. */
  const event = (share: FairShare, milliseconds: number): boolean => {
    const ready = share.ready();
    if (ready) clock.now += milliseconds;
    end();
    return ready;
  };
  /** The loop has looked at every socket. */
  const turn = async (): Promise<void> => {
    for (const callback of turns.splice(0)) callback();
    await nextTurn();
  };
  return { clock, shares, event, turn, turns };
}

/** How many of `count` were let go on. */
const spent = (count: number, one: () => boolean): number => {
  let done = 0;
  for (let n = 0; n < count; n += 1) if (one()) done += 1;
  return done;
};

test("a host with one sandbox delays nothing", async () => {
  const { shares, event } = setUp();
  const only = shares.open();
  expect(spent(1_000, () => event(only, 1))).toBe(1_000);
});

test("who used its slice waits until the loop has turned; its neighbour does not", async () => {
  const { shares, event, turn } = setUp();
  const [flood, quiet] = [shares.open(), shares.open()];
  expect(event(quiet, 0.1)).toBe(true);
  const done = spent(1_000, () => event(flood, 0.1));
  // Two slices: half of the time that passes is everybody's.
  expect(done).toBeGreaterThanOrEqual(SHARE_SLICE_MS / 0.1);
  expect(done).toBeLessThanOrEqual((2 * SHARE_SLICE_MS) / 0.1);
  let late = false;
  flood.later(() => {
    late = true;
  });
  expect(event(quiet, 0.1)).toBe(true);
  expect(late).toBe(false);
  await turn();
  expect(late).toBe(true);
});

test("alone with work a share goes on for longer, and for a slice again as soon as another has some", async () => {
  const { clock, shares, event } = setUp();
  const [busy, other] = [shares.open(), shares.open()];
  event(other, 0.1);
  event(busy, 0.1);
  clock.now += SHARE_CONTENDED_MS + 1;
  const alone = spent(1_000, () => event(busy, 0.1));
  expect(alone).toBeGreaterThanOrEqual(SHARE_ALONE_MS / 0.1);
  expect(alone).toBeLessThan(1_000);
  clock.now += SHARE_CONTENDED_MS + 1;
  event(other, 0.1);
  expect(spent(1_000, () => event(busy, 0.1))).toBeLessThanOrEqual((2 * SHARE_SLICE_MS) / 0.1);
});

test("waiting work is done in order, a slice of each share a turn, round robin", async () => {
  const { clock, shares, turn, turns } = setUp();
  const [a, b] = [shares.open(), shares.open()];
  const done: string[] = [];
  a.ready();
  b.ready();
  for (let n = 0; n < 20; n += 1) {
    for (const [share, name] of [
      [a, "a"],
      [b, "b"],
    ] as const) {
      share.later(() => {
        clock.now += 0.2 - SHARE_EVENT_MS;
        done.push(`${name}${n}`);
      });
    }
  }
  await turn();
  expect(done).toEqual(["a0", "a1", "a2", "b0", "b1", "b2"]);
  expect(a.ready()).toBe(false);
  while (turns.length > 0) await turn();
  expect(done.filter((one) => one.startsWith("a"))).toEqual(Array.from({ length: 20 }, (_, n) => `a${n}`));
  expect(done).toHaveLength(40);
  expect([a.waiting, b.waiting]).toEqual([0, 0]);
});

test("nobody is in debt: after a long flood one pause is enough", async () => {
  const { clock, shares, event } = setUp();
  const [flood, quiet] = [shares.open(), shares.open()];
  event(quiet, 0.1);
  for (let n = 0; n < 100; n += 1) flood.used(1_000);
  expect(event(flood, 0.1)).toBe(false);
  clock.now += 4 * SHARE_ALONE_MS;
  expect(event(flood, 0.1)).toBe(true);
});

/** Takes connections for a second, each of which costs so much. How many, and how much of the second they took. */
function flood({ clock, shares }: ReturnType<typeof setUp>, costMs: number) {
  const [hostile, quiet] = [shares.open(), shares.open()];
  const end = clock.now + 1_000;
  let taken = 0;
  while (clock.now < end) {
    shares.slice(quiet, clock.now);
    shares.slice(hostile, clock.now);
    const pause = hostile.admissionPause;
    if (pause > 0) {
      clock.now += Math.max(0.01, pause);
      continue;
    }
    hostile.admitted();
    clock.now += costMs;
    hostile.used(costMs);
    taken += 1;
  }
  return { taken, part: (taken * (costMs + ADMISSION_COST_MS)) / 1_000 };
}

test("while others have work, a flood of connections gets a small part of the time", () => {
  const { taken, part } = flood(setUp(), 0.5);
  expect(part).toBeGreaterThan(ADMISSION_PART);
  expect(part).toBeLessThan(ADMISSION_PART + (1.2 * ADMISSION_BURST_MS) / 1_000);
  expect(taken).toBeGreaterThan(1_000 / ADMISSION_PAUSE_MS);
});

test("connections that cost much are taken all the same, one a pause", () => {
  const { taken } = flood(setUp(), 5);
  expect(taken).toBeGreaterThan(1_000 / (ADMISSION_PAUSE_MS + 5) - 5);
  expect(taken).toBeLessThan(1_000 / ADMISSION_PAUSE_MS + ADMISSION_BURST_MS / 5);
});

test("connections wait for nothing while no other sandbox has work, nor after a burst", () => {
  const { clock, shares } = setUp();
  const busy = shares.open();
  busy.used(1_000);
  expect(busy.admissionPause).toBe(0);
  const other = shares.open();
  shares.slice(busy, clock.now);
  expect(busy.admissionPause).toBe(0);
  shares.slice(other, clock.now);
  busy.admitted();
  expect(busy.admissionPause).toBe(ADMISSION_PAUSE_MS);
  expect(other.admissionPause).toBe(0);
  clock.now += SHARE_CONTENDED_MS;
  expect(busy.admissionPause).toBe(0);
});

test("what waits when its sandbox goes is done; a closed neighbour is none", async () => {
  const { shares, turn } = setUp();
  const [a, b] = [shares.open(), shares.open()];
  let done = false;
  b.used(SHARE_ALONE_MS);
  void b.turn();
  b.later(() => {
    done = true;
  });
  b[Symbol.dispose]();
  await turn();
  expect(done).toBe(true);
  expect(shares.single).toBe(true);
  expect(a.ready()).toBe(true);
});

test("on the real loop: what follows at once from an event is on its account, what others do later is not", async () => {
  const shares = new FairShares();
  const [a, b] = [shares.open(), shares.open()];
  const work = (milliseconds: number): void => {
    const end = performance.now() + milliseconds;
    while (performance.now() < end);
  };
  b.ready();
  await nextTurn();
  expect(a.ready()).toBe(true);
  await Promise.resolve();
  work(SHARE_SLICE_MS * 4);
  await nextTurn();
  expect(shares.current).toBeUndefined();
  expect(a.ready()).toBe(false);
  expect(b.ready()).toBe(true);
  const order: string[] = [];
  a.later(() => order.push("waited"));
  await nextTurn();
  await nextTurn();
  expect(order).toEqual(["waited"]);
});
