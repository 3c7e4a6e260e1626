import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Code, type ConnectError } from "@connectrpc/connect";
import { ExecSandboxEventSchema, readErrorDetails } from "@openshell/api";
import {
  type RelayDownlink,
  RelayKind,
  type RelayUplink,
  RelayUplinkSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, systemClock } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { describe, expect, it } from "vitest";
import { Attachments } from "./attachments.ts";
import { RelayBroker, type RelayChannel, RelayUnopened } from "./broker.ts";
import { type ExecInput, type SplicedEvent, spliceExec } from "./exec.ts";
import { MAX_PENDING_RELAYS_PER_SANDBOX, RELAY_DOWNLINK_QUEUE, RELAY_OPEN_TIMEOUT_MS } from "./limits.ts";

type EventPayload = Parameters<typeof create<typeof ExecSandboxEventSchema>>[1];

const event = (payload: NonNullable<EventPayload>["payload"]): RelayUplink =>
  create(RelayUplinkSchema, {
    message: {
      case: "execEvent",
      value: toBinary(ExecSandboxEventSchema, create(ExecSandboxEventSchema, { payload: payload! })),
    },
  });
const stdout = (data: string | Uint8Array) => event({ case: "stdout", value: { data: Buffer.from(data as string) } });
const exit = (exitCode: number) => event({ case: "exit", value: { exitCode } });

/** A session that lives on. */
const never = () => () => {};

/** Opens a relay and plays its host. */
async function openRelay(streamSignal = new AbortController().signal) {
  const broker = new RelayBroker(systemClock);
  const uplink = new BoundedQueue<RelayUplink>(4);
  let down!: AsyncIterator<RelayDownlink>;
  const send = ({ relayId }: { relayId: string }): boolean => {
    down = broker.claim(relayId, "s", uplink[Symbol.asyncIterator](), streamSignal);
    // The start frame.
    void down.next();
    return true;
  };
  const cancelled: string[] = [];
  const cancel = (relayId: string) => void cancelled.push(relayId);
  const channel = await broker.open("s", RelayKind.EXEC, { send, cancel, onEnd: never });
  return { broker, uplink, down, channel, cancelled };
}
const splice = (channel: RelayChannel, input?: AsyncIterable<ExecInput>, signal = new AbortController().signal) =>
  decodeEach(spliceExec({ channel, start: { case: "exec", value: { command: ["x"] } as never }, input, signal }));

async function* decodeEach(events: AsyncIterable<SplicedEvent>) {
  for await (const { bytes, exit } of events) {
    const decoded = fromBinary(ExecSandboxEventSchema, bytes);
    expect(exit).toEqual(decoded.payload.case === "exit" ? decoded.payload.value : undefined);
    yield decoded;
  }
}

