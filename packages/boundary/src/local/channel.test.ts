import { closeSync, fstatSync, openSync } from "node:fs";
import { afterEach, describe, expect, it } from "vitest";
import { ByteWriter } from "./bytes.ts";
import { MessageChannel } from "./channel.ts";
import { FRAME_ERROR, FRAME_EXIT, FRAME_OK } from "./frames.ts";
import { type Addon, EVENT_CLOSED, EVENT_DATA, EVENT_WRITABLE } from "./native.ts";

/** An addon in memory: records what is sent, lets a test play init. */
function fakeAddon() {
  const state = { sent: [] as Buffer[], room: Number.POSITIVE_INFINITY, closed: false, watching: false };
  let callback: (event: number, data: unknown, fds: unknown) => void = () => {};
  const unused = () => {
    throw new Error("not used");
  };
  const addon: Addon = {
    connect: unused,
    open(_fd, given) {
      callback = given;
      return {};
    },
    send(_channel, bytes, offset) {
      const size = Math.min(bytes.length - offset, state.room);
      state.room -= size;
      state.sent.push(bytes.subarray(offset, offset + size));
      return size;
    },
    watch(_channel, writable) {
      state.watching = writable;
    },
    close() {
      state.closed = true;
    },
    getOption: unused,
    setOption: unused,
    setWindowSize: unused,
    duplicate: unused,
    lock: unused,
    harden: unused,
  };
  return { addon, state, emit: (event: number, data?: unknown, fds?: unknown) => callback(event, data, fds) };
}
const frame = (type: number, id: number, payload: Uint8Array, descriptors = 0, flags = 0): Buffer =>
  Buffer.concat([new ByteWriter().u32(payload.length).u16(type).u16(descriptors).u32(id).u32(flags).finish(), payload]);

const opened: number[] = [];
const descriptor = (): number => {
  const fd = openSync("/dev/null", "r");
  opened.push(fd);
  return fd;
};
const isOpen = (fd: number): boolean => {
  try {
    fstatSync(fd);
    return true;
  } catch {
    return false;
  }
};
afterEach(() => {
  for (const fd of opened.splice(0)) if (isOpen(fd)) closeSync(fd);
});

function open() {
  const fake = fakeAddon();
  const events: number[] = [];
  const closes: string[] = [];
  const channel = new MessageChannel(fake.addon, 99, {
    onEvent: ({ type }) => events.push(type),
    onClose: (reason) => closes.push(reason),
  });
  return { ...fake, channel, events, closes };
}

