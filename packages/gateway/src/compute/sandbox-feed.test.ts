import { create } from "@bufbuild/protobuf";
import { LogBatchSchema } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { describe, expect, it } from "vitest";
import { ALL_LOG_BYTES, ALL_LOG_LINES, LOG_BYTES, LOG_LINES } from "./limits.ts";
import { SandboxFeeds } from "./sandbox-feed.ts";

let spaces = 0;
const feeds = () => new SandboxFeeds(() => (spaces++).toString(16).padStart(16, "0"));
const batch = (count: number, message = "m") =>
  create(LogBatchSchema, { lines: Array.from({ length: count }, (_, index) => ({ message: `${message}${index}` })) });

describe("log lines of all sandboxes", () => {
  it("are limited for each of them", () => {
    const feed = feeds().of("box");
    feed.addLines(batch(LOG_LINES + 10));
    expect(feed.logs).toHaveLength(LOG_LINES);
    expect(feed.logs[0]?.line.message).toBe("m10");
    // What was dropped is known to be: a watcher that resumes before it is told.
    expect(feed.after(9)).toBeUndefined();
    expect(feed.after(10)).toHaveLength(LOG_LINES);
  });

  it("are limited for all together: the loudest lose their oldest, the quiet lose nothing", () => {
    const all = feeds();
    all.of("quiet").addLines(batch(3, "quiet"));
    const loud = ALL_LOG_LINES / LOG_LINES + 10;
    for (let index = 0; index < loud; index += 1) {
      all.of(`loud-${index}`).addLines(batch(LOG_LINES));
      expect(all.lines).toBeLessThanOrEqual(ALL_LOG_LINES);
    }
    expect(all.of("quiet").logs.map(({ line }) => line.message)).toEqual(["quiet0", "quiet1", "quiet2"]);
    expect(all.lines).toBeGreaterThan(ALL_LOG_LINES / 2);
    for (let index = 0; index < loud; index += 1)
      expect(all.of(`loud-${index}`).logs.at(-1)?.line.message).toBe(`m${LOG_LINES - 1}`);
  });

  it("are limited in their text as well", () => {
    const all = feeds();
    const text = "x".repeat(8_000);
    const full = Math.ceil(ALL_LOG_BYTES / LOG_BYTES) + 3;
    const some = batch(Math.ceil(LOG_BYTES / text.length) + 1, text);
    let kept = 0;
    for (let index = 0; index < full; index += 1) all.of(`loud-${index}`).addLines(some);
    for (let index = 0; index < full; index += 1)
      kept += all.of(`loud-${index}`).logs.reduce((sum, { line }) => sum + line.message.length, 0);
    expect(kept).toBeLessThanOrEqual(ALL_LOG_BYTES);
    expect(kept).toBeGreaterThan(ALL_LOG_BYTES / 2);
  });

  it("of a sandbox that is gone make room", () => {
    const all = feeds();
    all.of("box").addLines(batch(100));
    all.remove("box");
    expect(all.lines).toBe(0);
  });
});
