import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { PROGRESS_DELAY_MS, Progress } from "./progress.ts";
import { styleFor } from "./style.ts";

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

const plain = styleFor(true, "never", {});

test("of nested waits only the innermost is shown, and the outer one comes back", () => {
  let written = "";
  const write = (text: string): void => {
    written += text;
  };
  const terminal = { isTTY: true, columns: 80, write } as unknown as NodeJS.WriteStream;
  const shown = (): string => {
    const text = written;
    written = "";
    return text;
  };
  using _outer = Progress.start(terminal, plain, "Starting the sandbox");
  const inner = Progress.start(terminal, plain, "Starting the gateway");
  vi.advanceTimersByTime(2 * PROGRESS_DELAY_MS);
  const during = shown();
  expect(during).toContain("Starting the gateway");
  expect(during).not.toContain("Starting the sandbox");
  inner.stop();
  shown();
  vi.advanceTimersByTime(PROGRESS_DELAY_MS);
  expect(shown()).toContain("Starting the sandbox");
});
