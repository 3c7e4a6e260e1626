import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { ByteReader, ByteWriter } from "./bytes.ts";
import { formatIpv6 } from "./descriptors.ts";
import { encodeMessage, FLAG_MORE, FRAME_HEAD_BYTES, FRAME_MAX_BYTES, readFrameHead } from "./frames.ts";
import { addressBytes, decodeAnswers, encodeSpawn } from "./messages.ts";

describe("answers to canaries", () => {
  it("are a whole number a line, one for each", () => {
    expect(decodeAnswers("-1\n0\n18446744\n", 3)).toEqual([-1n, 0n, 18446744n]);
  });
  it.each(["", "-1\n0", "-1\n", "-1\n0\n0\n", "x\n0\n", " 1\n0\n", "0x1\n0\n", `${"9".repeat(40)}\n0\n`])(
    "are none in %j",
    (text) => {
      expect(decodeAnswers(text, 2)).toBeUndefined();
    },
  );
});

describe("bytes", () => {
  it("reads what was written and nothing beyond", () => {
    fc.assert(
      fc.property(
        fc.nat(255),
        fc.nat(65_535),
        fc.nat(0xffff_ffff),
        fc.bigInt(0n, (1n << 64n) - 1n),
        fc.string({ unit: "binary" }).filter((text) => !text.includes("\0") && text.isWellFormed()),
        fc.uint8Array(),
        (a, b, c, d, text, raw) => {
          const w = new ByteWriter().u8(a).u16(b).u32(c).u64(d).string(text).bytes(raw).flag(true);
          const r = new ByteReader(w.finish());
          expect([r.u8(), r.u16(), r.u32(), r.u64(), r.string()]).toEqual([a, b, c, d, text]);
          expect([...r.bytes()]).toEqual([...raw]);
          expect(r.flag()).toBe(true);
          expect(r.rest).toBe(0);
          expect(() => r.u8()).toThrow(RangeError);
        },
      ),
    );
  });

  it("never reads beyond a lying length", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 64 }), (raw) => {
        const r = new ByteReader(raw);
        try {
          while (r.rest > 0) r.bytes();
        } catch (error) {
          expect(error).toBeInstanceOf(RangeError);
        }
      }),
    );
  });
});

describe("frames", () => {
  it("cut a message into parts of at most 64 KiB that say whether more follows", () => {
    const message = encodeMessage(5, 77, Buffer.alloc(150_000, 1));
    const heads: ReturnType<typeof readFrameHead>[] = [];
    for (let at = 0; at < message.length; ) {
      const head = readFrameHead(message.subarray(at, at + FRAME_HEAD_BYTES));
      heads.push(head);
      at += FRAME_HEAD_BYTES + head.size;
    }
    expect(heads.map(({ size }) => size)).toEqual([65_520, 65_520, 18_960]);
    expect(heads.map(({ more }) => more)).toEqual([true, true, false]);
    expect(heads.every(({ id, type, descriptors }) => id === 77 && type === 5 && descriptors === 0)).toBe(true);
  });

  it("are refused beyond their limits", () => {
    const head = (size: number, fds: number) =>
      new ByteWriter().u32(size).u16(1).u16(fds).u32(1).u32(FLAG_MORE).finish();
    expect(() => readFrameHead(head(FRAME_MAX_BYTES - FRAME_HEAD_BYTES + 1, 0))).toThrow(RangeError);
    expect(() => readFrameHead(head(0, 17))).toThrow(RangeError);
    expect(() => encodeMessage(1, 1, Buffer.alloc((4 << 20) + 1))).toThrow(RangeError);
  });
});

describe("addresses", () => {
  it.each([
    ["2001:db8::1", "20010db8000000000000000000000001"],
    ["::", "00000000000000000000000000000000"],
    ["fe80::1%lo", "fe800000000000000000000000000001"],
    ["1:2:3:4:5:6:7:8", "00010002000300040005000600070008"],
    ["::ffff:1.2.3.4", "00000000000000000000ffff01020304"],
  ])("%s", (text, hex) => {
    expect(addressBytes(text, 6).toString("hex")).toBe(hex);
  });

  it("of IPv6 survive text and back", () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: 16, maxLength: 16 }), (bytes) => {
        expect([...addressBytes(formatIpv6(bytes), 6)]).toEqual([...bytes]);
      }),
    );
  });

  it("that are none are refused", () => {
    for (const text of ["1.2.3", "1.2.3.256", "a.b.c.d", ""]) expect(() => addressBytes(text, 4)).toThrow(RangeError);
    expect(() => addressBytes("example.com", 6)).toThrow();
  });
});

describe("encodeSpawn", () => {
  it("refuses a zero byte in an argument or a variable", () => {
    const spec = { argv: ["a"], env: {}, cwd: "/", stdio: { kind: "pipes" } } as const;
    expect(() => encodeSpawn({ ...spec, argv: ["a\0b"] })).toThrow(/zero byte/);
    expect(() => encodeSpawn({ ...spec, env: { A: "\0" } })).toThrow(/zero byte/);
  });
});
