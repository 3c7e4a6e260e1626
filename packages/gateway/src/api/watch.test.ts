import { create } from "@bufbuild/protobuf";
import { Code, type HandlerContext } from "@connectrpc/connect";
import { SandboxPhase, type SandboxStreamEvent, WatchSandboxRequestSchema } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { WATCH_QUEUE } from "../compute/limits.ts";
import { SandboxFeeds } from "../compute/sandbox-feed.ts";
import type { ApiDeps } from "./context.ts";
import { Harness } from "./testing/harness.ts";
import { watchHandlers } from "./watch.ts";

describe("watching a sandbox", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  const watch = (options: object) =>
    gateway.client.watchSandbox({ workspaceScope: gateway.scope, sandbox: "box", ...options });
  async function take(events: AsyncIterable<SandboxStreamEvent>, count: number): Promise<SandboxStreamEvent[]> {
    const seen: SandboxStreamEvent[] = [];
    for await (const event of events) {
      seen.push(event);
      if (seen.length === count) break;
    }
    return seen;
  }
  const log = (message: string, level = "INFO") => ({ level, message, target: "t", source: "sandbox", fields: {} });
  const send = async (...lines: ReturnType<typeof log>[]): Promise<void> => {
    const { metadata } = await gateway.get();
    gateway.host!.attached.get(metadata!.id)!.send({ case: "logs", value: { lines } });
    await gateway.until(async () => {
      const { logs } = await gateway.client.getSandboxLogs({ workspaceScope: gateway.scope, sandbox: "box" });
      return logs.at(-1)?.message === lines.at(-1)?.message;
    }, "lines arrived");
  };

  it("begins with a snapshot, follows the phases and ends when asked to at READY", async () => {
    await gateway.create();
    const phases: SandboxPhase[] = [];
    for await (const event of watch({ followStatus: true, stopOnTerminal: true })) {
      if (event.payload.case === "sandbox") phases.push(event.payload.value.status!.phase);
    }
    expect(phases[0]).toBe(SandboxPhase.PROVISIONING);
    expect(phases.at(-1)).toBe(SandboxPhase.READY);
  });

  it("ends when the sandbox is deleted", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    const events = watch({ followStatus: true });
    const all = take(events, 1_000);
    await new Promise((resolve) => setTimeout(resolve, 20));
    await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect((await all).every((event) => event.payload.case === "sandbox")).toBe(true);
  });

  it("tells the life of the sandbox as events, and as the gateway's lines in its log", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    const events = await take(watch({ followEvents: true, eventTail: 10 }), 2);
    expect(events[1]?.payload.value).toMatchObject({
      reason: "Ready",
      message: "the workload runs under policy version 1",
    });
    const request = { workspaceScope: gateway.scope, sandbox: "box", sources: ["gateway"] };
    const { logs } = await gateway.client.getSandboxLogs(request);
    expect(logs.map(({ level, source, message }) => [level, source, message])).toEqual([
      ["INFO", "gateway", "Ready: the workload runs under policy version 1"],
    ]);
  });

  it("gives the tail, then live lines, each once, filtered by level", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    await send(log("one"), log("two", "DEBUG"), log("three"));
    const events = take(watch({ followLogs: true, logMinLevel: "INFO", logSources: ["sandbox"] }), 4);
    await new Promise((resolve) => setTimeout(resolve, 20));
    await send(log("four", "TRACE"), log("five", "ERROR"));
    const messages = (await events).flatMap(({ payload }) => (payload.case === "log" ? [payload.value.message] : []));
    expect(messages).toEqual(["one", "three", "five"]);
  });

  it("resumes after a cursor without a gap or a double", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    await send(log("one"), log("two"), log("three"));
    const seen = await take(watch({ followLogs: true, logSources: ["sandbox"] }), 4);
    const cursors = seen.map(({ cursor }) => cursor);
    expect(cursors[0]).toBe("");
    expect(cursors.slice(1)).toEqual(cursors.slice(1).toSorted());
    const rest = await take(watch({ followLogs: true, resumeAfterCursor: cursors[1] }), 3);
    expect(rest.flatMap(({ payload }) => (payload.case === "log" ? [payload.value.message] : []))).toEqual([
      "two",
      "three",
    ]);
  });

  it("refuses a cursor nobody issued, and says when its place is gone", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    await send(log("one"));
    const after = (resumeAfterCursor: string) => take(watch({ followLogs: true, resumeAfterCursor }), 2);
    await expect(after("garbage")).rejects.toMatchObject({ code: Code.InvalidArgument });
    const [, line] = await take(watch({ followLogs: true }), 2);
    const [space, place] = line!.cursor.split("-");
    expect(Number(place)).toBeGreaterThan(0);
    for (const beyond of ["9".repeat(16), String(Number(place) + 1_000).padStart(16, "0")]) {
      await expect(after(`${space}-${beyond}`)).rejects.toMatchObject({ code: Code.InvalidArgument });
    }
    await expect(after(`${"0".repeat(16)}-${"0".repeat(16)}`)).rejects.toMatchObject({ code: Code.OutOfRange });
  });

  it("says that the place of an old cursor is gone, and still resumes after the oldest line that is held", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    await send(log("first"));
    const old = (await take(watch({ followLogs: true, logSources: ["sandbox"] }), 2))[1]!.cursor;
    await send(...Array.from({ length: 1_000 }, (_, index) => log(`a ${index}`)));
    const kept = (await take(watch({ followLogs: true, logTailLines: 1 }), 2))[1]!.cursor;
    await send(...Array.from({ length: 1_500 }, (_, index) => log(`b ${index}`)));
    const after = (resumeAfterCursor: string, count: number) =>
      take(watch({ followLogs: true, resumeAfterCursor }), count);
    await expect(after(old, 2)).rejects.toMatchObject({ code: Code.OutOfRange });
    const rest = await after(kept, 1_501);
    const messages = rest.flatMap(({ payload }) => (payload.case === "log" ? [payload.value.message] : []));
    expect([messages.length, messages[0], messages.at(-1)]).toEqual([1_500, "b 0", "b 1499"]);
    const cursors = rest.map(({ cursor }) => cursor).filter((cursor) => cursor !== "");
    expect(cursors).toEqual(cursors.toSorted());
    expect(new Set(cursors.map(({ length }) => length)).size).toBe(1);
  });

  it("leaves out what is older than asked for, kept and live", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    const at = (seconds: bigint, message: string) => ({ ...log(message), time: { seconds, nanos: 0 } });
    await send(at(10n, "kept old"), at(30n, "kept new"));
    const sinceTime = { seconds: 20n, nanos: 0 };
    const events = take(watch({ followLogs: true, logSources: ["sandbox"], sinceTime }), 3);
    await new Promise((resolve) => setTimeout(resolve, 20));
    await send(at(15n, "live old"), at(20n, "live new"));
    const messages = (await events).flatMap(({ payload }) => (payload.case === "log" ? [payload.value.message] : []));
    expect(messages).toEqual(["kept new", "live new"]);
  });

  it.each([
    ["READY", undefined],
    ["COMPLETED", 0],
    ["ERROR", 7],
    ["STOPPED", "stop"],
  ] as const)(
    "ends at %s when asked to end at a terminal phase, with that phase as its last word",
    async (phase, end) => {
      const { metadata } = await gateway.create();
      await gateway.phase(SandboxPhase.READY);
      if (end === "stop") await gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" });
      else if (end !== undefined) gateway.host!.attached.get(metadata!.id)!.exit(end);
      await gateway.phase(SandboxPhase[phase]);
      const seen: string[] = [];
      for await (const { payload } of watch({ stopOnTerminal: true }))
        if (payload.case === "sandbox") seen.push(SandboxPhase[payload.value.status!.phase]);
      expect(seen).toEqual([phase]);
    },
  );

  it("refuses a cursor of another sandbox, and of one of the same name before it", async () => {
    await gateway.create();
    await gateway.create({ name: "other" });
    await gateway.phase(SandboxPhase.READY);
    await gateway.phase(SandboxPhase.READY, "other");
    await send(log("one"));
    const cursor = (await take(watch({ followLogs: true }), 2))[1]!.cursor;
    const after = (sandbox: string) => take(watch({ sandbox, followLogs: true, resumeAfterCursor: cursor }), 2);
    await expect(after("other")).rejects.toMatchObject({ code: Code.OutOfRange });
    await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    await expect(after("box")).rejects.toMatchObject({ code: Code.OutOfRange });
  });

  it("tells a reader that was too slow how much it missed, and goes on", async () => {
    await gateway.create();
    const { id } = (await gateway.store.sandboxes.byName("default", "box"))!;
    const feeds = new SandboxFeeds(() => "f".repeat(16));
    const feed = feeds.of(id);
    const { watchSandbox } = watchHandlers({
      store: gateway.store,
      feeds,
      stopping: new AbortController().signal,
    } as unknown as ApiDeps);
    const request = create(WatchSandboxRequestSchema, {
      workspaceScope: gateway.scope,
      sandbox: "box",
      followEvents: true,
    });
    const context = { signal: new AbortController().signal } as unknown as HandlerContext;
    const stream = (watchSandbox(request, context) as AsyncGenerator<SandboxStreamEvent>)[Symbol.asyncIterator]();
    expect((await stream.next()).value?.payload.case).toBe("sandbox");
    // All at once: nobody can read meanwhile.
    const note = { type: "Normal", reason: "Test" } as const;
    for (let index = 0; index < 3 * WATCH_QUEUE; index++) feed.addEvent({ ...note, message: `${index}` }, 0);
    const seen: SandboxStreamEvent[] = [];
    while (seen.at(-1)?.payload.case !== "warning") seen.push((await stream.next()).value!);
    expect(seen.at(-1)).toMatchObject({ cursor: "" });
    const { message } = seen.at(-1)!.payload.value as { message: string };
    // The gap is told where it is: the last cursor before it is where to go on.
    expect(message).toMatch(/^\d+ events were skipped/);
    const resume = /resume_after_cursor (\S+)/.exec(message)![1]!;
    const before = seen.findLast(({ cursor }) => cursor !== "")!.cursor;
    // Nothing lies between the two but a log line, which this stream does not follow.
    expect([0, 1]).toContain(Number(resume.split("-")[1]) - Number(before.split("-")[1]));
    while (seen.filter(({ payload }) => payload.case === "event").length < WATCH_QUEUE / 2)
      seen.push((await stream.next()).value!);
    const cursors = seen.flatMap(({ cursor }) => (cursor === "" ? [] : [cursor]));
    expect(cursors).toEqual(cursors.toSorted());
    // The queue holds older ones first: what comes after the gap comes too.
    feed.addEvent({ ...note, message: "last" }, 0);
    for (let last = ""; last !== "last"; ) {
      const { payload } = (await stream.next()).value!;
      last = payload.case === "event" ? payload.value.message : last;
    }
    await stream.return?.(undefined);
  });

  it("refuses bounds, sources and levels that are none", async () => {
    await gateway.create();
    const bad = [
      { sinceTime: { seconds: 0n, nanos: -1 } },
      { sinceTime: { seconds: 253_402_300_800n } },
      { logSources: ["somewhere"] },
      { logMinLevel: "LOUD" },
    ];
    for (const request of bad)
      await expect(take(watch(request), 1)).rejects.toMatchObject({ code: Code.InvalidArgument });
  });

  it("shows what an agent wrote escaped, and drops the oldest lines at the limit", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    const last = log("\u001b[31mred\nforged line");
    await send(...Array.from({ length: 2_100 }, (_, index) => log(`line ${index}`)));
    await send(last, log("end"));
    const { logs, bufferTotal } = await gateway.client.getSandboxLogs({
      workspaceScope: gateway.scope,
      sandbox: "box",
    });
    expect(logs.at(-2)?.message).toBe("\\x1b[31mred\\x0aforged line");
    expect(bufferTotal).toBe(2_000);
    expect(logs[0]?.message).toBe("line 102");
    const few = await gateway.client.getSandboxLogs({ workspaceScope: gateway.scope, sandbox: "box", lines: 2 });
    expect(few.logs).toHaveLength(2);
  });
});
