import { ConfigApplyOutcome as Outcome } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { describe, expect, it } from "vitest";
import { BUILD_LIMIT_MS, BUILD_RETRY_FIRST_MS, RECONCILE_INTERVAL_MS } from "./limits.ts";
import type { SchedulerDeps } from "./scheduler.ts";
import { collectGarbage, OneSession, openScheduler, settle, snapshotOf } from "./testing/one-session.ts";

/** A scheduler with running sandboxes of these names. */
function open(names: readonly string[], changes: Partial<SchedulerDeps> = {}) {
  const opened = openScheduler(changes);
  const add = (name: string): OneSession => {
    const session = new OneSession(opened, name);
    opened.sessions.set(name, session);
    session.delivery.bootstrapDone();
    return session;
  };
  const all = names.map(add);
  return { ...opened, all, add };
}

/** Builds that a test lets go on one by one; `order` tells who began. */
function heldBuilds() {
  const order: string[] = [];
  const held: (() => void)[] = [];
  const build: SchedulerDeps["build"] = async (id) => {
    order.push(id);
    await new Promise<void>((resolve) => held.push(resolve));
    return snapshotOf({ version: 1, providers: "p1", epoch: "e1" });
  };
  const release = async (): Promise<void> => {
    held.shift()?.();
    await settle();
  };
  return { order, build, release };
}

describe("the order of deliveries", () => {
  it("takes dirty sandboxes round robin: one that changes all the time waits its turn like the others", async () => {
    const { order, build, release } = heldBuilds();
    const { all } = open(["busy", "a", "b", "c"], { build, permits: 1, reserved: 0 });
    const [busy] = all;
    for (const { delivery } of all) delivery.markDirty();
    await settle();
    for (let turn = 0; turn < 7; turn++) {
      busy!.delivery.markDirty();
      await release();
    }
    expect(order.slice(0, 8)).toEqual(["busy", "a", "b", "c", "busy", "busy", "busy", "busy"]);
    for (const { delivery } of all.slice(1)) delivery.markDirty();
    for (let turn = 0; turn < 4; turn++) {
      busy!.delivery.markDirty();
      await release();
    }
    expect(order.slice(8)).toEqual(["a", "b", "c", "busy"]);
  });

  it("builds once for a hundred changes that come while it is in the ring or being built", async () => {
    const { order, build, release } = heldBuilds();
    const { all } = open(["busy", "other"], { build, permits: 1, reserved: 0 });
    all[1]!.delivery.markDirty();
    for (let change = 0; change < 100; change++) all[0]!.delivery.markDirty();
    await settle();
    await release();
    for (let change = 0; change < 100; change++) all[0]!.delivery.markDirty();
    await release();
    await release();
    expect(order).toEqual(["other", "busy", "busy"]);
  });

  it("starves nobody of 1,000 when a few are dirty without end", async () => {
    const names = Array.from({ length: 1_000 }, (_, index) => `s${index}`);
    const built = new Map<string, number>();
    const greedy: OneSession[] = [];
    const { scheduler, all } = open(names, {
      build: async (id) => {
        built.set(id, (built.get(id) ?? 0) + 1);
        for (const { delivery } of greedy) delivery.markDirty();
        return snapshotOf({ version: 1, providers: "p1", epoch: "e1" });
      },
    });
    greedy.push(...all.slice(0, 64));
    scheduler.publish({ kind: "everyone" });
    for (let turn = 0; turn < 1_000 && built.size < names.length; turn++) await settle();
    greedy.length = 0;
    expect(built.size).toBe(names.length);
    // A lap of the ring at most between two turns of the same one.
    expect(Math.max(...built.values())).toBeLessThan(names.length);
    await settle();
  });

  it("keeps a part of its permits free of changes that concern many", async () => {
    const { order, build, release } = heldBuilds();
    const { scheduler, all } = open(["a", "b", "c", "d", "single"], { build, permits: 4, reserved: 1 });
    scheduler.publishTo(all.slice(0, 4).map(({ delivery }) => delivery));
    await settle();
    expect(order).toEqual(["a", "b", "c"]);
    scheduler.publish({ kind: "sandbox", sandboxId: "single" }, all[4]!.delivery);
    await settle();
    expect(order).toEqual(["a", "b", "c", "single"]);
    await release();
    expect(order.at(-1)).toBe("d");
  });

  it("moves a sandbox that changes alone out of the crowd", async () => {
    const { order, build, release } = heldBuilds();
    const { scheduler, all } = open(["a", "b", "c"], { build, permits: 1, reserved: 0 });
    scheduler.publishTo(all.map(({ delivery }) => delivery));
    await settle();
    all[2]!.delivery.markDirty();
    await release();
    expect(order).toEqual(["a", "c"]);
  });

  it("lets changes of many go on while changes of one never end", async () => {
    const { order, build, release } = heldBuilds();
    const { scheduler, all } = open(["busy", "idle", "crowd1", "crowd2"], { build, permits: 1, reserved: 0 });
    for (const { delivery } of all.slice(0, 2)) delivery.markDirty();
    scheduler.publishTo(all.slice(2).map(({ delivery }) => delivery));
    await settle();
    for (let turn = 0; turn < 5; turn++) {
      for (const { delivery } of all.slice(0, 2)) delivery.markDirty();
      await release();
    }
    expect(order.slice(0, 4)).toEqual(["busy", "crowd1", "idle", "crowd2"]);
  });

  it("lets everything else have a turn between slices of builds", async () => {
    let breaths = 0;
    let now = 0;
    const { scheduler, all } = open(
      Array.from({ length: 50 }, (_, index) => `s${index}`),
      {
        build: async () => {
          const end = performance.now() + 1;
          while (performance.now() < end) now += 1;
          return snapshotOf({ version: 1, providers: "p1", epoch: "e1" });
        },
        breathe: async () => {
          breaths += 1;
          await settle();
        },
      },
    );
    scheduler.publish({ kind: "everyone" });
    for (let turn = 0; turn < 200 && all.some(({ delivery }) => delivery.busy); turn++) await settle();
    expect(breaths).toBeGreaterThanOrEqual(5);
    expect(now).toBeGreaterThan(0);
  });
});

