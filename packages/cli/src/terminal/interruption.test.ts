import { expect, test, vi } from "vitest";
import { Interruption } from "./interruption.ts";

/** As if the signal had arrived: the listeners of this process are called, no process is signalled. */
const deliver = (signal: NodeJS.Signals) => process.emit(signal, signal);

test("a signal that timeout(1) sends twice is one; a later one does not wait", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  try {
    using interruption = Interruption.listen();
    const asked = vi.fn();
    interruption.onFirst(asked);
    deliver("SIGTERM");
    deliver("SIGTERM");
    expect(asked).toHaveBeenCalledTimes(1);
    expect(interruption.atOnce.aborted).toBe(false);
    vi.advanceTimersByTime(150);
    deliver("SIGTERM");
    expect(interruption.atOnce.aborted).toBe(true);
    expect(interruption.exitCode(0)).toBe(143);
  } finally {
    vi.useRealTimers();
  }
});

test("another signal at once is no repetition", () => {
  using interruption = Interruption.listen();
  interruption.onFirst(() => {});
  deliver("SIGINT");
  deliver("SIGTERM");
  expect(interruption.atOnce.aborted).toBe(true);
});
