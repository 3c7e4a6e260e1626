import { describe, expect, it } from "vitest";
import { BoundedQueue } from "./queue.ts";

describe("BoundedQueue", () => {
  it("keeps the order and refuses what does not fit", async () => {
    const queue = new BoundedQueue<number>(2);
    expect([queue.offer(1), queue.offer(2), queue.offer(3)]).toEqual([true, true, false]);
    queue.close();
    const seen: number[] = [];
    for await (const item of queue) seen.push(item);
    expect(seen).toEqual([1, 2]);
    expect(queue.offer(4)).toBe(false);
  });

  it("slows a producer down to its consumer's speed", async () => {
    const queue = new BoundedQueue<number>(4);
    let pushed = 0;
    const producer = (async () => {
      for (let item = 0; item < 5_000; item++) {
        await queue.push(item);
        pushed += 1;
      }
      queue.close();
    })();
    let read = 0;
    for await (const item of queue) {
      expect(item).toBe(read);
      read += 1;
      expect(pushed - read).toBeLessThanOrEqual(5);
    }
    await producer;
    expect(read).toBe(5_000);
  });

  it("lets a waiting producer go when the consumer leaves", async () => {
    const queue = new BoundedQueue<number>(1);
    queue.offer(1);
    const code = (error: { code: string }): string => error.code;
    const waiting = [queue.push(2).catch(code), queue.push(3).catch(code)];
    for await (const _ of queue) break;
    expect((await Promise.all(waiting)).at(-1)).toBe("queue_closed");
  });

  it("lets a waiting producer go when its own caller leaves", async () => {
    const queue = new BoundedQueue<number>(1);
    queue.offer(1);
    const caller = new AbortController();
    const waiting = queue.push(2, caller.signal);
    caller.abort(new Error("left"));
    await expect(waiting).rejects.toThrow("left");
    expect(queue.size).toBe(1);
  });

  it("hands over what is queued before it fails", async () => {
    const queue = new BoundedQueue<number>(2);
    queue.offer(1);
    queue.close(new Error("broken"));
    const seen: number[] = [];
    const read = async (): Promise<void> => {
      for await (const item of queue) seen.push(item);
    };
    await expect(read()).rejects.toThrow("broken");
    expect(seen).toEqual([1]);
  });
});
