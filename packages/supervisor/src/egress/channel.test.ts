import { describe, expect, test } from "vitest";
import { BufferBudget } from "./channel.ts";
import type { FairShare } from "./fair-share.ts";
import { READ_AHEAD_BYTES } from "./limits.ts";
import { pipedChannel } from "./testing/pipe.ts";

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe("channels", () => {
  test("give bytes in order, put back what is unread, and end with null", async () => {
    const { channel, feed, finish } = pipedChannel();
    feed("abc");
    const first = (await channel.read(100))!;
    channel.unread(first.subarray(1));
    expect((await channel.read(100))!.toString()).toBe("bc");
    finish();
    expect(await channel.read(100)).toBeNull();
  });

  test("stop reading ahead at the limit and go on when taken", async () => {
    const { channel, feed, stream } = pipedChannel(undefined, 1 << 30);
    for (let i = 0; i < 10; i += 1) feed(Buffer.alloc(READ_AHEAD_BYTES / 2));
    await turn();
    expect(stream.isPaused()).toBe(true);
    expect(channel.buffered).toBeLessThanOrEqual(READ_AHEAD_BYTES);
    let got = 0;
    while (got < 5 * READ_AHEAD_BYTES) got += (await channel.read(100))!.length;
    expect(got).toBe(5 * READ_AHEAD_BYTES);
  });

  test("the sandbox's budget stops every reader, and everything is given back at the end", async () => {
    const { channel, feed, stream, budget } = pipedChannel(undefined, 1000);
    feed(Buffer.alloc(1500));
    feed(Buffer.alloc(1500));
    await turn();
    expect(stream.isPaused()).toBe(true);
    expect(budget.exhausted).toBe(true);
    stream.destroy();
    await turn();
    expect(budget.used).toBe(0);
    expect(channel.closed).toBe(true);
  });

  test("a wait has an end", async () => {
    let now = 0;
    const { channel, deadlines } = pipedChannel(() => now);
    const waiting = channel.read(1_000);
    now = 1_001;
    deadlines.sweep();
    await expect(waiting).rejects.toMatchObject({ code: "idle_limit" });
    expect(channel.closed).toBe(true);
  });

  test("a total limit ends a connection that is busy all the time", async () => {
    let now = 0;
    const { channel, deadlines, feed } = pipedChannel(() => now);
    channel.totalDeadline = 5_000;
    feed("x");
    await channel.read(1_000);
    now = 5_001;
    deadlines.sweep();
    await expect(channel.read(1_000)).rejects.toMatchObject({ code: "idle_limit" });
  });

  test("bytes that nobody may send are told at once", async () => {
    const { channel, feed } = pipedChannel();
    let told = 0;
    channel.unsolicited = () => {
      told += 1;
    };
    feed("x");
    await turn();
    expect(told).toBe(1);
    expect(channel.buffered).toBe(0);
  });

  test("a detached socket still has what was read from it", async () => {
    const { channel, feed } = pipedChannel();
    feed("abcdef");
    const first = (await channel.read(100))!;
    channel.unread(first.subarray(3));
    feed("ghi");
    await turn();
    const socket = channel.detach();
    let text = "";
    socket.on("data", (chunk) => {
      text += chunk;
    });
    socket.resume();
    await turn();
    expect(text).toBe("defghi");
  });

  test("readable tells without taking", async () => {
    const { channel, feed } = pipedChannel();
    expect(await channel.readable(5)).toBe(false);
    const waiting = channel.readable(1_000);
    feed("abc");
    expect(await waiting).toBe(true);
    expect((await channel.read(100))!.toString()).toBe("abc");
  });
});