describe("MessageChannel", () => {
  it("gives each message its own descriptors, however the bytes are cut", async () => {
    for (const cut of [1, 7, 16, 17, 1000]) {
      const { channel, emit } = open();
      const [a, b, c] = [descriptor(), descriptor(), descriptor()];
      const first = channel.request(1, Buffer.alloc(0), ({ fds, payload }) => [...fds, payload.remaining().toString()]);
      const second = channel.request(1, Buffer.alloc(0), ({ fds }) => [...fds]);
      const bytes = Buffer.concat([
        frame(FRAME_OK, 1, Buffer.from("hello"), 1),
        frame(FRAME_OK, 2, Buffer.alloc(3), 2),
      ]);
      let fds: readonly number[] = [a, b, c];
      for (let at = 0; at < bytes.length; at += cut) {
        emit(EVENT_DATA, bytes.subarray(at, at + cut), fds);
        fds = [];
      }
      expect(await first).toEqual([a, "hello"]);
      expect(await second).toEqual([b, c]);
    }
  });

  it("decodes an answer before it looks at the next message", async () => {
    const { channel, emit, events } = open();
    const seen: number[] = [];
    const answer = channel.request(1, Buffer.alloc(0), () => seen.push(events.length));
    emit(EVENT_DATA, Buffer.concat([frame(FRAME_OK, 1, Buffer.alloc(0)), frame(FRAME_EXIT, 0, Buffer.alloc(0))]), []);
    await answer;
    expect(seen).toEqual([0]);
    expect(events).toEqual([FRAME_EXIT]);
  });

  it("puts the parts of a message together", async () => {
    const { channel, emit } = open();
    const answer = channel.request(1, Buffer.alloc(0), ({ payload }) => payload.remaining().length);
    const part = Buffer.alloc(60_000);
    emit(EVENT_DATA, Buffer.concat([frame(FRAME_OK, 1, part, 0, 1), frame(FRAME_OK, 1, part, 0, 0)]), []);
    expect(await answer).toBe(120_000);
  });

  it("turns a refusal into an error with step and errno", async () => {
    const { channel, emit } = open();
    const answer = channel.request(1, Buffer.alloc(0), () => {});
    emit(EVENT_DATA, frame(FRAME_ERROR, 1, new ByteWriter().string("exec").u32(2).string("x").finish()), []);
    await expect(answer).rejects.toMatchObject({ step: "exec", errno: "ENOENT", code: "boundary_request_failed" });
  });

  it("closes the descriptors of answers that nobody waits for, and lets their effect be undone", async () => {
    const { channel, emit } = open();
    const late: number[] = [];
    const answer = channel.request(
      1,
      Buffer.alloc(0),
      () => {},
      5,
      ({ payload }) => late.push(payload.u32()),
    );
    await expect(answer).rejects.toMatchObject({ code: "boundary_timeout" });
    const fd = descriptor();
    emit(EVENT_DATA, frame(FRAME_OK, 1, new ByteWriter().u32(42).finish(), 1), [fd]);
    expect(late).toEqual([42]);
    expect(isOpen(fd)).toBe(false);
  });

  it("closes descriptors when decoding fails", async () => {
    const { channel, emit } = open();
    const answer = channel.request(1, Buffer.alloc(0), ({ payload }) => payload.u32());
    const fd = descriptor();
    emit(EVENT_DATA, frame(FRAME_OK, 1, Buffer.alloc(2), 1), [fd]);
    await expect(answer).rejects.toThrow(RangeError);
    expect(isOpen(fd)).toBe(false);
  });

  it.each([
    ["too long", () => new ByteWriter().u32(70_000).u16(1).u16(0).u32(1).u32(0).finish()],
    ["with more descriptors than came", () => frame(FRAME_OK, 1, Buffer.alloc(0), 2)],
    ["with more descriptors than a frame may have", () => frame(FRAME_OK, 1, Buffer.alloc(0), 17)],
  ])("ends at a frame %s", async (_, bytes) => {
    const { channel, emit, state, closes } = open();
    const answer = channel.request(1, Buffer.alloc(0), () => {});
    emit(EVENT_DATA, bytes(), []);
    await expect(answer).rejects.toMatchObject({ code: "boundary_lost" });
    expect(state.closed).toBe(true);
    expect(closes).toHaveLength(1);
  });

  it("ends at a message that never ends", async () => {
    const { channel, emit, closes } = open();
    const part = frame(FRAME_OK, 1, Buffer.alloc(65_000), 0, 1);
    for (let i = 0; i < 70 && !channel.closed; i++) emit(EVENT_DATA, part, []);
    expect(closes[0]).toMatch(/too long/);
  });

  it("waits for a peer that lags and keeps the order", () => {
    const { channel, state, emit } = open();
    state.room = 10;
    void channel.request(1, Buffer.from("first"), () => {}).catch(() => {});
    void channel.request(2, Buffer.from("second"), () => {}).catch(() => {});
    expect(state.watching).toBe(true);
    state.room = Number.POSITIVE_INFINITY;
    emit(EVENT_WRITABLE);
    expect(state.watching).toBe(false);
    const all = Buffer.concat(state.sent).toString("latin1");
    expect(all.indexOf("first")).toBeLessThan(all.indexOf("second"));
    expect(all.length).toBe(2 * 16 + 5 + 6);
    channel.close("done");
  });

  it("gives up on a peer that does not read at all", async () => {
    const { channel, state, closes } = open();
    state.room = 0;
    const requests = [1, 2, 3].map(() => channel.request(1, Buffer.alloc(4 << 20), () => {}));
    for (const result of await Promise.allSettled(requests)) expect(result.status).toBe("rejected");
    expect(closes[0]).toMatch(/does not read/);
  });

  it("rejects everything pending, once, when the connection ends", async () => {
    const { channel, emit, closes } = open();
    const answers = [channel.request(1, Buffer.alloc(0), () => {}), channel.request(1, Buffer.alloc(0), () => {})];
    emit(EVENT_CLOSED, 0);
    emit(EVENT_CLOSED, 0);
    for (const answer of answers) await expect(answer).rejects.toMatchObject({ code: "boundary_lost" });
    await expect(channel.request(1, Buffer.alloc(0), () => {})).rejects.toMatchObject({ code: "boundary_lost" });
    expect(closes).toHaveLength(1);
  });
});
