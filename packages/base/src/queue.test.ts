import { describe, expect, it } from "vitest";
import { BoundedQueue } from "./queue.ts";

async function rest<T>(queue: BoundedQueue<T>): Promise<T[]> {
  const seen: T[] = [];
  for await (const item of queue) seen.push(item);
  return seen;
}

/** Whether a promise has settled by now, after everything that is due has run. */
async function pending(promise: Promise<unknown>): Promise<boolean> {
  const undecided = Symbol();
  await new Promise((resolve) => setImmediate(resolve));
  return (await Promise.race([promise, Promise.resolve(undecided)])) === undecided;
}

describe("BoundedQueue", () => {
  it("keeps the order and refuses what does not fit", async () => {
    const queue = new BoundedQueue<number>(2);
    expect([queue.offer(1), queue.offer(2), queue.offer(3)]).toEqual([true, true, false]);
    expect([queue.size, queue.closed]).toEqual([2, false]);
    queue.close();
    expect([queue.offer(4), await queue.push(4), queue.closed]).toEqual([false, false, true]);
    expect(await rest(queue)).toEqual([1, 2]);
    expect(await queue.next()).toEqual({ done: true, value: undefined });
  });

  it.each([1, 2, 3, 7, 8, 9, 100])("keeps the order at limit %i, whoever is faster", async (limit) => {
    const queue = new BoundedQueue<number>(limit);
    let pushed = 0;
    const producer = (async () => {
      for (let item = 0; item < 2_000; item++) {
        expect(await queue.push(item)).toBe(true);
        pushed += 1;
        if (item % 300 < 50) await null;
      }
      queue.close();
    })();
    let read = 0;
    for await (const item of queue) {
      expect(item).toBe(read);
      read += 1;
      expect(queue.size).toBeLessThanOrEqual(limit);
      expect(pushed - read).toBeLessThanOrEqual(limit + 1);
      if (item % 500 < 100) for (let turn = 0; turn < 5; turn++) await null;
    }
    await producer;
    expect(read).toBe(2_000);
  });

  it("holds falsy items as any other", async () => {
    const queue = new BoundedQueue<undefined | null | 0 | false>(10);
    for (const item of [undefined, null, 0, false] as const) queue.offer(item);
    queue.close();
    expect(await rest(queue)).toEqual([undefined, null, 0, false]);
  });

  it("lets producers in as they came, none before those who wait", async () => {
    const queue = new BoundedQueue<string>(1);
    queue.offer("a");
    const waiting = [queue.push("b"), queue.push("c")];
    const taken = queue.next();
    // Room was made and given to the first who waited: nobody overtakes.
    expect(queue.offer("late")).toBe(false);
    waiting.push(queue.push("d"));
    expect((await taken).value).toBe("a");
    queue.close();
    expect(await rest(queue)).toEqual(["b", "c", "d"]);
    expect(await Promise.all(waiting)).toEqual([true, true, true]);
  });

  it("answers several reads at once in their order", async () => {
    const queue = new BoundedQueue<number>(1);
    const reads = [queue.next(), queue.next(), queue.next()];
    expect([queue.offer(1), queue.offer(2), queue.size]).toEqual([true, true, 0]);
    queue.close();
    expect((await Promise.all(reads)).map(({ value }) => value)).toEqual([1, 2, undefined]);
  });

  it("keeps a producer waiting until there is room", async () => {
    const queue = new BoundedQueue<number>(1);
    expect(await queue.push(1)).toBe(true);
    const second = queue.push(2);
    expect(await pending(second)).toBe(true);
    expect(queue.size).toBe(1);
    await queue.next();
    expect(await second).toBe(true);
  });

  it("lets waiting producers go when the consumer leaves, and drops what is queued", async () => {
    const queue = new BoundedQueue<number>(1);
    queue.offer(1);
    const waiting = [queue.push(2), queue.push(3)];
    for await (const _ of queue) break;
    // The first had been let in when 1 was taken; it is dropped with the queue.
    expect(await Promise.all(waiting)).toEqual([true, false]);
    expect([queue.closed, queue.size, await queue.push(4)]).toEqual([true, 0, false]);
    expect(await rest(queue)).toEqual([]);
  });

  it("lets waiting producers go when the consumer gives up with an error", async () => {
    const queue = new BoundedQueue<number>(1);
    queue.offer(1);
    const waiting = queue.push(2);
    await expect(queue.throw(new Error("aborted"))).rejects.toThrow("aborted");
    expect([await waiting, queue.closed, queue.size]).toEqual([false, true, 0]);
  });

  it("lets a waiting producer go when its own caller leaves", async () => {
    const queue = new BoundedQueue<number>(1);
    queue.offer(1);
    const caller = new AbortController();
    const waiting = [queue.push(2, caller.signal), queue.push(3), queue.push(4, caller.signal)];
    caller.abort(new Error("left"));
    for (const left of [waiting[0], waiting[2], queue.push(5, caller.signal)])
      await expect(left).rejects.toThrow("left");
    queue.close();
    expect(await rest(queue)).toEqual([1, 3]);
    // Where there is room nobody waits, so nobody can leave while waiting.
    expect(await new BoundedQueue<number>(1).push(1, caller.signal)).toBe(true);
  });

  it("hands over what is queued and what producers brought before it ends", async () => {
    const queue = new BoundedQueue<number>(2);
    for (const item of [1, 2]) queue.offer(item);
    const waiting = queue.push(3);
    queue.close();
    expect(await waiting).toBe(true);
    expect(await rest(queue)).toEqual([1, 2, 3]);
  });

  it("hands over what is queued before it fails", async () => {
    const queue = new BoundedQueue<number>(2);
    queue.offer(1);
    queue.close(new Error("broken"));
    queue.close();
    expect(await queue.next()).toEqual({ done: false, value: 1 });
    for (let again = 0; again < 2; again++) await expect(queue.next()).rejects.toThrow("broken");
  });

  it("tells whoever waits that it ended, or why it failed", async () => {
    const ended = new BoundedQueue<number>(1);
    const failed = new BoundedQueue<number>(1);
    const reads = [ended.next(), failed.next()];
    ended.close();
    failed.close(new Error("broken"));
    expect(await reads[0]).toEqual({ done: true, value: undefined });
    await expect(reads[1]).rejects.toThrow("broken");
  });

  it("costs the same however much is queued", async () => {
    // A queue that moves its items at every read takes minutes for this.
    const queue = new BoundedQueue<number>(300_000);
    for (let item = 0; item < 300_000; item++) queue.offer(item);
    queue.close();
    let sum = 0;
    for await (const item of queue) sum += item;
    expect(sum).toBe((300_000 * 299_999) / 2);
  });
});