describe("a channel of a sandbox that had its slice", () => {
  /** A share that is never ready, and what waits for it. */
  function busy() {
    const waiting: (() => void)[] = [];
    const share = { ready: () => false, later: (work: () => void) => waiting.push(work) } as unknown as FairShare;
    return { share, waiting, go: () => waiting.splice(0).forEach((work) => void work()) };
  }

  test("gives bytes and the end in order when its turn comes, once for all that came", async () => {
    const { share, waiting, go } = busy();
    const { channel, feed, finish, budget } = pipedChannel(undefined, undefined, share);
    let got = "";
    const first = Promise.resolve(channel.read(1_000)).then((chunk) => {
      got = chunk!.toString();
    });
    feed("abc");
    feed("de");
    await turn();
    expect([got, waiting.length, budget.used]).toEqual(["", 1, 5]);
    go();
    await first;
    expect(got).toBe("abc");
    expect((await channel.read(1_000))!.toString()).toBe("de");
    const last = channel.read(1_000);
    finish();
    await turn();
    go();
    expect(await last).toBeNull();
    expect(budget.used).toBe(0);
  });

  test("its end does not overtake what waits, and waits as well", async () => {
    const { share, waiting, go } = busy();
    const { channel, feed, finish } = pipedChannel(undefined, undefined, share);
    let got: string | undefined;
    const first = Promise.resolve(channel.read(1_000)).then((chunk) => {
      got = chunk?.toString();
    });
    feed("abc");
    finish();
    await turn();
    expect([got, waiting.length]).toEqual([undefined, 1]);
    go();
    await first;
    expect(got).toBe("abc");
    expect(await channel.read(1_000)).toBeNull();
  });

  test("an end alone waits for the turn", async () => {
    const { share, waiting, go } = busy();
    const { channel, finish } = pipedChannel(undefined, undefined, share);
    let ended = false;
    const last = Promise.resolve(channel.read(1_000)).then((chunk) => {
      ended = chunk === null;
    });
    finish();
    await turn();
    expect([ended, waiting.length]).toEqual([false, 1]);
    go();
    await last;
    expect(ended).toBe(true);
  });

  test("stops the event loop from looking at its socket until then", async () => {
    const { share, go } = busy();
    const { channel, feed, stream } = pipedChannel(undefined, undefined, share);
    const calls: string[] = [];
    Object.assign(stream, { _handle: { readStop: () => calls.push("stop"), readStart: () => calls.push("start") } });
    const first = channel.read(1_000);
    feed("a");
    await turn();
    expect(calls).toEqual(["stop"]);
    go();
    await first;
    expect(calls).toEqual(["stop", "start"]);
    const second = channel.read(1_000);
    feed("b");
    await turn();
    const whole = channel.detach();
    expect(calls).toEqual(["stop", "start", "stop", "start"]);
    expect(whole.read()?.toString()).toBe("b");
    channel.destroy();
    void Promise.resolve(second).catch(() => {});
    go();
  });

  /** `calls`: what the event loop is told about the socket. */
  function watched() {
    const { share, waiting, go } = busy();
    const { channel, feed, stream } = pipedChannel(undefined, undefined, share);
    const calls: string[] = [];
    Object.assign(stream, { _handle: { readStop: () => calls.push("stop"), readStart: () => calls.push("start") } });
    return { channel, feed, calls, waiting, go };
  }

  test("is not read when its turn comes while it rests, only after its rest", async () => {
    const { channel, feed, calls, go } = watched();
    feed("a");
    await turn();
    const rest = channel.rest(20);
    go();
    expect(calls).toEqual(["stop", "stop"]);
    await rest;
    expect(calls).toEqual(["stop", "stop", "start"]);
    expect((await channel.read(1_000))!.toString()).toBe("a");
  });

  test("is not read after its rest while its turn has not come", async () => {
    const { channel, feed, calls, waiting, go } = watched();
    const rest = channel.rest(1);
    feed("a");
    await turn();
    await rest;
    expect([calls, waiting.length]).toEqual([["stop", "stop"], 1]);
    go();
    expect(calls).toEqual(["stop", "stop", "start"]);
  });

  test("that was handed on while it rested is left to its new owner", async () => {
    const { channel, calls } = watched();
    const rest = channel.rest(1);
    channel.detach();
    await rest;
    expect(calls).toEqual(["stop"]);
  });
});

test("a budget wakes those who wait once there is room", () => {
  const budget = new BufferBudget(100);
  let woken = 0;
  budget.charge(100);
  budget.whenFree(() => {
    woken += 1;
  });
  budget.release(5);
  expect(woken).toBe(0);
  budget.release(10);
  expect(woken).toBe(1);
});