describe("relays", () => {
  it("pass events in order and end with the exact exit", async () => {
    const { uplink, channel } = await openRelay();
    for (const item of [stdout("a"), stdout("b"), exit(7)]) uplink.offer(item);
    const seen = [];
    for await (const { payload } of splice(channel)) {
      seen.push(payload.case === "exit" ? payload.value.exitCode : Buffer.from(payload.value!.data).toString());
    }
    expect(seen).toEqual(["a", "b", 7]);
  });

  it.each([
    ["its stream ends", (uplink: BoundedQueue<RelayUplink>) => uplink.close()],
    ["its stream breaks", (uplink: BoundedQueue<RelayUplink>) => uplink.close(new Error("reset"))],
  ])("never invent an exit when %s", async (_what, breakIt) => {
    const { uplink, channel } = await openRelay();
    uplink.offer(stdout("a"));
    breakIt(uplink);
    const seen: string[] = [];
    const run = async (): Promise<void> => {
      for await (const { payload } of splice(channel)) seen.push(payload.case!);
    };
    await expect(run()).rejects.toMatchObject({ code: Code.Unavailable });
    expect(seen).toEqual(["stdout"]);
  });

  it("refuse a host that comes in the very moment in which its caller leaves", async () => {
    const broker = new RelayBroker(systemClock);
    const caller = new AbortController();
    let relayId = "";
    const send = (open: { relayId: string }): boolean => {
      relayId = open.relayId;
      return true;
    };
    const opened = broker.open("s", RelayKind.EXEC, { send, cancel: () => {}, onEnd: never }, caller.signal);
    caller.abort(new Error("left"));
    const claimed = broker.claim(relayId, "s", new BoundedQueue<RelayUplink>(1), new AbortController().signal).next();
    await expect(opened).rejects.toThrow("left");
    await expect(claimed).rejects.toMatchObject({ code: Code.NotFound });
  });

  it("tell a host's refusal as it is", async () => {
    const { uplink, channel } = await openRelay();
    uplink.offer(
      create(RelayUplinkSchema, {
        message: { case: "failure", value: { code: "x", message: "no such folder", next: "make it" } },
      }),
    );
    await expect(splice(channel).next()).rejects.toMatchObject({
      code: Code.FailedPrecondition,
      rawMessage: "no such folder. make it",
    });
  });

  it("tell that a sandbox runs as many commands as it may, and when to try again", async () => {
    const { uplink, channel } = await openRelay();
    const value = {
      code: "too_many_relays",
      message: "the sandbox serves 256 commands already",
      next: "Wait",
      retryable: false,
    };
    uplink.offer(create(RelayUplinkSchema, { message: { case: "failure", value } }));
    const error = await splice(channel)
      .next()
      .catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: Code.ResourceExhausted, rawMessage: `${value.message}. Wait` });
    expect(readErrorDetails(error as ConnectError)).toMatchObject({ retryDelayMs: 100 });
  });

  it("slow the host down while the caller does not read", async () => {
    const { uplink, channel } = await openRelay();
    let sent = 0;
    const host = (async () => {
      for (let index = 0; index < 200; index++) {
        await uplink.push(stdout("x"));
        sent += 1;
      }
      await uplink.push(exit(0));
    })();
    const events = splice(channel);
    await events.next();
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(sent).toBeLessThan(10);
    let read = 1;
    for await (const { payload } of events) if (payload.case === "stdout") read += 1;
    expect(read).toBe(200);
    await host;
  });

  it("tell the host that the caller left although it does not read, and nothing when the result was read", async () => {
    const { channel, cancelled } = await openRelay();
    const caller = new AbortController();
    const input = (async function* (): AsyncGenerator<ExecInput> {
      for (;;) yield { kind: "stdin", data: new Uint8Array(1) };
    })();
    const waiting = splice(channel, input, caller.signal).next();
    await new Promise((resolve) => setTimeout(resolve, 10));
    caller.abort(new Error("left"));
    await expect(waiting).rejects.toThrow("left");
    expect(cancelled).toEqual([channel.relayId]);
    const other = await openRelay();
    other.uplink.offer(exit(0));
    for await (const _event of splice(other.channel)) {
      // Read to the end.
    }
    expect(other.cancelled).toEqual([]);
  });

  it("slow the caller's input down while the host does not read", async () => {
    const { uplink, down, channel } = await openRelay();
    let taken = 0;
    const input = (async function* (): AsyncGenerator<ExecInput> {
      for (; taken < 1_000; taken++) yield { kind: "stdin", data: Buffer.from("x") };
    })();
    const events = splice(channel, input);
    const first = events.next();
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(taken).toBeLessThan(RELAY_DOWNLINK_QUEUE + 4);
    let received = 0;
    for (;;) {
      const next = await down.next();
      if (next.done || next.value.message.case === "stdinClosed") break;
      if (next.value.message.case === "stdin") received += 1;
    }
    expect(received).toBe(1_000);
    uplink.offer(exit(0));
    expect((await first).value?.payload.case).toBe("exit");
  });

  it("end the process when the caller leaves, even while the host says nothing", async () => {
    const { down, channel } = await openRelay();
    const caller = new AbortController();
    const events = splice(channel, undefined, caller.signal);
    const first = events.next();
    await down.next();
    caller.abort(new Error("left"));
    await expect(first).rejects.toThrow("left");
    await expect(down.next()).rejects.toThrow("the caller left");
  });

  it("pass on what is wrong with the caller's input", async () => {
    const { channel } = await openRelay();
    const input = (async function* (): AsyncGenerator<ExecInput> {
      yield { kind: "resize", rows: 1, columns: 1 };
      throw new RangeError("second start");
    })();
    await expect(splice(channel, input).next()).rejects.toThrow("second start");
  });

  it("can be claimed once, by their own sandbox only", async () => {
    const broker = new RelayBroker(systemClock);
    const refused: Promise<unknown>[] = [];
    const send = ({ relayId }: { relayId: string }): boolean => {
      const claim = (id: string, sandbox: string) =>
        broker
          .claim(id, sandbox, new BoundedQueue<RelayUplink>(1)[Symbol.asyncIterator](), new AbortController().signal)
          .next();
      for (const [id, sandbox] of [
        ["x", "s"],
        [relayId, "other"],
      ] as const)
        refused.push(claim(id, sandbox));
      void claim(relayId, "s");
      refused.push(claim(relayId, "s"));
      return true;
    };
    await broker.open("s", RelayKind.EXEC, { send, cancel: () => {}, onEnd: never });
    for (const result of refused) await expect(result).rejects.toMatchObject({ code: Code.NotFound });
    expect(broker.pending).toBe(0);
  });

  it("are given up as not opened when the session ends first, or cannot be told", async () => {
    const broker = new RelayBroker(systemClock);
    const ended = Promise.withResolvers<void>();
    const onEnd = (callback: () => void) => {
      void ended.promise.then(callback);
      return () => {};
    };
    const waiting = broker.open("s", RelayKind.EXEC, { send: () => true, cancel: () => {}, onEnd });
    ended.resolve();
    await expect(waiting).rejects.toBeInstanceOf(RelayUnopened);
    await expect(
      broker.open("s", RelayKind.EXEC, { send: () => false, cancel: () => {}, onEnd: never }),
    ).rejects.toBeInstanceOf(RelayUnopened);
    expect(broker.pending).toBe(0);
  });

  it("are limited for each sandbox, and leave room for others", async () => {
    const broker = new RelayBroker(systemClock);
    const caller = new AbortController();
    const open = (sandbox: string) =>
      broker
        .open(sandbox, RelayKind.EXEC, { send: () => true, cancel: () => {}, onEnd: never }, caller.signal)
        .catch((error: unknown) => error);
    const waiting = Array.from({ length: MAX_PENDING_RELAYS_PER_SANDBOX }, () => open("busy"));
    expect(await open("busy")).toMatchObject({ code: Code.ResourceExhausted });
    const other = open("other");
    expect(broker.pending).toBe(MAX_PENDING_RELAYS_PER_SANDBOX + 1);
    caller.abort(new Error("enough"));
    await Promise.all([...waiting, other]);
    expect(broker.pending).toBe(0);
  });

  it("are given up when the host does not open them in time", async () => {
    const sleeps: number[] = [];
    const clock: Clock = { ...systemClock, sleep: async (ms) => void sleeps.push(ms) };
    const broker = new RelayBroker(clock);
    await expect(
      broker.open("s", RelayKind.EXEC, { send: () => true, cancel: () => {}, onEnd: never }),
    ).rejects.toMatchObject({
      code: Code.DeadlineExceeded,
    });
    expect(sleeps).toEqual([RELAY_OPEN_TIMEOUT_MS]);
    expect(broker.pending).toBe(0);
  });
});

describe("attachments", () => {
  it("hold an ended main process for those who are there, and for one who was announced", async () => {
    const attachments = new Attachments();
    await attachments.drained("nobody", false, systemClock);
    let drained = false;
    const wait = attachments.drained("s", true, systemClock).then(() => {
      drained = true;
    });
    await new Promise((resolve) => setTimeout(resolve, 5));
    const end = attachments.begin("s");
    await new Promise((resolve) => setTimeout(resolve, 5));
    expect(drained).toBe(false);
    end();
    end();
    await wait;
  });

  it("end after the grace, and when the sandbox is stopped", async () => {
    let now = 0;
    const sleep = async (ms: number): Promise<void> => {
      now += ms;
    };
    const clock: Clock = { now: () => now, monotonic: () => now, sleep };
    await new Attachments().drained("s", true, clock);
    const attachments = new Attachments();
    attachments.begin("s");
    const wait = attachments.drained("s", false, systemClock);
    attachments.reset("s");
    await wait;
  });
});