describe("what is announced", () => {
  it("concerns one sandbox, those of a workspace, those with a provider, or everyone", async () => {
    const { scheduler, all } = open(["a", "b"]);
    const [a, b] = all;
    const builds = async (scope: Parameters<typeof scheduler.publish>[0], one?: OneSession) => {
      const before = all.map((session) => session.builds);
      scheduler.publish(scope, one?.delivery);
      await settle();
      return all.map((session, index) => session.builds - before[index]!);
    };
    expect(await builds({ kind: "sandbox", sandboxId: "a" }, a)).toEqual([1, 0]);
    expect(await builds({ kind: "sandbox", sandboxId: "unknown" })).toEqual([0, 0]);
    expect(await builds({ kind: "workspace", workspace: "default" })).toEqual([1, 1]);
    expect(await builds({ kind: "workspace", workspace: "other" })).toEqual([0, 0]);
    expect(await builds({ kind: "everyone" })).toEqual([1, 1]);
    await b!.change({ providers: "p2" });
    for (const update of b!.sent) await b!.answer(update, Outcome.APPLIED);
    expect(await builds({ kind: "provider", workspace: "default", provider: "p1" })).toEqual([1, 0]);
    expect(await builds({ kind: "provider", workspace: "default", provider: "p2" })).toEqual([0, 1]);
    expect(await builds({ kind: "provider", workspace: "other", provider: "p1" })).toEqual([0, 0]);
  });

  it("concerns a sandbox that is just being read, whatever it had before", async () => {
    const { order, build, release } = heldBuilds();
    const { scheduler, all } = open(["a"], { build });
    all[0]!.delivery.markDirty();
    await settle();
    scheduler.publish({ kind: "provider", workspace: "default", provider: "just attached" });
    await release();
    expect(order).toEqual(["a", "a"]);
  });

  it("is not lost between the read of a bootstrap and its registration", async () => {
    const opened = openScheduler();
    const seen = opened.scheduler.publications;
    opened.scheduler.publish({ kind: "sandbox", sandboxId: "s" });
    const session = new OneSession(opened, "s", seen);
    opened.sessions.set("s", session);
    session.stored = { ...session.stored, version: 2 };
    session.delivery.bootstrapDone();
    await settle();
    expect(session.story).toEqual(["config 2"]);
    const quiet = new OneSession(opened, "q");
    opened.sessions.set("q", quiet);
    quiet.delivery.bootstrapDone();
    await settle();
    expect(quiet.builds).toBe(0);
  });
});

