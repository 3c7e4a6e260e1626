import { afterEach, describe, expect, it, vi } from "vitest";
import { systemClock } from "./clock.ts";

describe("systemClock.sleep", () => {
  afterEach(() => vi.useRealTimers());

  it("waits for longer than a timer of Node can, instead of not at all", async () => {
    vi.useFakeTimers();
    const month = 31 * 24 * 3_600_000;
    let woken = false;
    void systemClock.sleep(month).then(() => {
      woken = true;
    });
    await vi.advanceTimersByTimeAsync(month - 1);
    expect(woken).toBe(false);
    await vi.advanceTimersByTimeAsync(1);
    expect(woken).toBe(true);
  });

  it("ends a long wait when it is aborted", async () => {
    const stop = new AbortController();
    const sleep = systemClock.sleep(365 * 24 * 3_600_000, { signal: stop.signal });
    stop.abort(new Error("enough"));
    await expect(sleep).rejects.toThrow("enough");
  });
});
