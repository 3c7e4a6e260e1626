import { mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Clock } from "@openshell/base/clock.ts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { EventLog } from "./event-log.ts";
import type { OcsfEvent } from "./events.ts";
import { RotatingFile } from "./writer.ts";

let directory: string;
let now = Date.UTC(2026, 10, 29, 12);
const clock: Clock = {
  now: () => now,
  monotonic: () => now,
  sleep: (_, options) =>
    new Promise((_resolve, reject) => options?.signal?.addEventListener("abort", () => reject(options.signal?.reason))),
};
const context = { sandboxId: "sb", sandboxName: "demo", productVersion: "0", hostname: "h" };
const event = (overrides: Partial<OcsfEvent> = {}): OcsfEvent =>
  ({
    class: "network",
    activity: "open",
    time: now,
    severity: "medium",
    action: "denied",
    destination: { host: "x", port: 1 },
    ...overrides,
  }) as OcsfEvent;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "openshell-ocsf-"));
  now = Date.UTC(2026, 10, 29, 12);
});
afterEach(async () => {
  await rm(directory, { recursive: true });
});

describe("EventLog", () => {
  it("writes one line and one record an event, for the owner only", async () => {
    const shown: string[] = [];
    await using log = new EventLog({ directory, context, clock, onLine: ({ text }) => shown.push(text) });
    log.emit(event());
    log.emit(event({ action: "allowed" }));
    await log.flush();
    const lines = (await readFile(join(directory, "openshell.2026-11-29.log"), "utf8")).trimEnd().split("\n");
    const records = (await readFile(join(directory, "openshell-ocsf.2026-11-29.jsonl"), "utf8")).trimEnd().split("\n");
    expect(lines).toHaveLength(2);
    expect(lines[0]).toBe("2026-11-29T12:00:00.000Z OCSF NET:OPEN [MED] DENIED x:1");
    expect(records.map((line) => JSON.parse(line).action)).toEqual(["Denied", "Allowed"]);
    expect(new Set(records.map((line) => JSON.parse(line).metadata.uid)).size).toBe(2);
    expect(shown).toHaveLength(2);
    expect((await stat(join(directory, "openshell.2026-11-29.log"))).mode & 0o777).toBe(0o600);
  });

  it("makes a missing folder, but never the folder of a sandbox that is gone", async () => {
    const errors: unknown[] = [];
    const options = { context, clock, onError: (error: unknown) => errors.push(error) };
    await using log = new EventLog({ ...options, directory: join(directory, "logs") });
    log.emit(event());
    await log.flush();
    expect((await stat(join(directory, "logs"))).mode & 0o777).toBe(0o700);
    expect(errors).toEqual([]);
    await using late = new EventLog({ ...options, directory: join(directory, "removed", "logs") });
    late.emit(event());
    await late.flush();
    expect(await readdir(directory)).toEqual(["logs"]);
    expect(errors.length).toBeGreaterThan(0);
  });

  it("writes records only while they are switched on", async () => {
    await using log = new EventLog({ directory, context, clock, json: false });
    log.emit(event());
    await log.flush();
    expect(await readdir(directory)).toEqual(["openshell.2026-11-29.log"]);
    log.json = true;
    log.emit(event());
    await log.flush();
    expect(await readdir(directory)).toContain("openshell-ocsf.2026-11-29.jsonl");
  });

  it("tells folded denials when it closes", async () => {
    const log = new EventLog({ directory, context, clock });
    for (let n = 0; n < 50; n += 1) log.emit(event());
    await log[Symbol.asyncDispose]();
    const lines = (await readFile(join(directory, "openshell.2026-11-29.log"), "utf8")).trimEnd().split("\n");
    expect(lines).toHaveLength(21);
    expect(lines.at(-1)).toContain("[folded:30]");
  });

  it("goes on without a folder and says what was lost", async () => {
    const errors: unknown[] = [];
    const missing = join(directory, "missing", "logs");
    const lines: string[] = [];
    await using log = new EventLog({
      directory: missing,
      context,
      clock,
      onError: (error) => errors.push(error),
      onLine: ({ text }) => lines.push(text),
    });
    log.emit(event());
    await log.flush();
    expect(errors.length).toBeGreaterThan(0);
    log.emit(event());
    expect(lines).toHaveLength(3);
    expect(lines[1]).toMatch(/^EVENT \[MED\] events were lost.*dropped:2/);
  });
});

describe("RotatingFile", () => {
  const options = {
    prefix: "p",
    suffix: ".log",
    clock,
    onError: (error: unknown) => expect.unreachable(String(error)),
  };

  it("starts a new file when one is full and deletes the oldest beyond the total", async () => {
    await using file = new RotatingFile({
      ...options,
      directory,
      maxFileBytes: 100,
      maxTotalBytes: 300,
      maxQueueBytes: 10_000,
    });
    await writeFile(join(directory, "p.2026-11-27.log"), "x".repeat(90));
    await writeFile(join(directory, "unrelated.log"), "kept");
    for (let n = 0; n < 5; n += 1) {
      file.append(`${n}`.repeat(59));
      await file.flush();
    }
    const names = await readdir(directory);
    expect(names).not.toContain("p.2026-11-27.log");
    expect(names).toContain("unrelated.log");
    let total = 0;
    for (const name of names.filter((entry) => entry.startsWith("p.")))
      total += (await stat(join(directory, name))).size;
    expect(total).toBeLessThanOrEqual(300);
    expect(names).toContain("p.2026-11-29.4.log");
  });

  it("continues the day's file after a restart and starts another the next day", async () => {
    const limits = { maxFileBytes: 1000, maxTotalBytes: 10_000, maxQueueBytes: 10_000 };
    for (const line of ["one", "two"]) {
      await using file = new RotatingFile({ ...options, ...limits, directory });
      file.append(line);
    }
    now += 86_400_000;
    await using file = new RotatingFile({ ...options, ...limits, directory });
    file.append("three");
    await file.flush();
    expect(await readFile(join(directory, "p.2026-11-29.log"), "utf8")).toBe("one\ntwo\n");
    expect(await readFile(join(directory, "p.2026-11-30.log"), "utf8")).toBe("three\n");
  });

  it("drops and counts what does not fit the queue", async () => {
    await using file = new RotatingFile({
      ...options,
      directory,
      maxFileBytes: 1000,
      maxTotalBytes: 10_000,
      maxQueueBytes: 20,
    });
    expect(file.append("0123456789")).toBe(true);
    expect(file.append("0123456789")).toBe(false);
    expect(file.takeDropped()).toBe(1);
    expect(file.takeDropped()).toBe(0);
    await file.flush();
    expect(file.append("0123456789")).toBe(true);
  });
});
