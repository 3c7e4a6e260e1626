import { Code } from "@connectrpc/connect";
import { readErrorDetails } from "@openshell/api/errors.ts";
import { type Clock, systemClock } from "@openshell/base";
import { describe, expect, it } from "vitest";
import { KeyedMutex } from "./keyed-mutex.ts";

const refused = async (work: Promise<unknown>) => {
  const error = await work.then(
    () => expect.unreachable(),
    (thrown: unknown) => thrown as Parameters<typeof readErrorDetails>[0],
  );
  return { code: error.code, message: error.rawMessage, ...readErrorDetails(error) };
};

describe("KeyedMutex", () => {
  it("runs the tasks of one key one after the other, in order, whatever becomes of them, and other keys beside them", async () => {
    const mutex = new KeyedMutex(systemClock, "sandbox");
    const gate = Promise.withResolvers<void>();
    const seen: string[] = [];
    const first = mutex.run("a", "a", async () => {
      await gate.promise;
      seen.push("first");
      throw new Error("failed");
    });
    const second = mutex.run("a", "a", async () => void seen.push("second"));
    await mutex.run("b", "b", async () => void seen.push("other"));
    expect(seen).toEqual(["other"]);
    gate.resolve();
    await expect(first).rejects.toThrow("failed");
    await second;
    expect(seen).toEqual(["other", "first", "second"]);
  });

  it("gives up a wait with a reason and a delay, and lets those behind go on", async () => {
    const due: (() => void)[] = [];
    const clock: Clock = {
      ...systemClock,
      sleep: (_, { signal } = {}) =>
        new Promise((resolve, reject) => {
          due.push(resolve);
          signal?.addEventListener("abort", () => reject(signal.reason));
        }),
    };
    const mutex = new KeyedMutex(clock, "sandbox");
    const gate = Promise.withResolvers<void>();
    const holder = mutex.run("a", "box", () => gate.promise);
    const waiter = refused(mutex.run("a", "box", async () => expect.unreachable()));
    due[0]!();
    expect(await waiter).toMatchObject({
      code: Code.Unavailable,
      reason: "MUTATION_LOCK_TIMEOUT",
      retryDelayMs: 1_000,
      message: 'sandbox "box" is busy with another change. Try again',
      resource: { kind: "sandbox", name: "box" },
    });
    const last = mutex.run("a", "box", async () => "done");
    gate.resolve();
    await holder;
    expect(await last).toBe("done");
  });

  it("has a limit of waiters, which is told with a delay", async () => {
    const mutex = new KeyedMutex(systemClock, "sandbox");
    const gate = Promise.withResolvers<void>();
    const all = Array.from({ length: 64 }, () => mutex.run("a", "box", () => gate.promise));
    expect(await refused(mutex.run("a", "box", async () => {}))).toMatchObject({
      code: Code.ResourceExhausted,
      retryDelayMs: 1_000,
    });
    gate.resolve();
    await Promise.all(all);
    expect(await mutex.run("a", "box", async () => "free again")).toBe("free again");
  });
});
