import { Code } from "@connectrpc/connect";
import { SandboxPhase, type SandboxStreamEvent } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "./testing/harness.ts";

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
    await expect(after(`${"0".repeat(16)}-${"0".repeat(16)}`)).rejects.toMatchObject({ code: Code.OutOfRange });
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
