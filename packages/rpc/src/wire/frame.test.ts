import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { encodeFrame, type Frame, FrameReader } from "./frame.ts";
import { StatusCode } from "./status.ts";

function read(reader: FrameReader, chunks: readonly Uint8Array[]): Frame[] {
  const frames: Frame[] = [];
  for (const chunk of chunks) reader.push(chunk, frames);
  return frames;
}

describe("FrameReader", () => {
  it("finds messages whatever the chunks", () => {
    const messages = fc.array(fc.tuple(fc.uint8Array({ maxLength: 40 }), fc.nat(1)), { maxLength: 8 });
    const cuts = fc.array(fc.nat(30), { minLength: 1 });
    fc.assert(
      fc.property(messages, cuts, (given, sizes) => {
        const wire = Buffer.concat(given.map(([data, flags]) => encodeFrame(data, flags)));
        const chunks: Buffer[] = [];
        for (let offset = 0, turn = 0; offset < wire.length; turn++) {
          const size = sizes[turn % sizes.length]! + 1;
          chunks.push(wire.subarray(offset, offset + size));
          offset += size;
        }
        const reader = new FrameReader();
        const seen = read(reader, chunks);
        expect(seen.map(({ data, flags }) => [Buffer.from(data).toString("hex"), flags])).toEqual(
          given.map(([data, flags]) => [Buffer.from(data).toString("hex"), flags]),
        );
        expect(reader.idle).toBe(true);
      }),
    );
  });

  it("holds about the bytes of a message, however small its parts", () => {
    const message = Buffer.alloc(1024 * 1024, "0123456789");
    const frame = encodeFrame(message);
    const frames: Frame[] = [];
    const reader = new FrameReader();
    const before = process.memoryUsage().heapUsed;
    for (let at = 0; at < frame.length - 1; at++) reader.push(frame.subarray(at, at + 1), frames);
    expect(process.memoryUsage().heapUsed - before).toBeLessThan(60 * 1024 * 1024);
    reader.push(frame.subarray(-1), frames);
    expect(message.equals(frames[0]!.data)).toBe(true);
  });

  it("is not idle within a prefix or a message", () => {
    const frame = encodeFrame(Buffer.from("abc"));
    for (let cut = 1; cut < frame.length; cut++) {
      const reader = new FrameReader();
      expect(read(reader, [frame.subarray(0, cut)])).toEqual([]);
      expect(reader.idle).toBe(false);
    }
  });

  it("takes a message of exactly the limit, and refuses the prefix of a larger one", () => {
    expect(read(new FrameReader(3), [encodeFrame(Buffer.from("abc"))])).toHaveLength(1);
    expect(() => read(new FrameReader(3), [Buffer.from([0, 0, 0, 0, 4])])).toThrow(
      expect.objectContaining({
        code: StatusCode.resourceExhausted,
        message: "a message of 4 bytes exceeds the limit of 3 bytes: send less at once",
      }),
    );
    expect(() => read(new FrameReader(), [Buffer.from([0, 0xff, 0xff, 0xff, 0xff])])).toThrow(/4294967295 bytes/);
  });

  it("refuses flags that it does not know", () => {
    expect(() => read(new FrameReader(), [Buffer.from([2, 0, 0, 0, 0])])).toThrow(/unknown flags 2/);
    expect(read(new FrameReader(10, 3), [Buffer.from([2, 0, 0, 0, 0])])).toMatchObject([{ flags: 2 }]);
  });

  it("takes no memory for what a prefix announces and nobody sends", () => {
    const before = process.memoryUsage().arrayBuffers;
    const readers = Array.from({ length: 200 }, () => new FrameReader());
    for (const reader of readers) reader.push(Buffer.from([0, 0, 0x3f, 0xff, 0xff, 1]), []);
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(20e6);
  });
});
