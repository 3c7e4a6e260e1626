import { describe, expect, it } from "vitest";
import { storeProbe } from "./store-probe.ts";

describe("the probe of the store", () => {
  it("tells how long a read took, and that it failed", async () => {
    expect(await storeProbe(async () => 1.5)()).toEqual({ healthy: true, latencyMs: 1.5 });
    const failing = storeProbe(() => Promise.reject(new Error("disk")));
    expect(await failing()).toEqual({ healthy: false, latencyMs: undefined });
    expect(await failing()).toEqual({ healthy: false, latencyMs: undefined });
  });

  it("shares one read between all who ask meanwhile, and reads again afterwards", async () => {
    let reads = 0;
    const waiting: ((ms: number) => void)[] = [];
    const probe = storeProbe(() => {
      reads += 1;
      return new Promise((resolve) => waiting.push(resolve));
    });
    const asked = [probe(), probe(), probe()];
    waiting[0]!(7);
    expect(await Promise.all(asked)).toEqual(Array(3).fill({ healthy: true, latencyMs: 7 }));
    expect(reads).toBe(1);
    const later = probe();
    waiting[1]!(8);
    expect(await later).toEqual({ healthy: true, latencyMs: 8 });
  });

  it("keeps one read in a store that hangs, however often it is asked", async () => {
    let reads = 0;
    let answer = (_ms: number): void => {};
    const probe = storeProbe(() => {
      reads += 1;
      return new Promise((resolve) => {
        answer = resolve;
      });
    }, 5);
    for (let asked = 0; asked < 3; asked++) expect(await probe()).toMatchObject({ healthy: false });
    expect(reads).toBe(1);
    const asked = probe();
    answer(30);
    expect(await asked).toEqual({ healthy: true, latencyMs: 30 });
  });
});