describe("the reconcile", () => {
  const tick = async (clock: { advance(ms: number): void }, ms: number): Promise<void> => {
    for (let passed = 0; passed < ms; passed += RECONCILE_INTERVAL_MS / 30) {
      clock.advance(RECONCILE_INTERVAL_MS / 30);
      await settle();
    }
  };

  it("notices what nobody announced, first after one to two intervals and then once an interval", async () => {
    const { clock, scheduler, all } = open(["s"]);
    void scheduler.reconcile();
    await settle();
    all[0]!.stored = { ...all[0]!.stored, version: 2 };
    await tick(clock, RECONCILE_INTERVAL_MS - 1_000);
    expect(all[0]!.builds).toBe(0);
    await tick(clock, 1_000);
    expect(all[0]!.story).toEqual(["config 2"]);
    for (const update of all[0]!.sent) await all[0]!.answer(update, Outcome.APPLIED);
    await tick(clock, 2 * RECONCILE_INTERVAL_MS);
    expect(all[0]!.builds).toBe(3);
    expect(all[0]!.sent).toHaveLength(1);
    scheduler.close();
    await settle();
    expect(clock.due(10 * RECONCILE_INTERVAL_MS)).toBe(0);
  });

  it("spreads first looks over an interval", async () => {
    let next = 0;
    const { clock, scheduler, all } = open(["early", "late"], { random: () => next++ });
    void scheduler.reconcile();
    await settle();
    await tick(clock, RECONCILE_INTERVAL_MS);
    expect(all.map(({ builds }) => builds)).toEqual([1, 0]);
    await tick(clock, RECONCILE_INTERVAL_MS);
    expect(all.map(({ builds }) => builds)).toEqual([2, 1]);
  });

  it("stands back behind changes of one sandbox", async () => {
    const { order, build, release } = heldBuilds();
    const { clock, scheduler, all } = open(["a", "b", "single"], { build, permits: 2, reserved: 1 });
    void scheduler.reconcile();
    await settle();
    await tick(clock, RECONCILE_INTERVAL_MS);
    expect(order).toEqual(["a"]);
    all[2]!.delivery.markDirty();
    await settle();
    expect(order).toEqual(["a", "single"]);
    await release();
    expect(order).toEqual(["a", "single", "b"]);
  });
});

describe("sessions that come and go", () => {
  it("never lets the late end of an old session clear the new one", async () => {
    const { scheduler, sessions, all, add } = open(["s"]);
    const [old] = all;
    await old!.change({ version: 2 });
    const current = add("s");
    current.stored = { ...current.stored, version: 3 };
    current.delivery.markDirty();
    scheduler.unregister(old!.delivery);
    await settle();
    expect(sessions.get("s")).toBe(current);
    expect(current.story).toEqual(["config 3"]);
    await old!.answer(old!.sent[0], Outcome.APPLIED);
    expect(old!.outcomes).toEqual([]);
    expect(current.delivery.waiting).toBe(true);
    expect(scheduler.counts()).toEqual({ sessions: 1, dirty: 1, waiting: 1 });
  });

  it("gives up a read that does not come to its end, and tries again", async () => {
    let answers = false;
    const { clock, all } = open(["s"], {
      build: (id) => (answers ? openBuild(id) : new Promise(() => {})),
    });
    const openBuild = (_id: string) => all[0]!.build();
    await all[0]!.change({ version: 2 });
    clock.advance(BUILD_LIMIT_MS);
    await settle();
    expect(all[0]!.errors).toMatchObject([{ code: "snapshot_timeout" }]);
    answers = true;
    clock.advance(BUILD_RETRY_FIRST_MS);
    await settle();
    expect(all[0]!.story).toEqual(["config 2"]);
  });

  it("keeps little of each of 2,000 that are idle", async () => {
    const names = Array.from({ length: 2_000 }, (_, index) => `00000000-0000-4000-8000-${index}`);
    const opened = openScheduler();
    const before = heap();
    const sessions = names.map((name) => new OneSession(opened, name));
    for (const { delivery } of sessions) delivery.bootstrapDone();
    await settle();
    const each = (heap() - before) / names.length;
    expect(opened.scheduler.counts()).toEqual({ sessions: 2_000, dirty: 0, waiting: 0 });
    // The double itself and its snapshot are a part of that.
    expect(each).toBeLessThan(8_192);
  });
});

function heap(): number {
  collectGarbage();
  return process.memoryUsage().heapUsed;
}
