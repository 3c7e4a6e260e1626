import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { pipedChannel } from "../testing/pipe.ts";
import { openBody } from "./body.ts";
import { type Framing, HttpParseError } from "./head.ts";
import { BodyWriter, copyBody } from "./write.ts";

async function read(framing: Framing, pieces: readonly string[], end = false) {
  const pipe = pipedChannel();
  for (const piece of pieces) pipe.feed(piece);
  if (end) pipe.finish();
  const body = openBody(pipe.channel, framing);
  let text = "";
  for (;;) {
    const piece = await body.next(1_000);
    if (piece === null) break;
    text += piece.toString("latin1");
  }
  const left = pipe.channel.buffered;
  return { text, left, trailers: body.trailers };
}

const chunked: Framing = { kind: "chunked" };

describe("bodies with a length", () => {
  test("end at their length and leave the next message alone", async () => {
    expect(await read({ kind: "length", length: 5 }, ["abc", "deGET /"])).toMatchObject({ text: "abcde", left: 5 });
    expect(await read({ kind: "length", length: 0 }, ["GET /"])).toMatchObject({ text: "" });
  });

  test("that end early are an error", async () => {
    await expect(read({ kind: "length", length: 5 }, ["abc"], true)).rejects.toBeInstanceOf(HttpParseError);
  });
});

describe("chunked bodies", () => {
  test("end at their last chunk and leave the next message alone", async () => {
    const result = await read(chunked, ["3\r\nabc\r\n", "0\r\n\r\nGET / HTTP/1.1"]);
    expect(result).toMatchObject({ text: "abc", left: 14 });
  });

  test("give the same body however the bytes are cut", async () => {
    const wire = "4;a=b\r\nWiki\r\n6\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\nX-T: v\r\n\r\n";
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 60, maxLength: 60 }), async (sizes) => {
        const pieces: string[] = [];
        let at = 0;
        for (const size of sizes) {
          if (at < wire.length) pieces.push(wire.slice(at, at + size));
          at += size;
        }
        if (at < wire.length) pieces.push(wire.slice(at));
        const result = await read(chunked, pieces);
        expect(result.text).toBe("Wikipedia in \r\n\r\nchunks.");
        expect(result.trailers?.get("x-t")).toBe("v");
      }),
      { numRuns: 100, seed: 7 },
    );
  });

  test.each<[string, string, string]>([
    ["a bare line feed after the size", "3\nabc\r\n0\r\n\r\n", "chunk_line"],
    ["a bare line feed after the data", "3\r\nabc\n0\r\n\r\n", "chunk_data"],
    ["no line end after the data", "3\r\nabc0\r\n\r\n", "chunk_data"],
    ["data longer than its size", "3\r\nabcd\r\n0\r\n\r\n", "chunk_data"],
    ["a size with 0x", "0x3\r\nabc\r\n0\r\n\r\n", "chunk_size"],
    ["a signed size", "+3\r\nabc\r\n0\r\n\r\n", "chunk_size"],
    ["a size with an underscore", "1_0\r\nabc\r\n0\r\n\r\n", "chunk_size"],
    ["a blank before the size", " 3\r\nabc\r\n0\r\n\r\n", "chunk_size"],
    ["a blank after the size", "3 \r\nabc\r\n0\r\n\r\n", "chunk_size"],
    ["an empty size", "\r\nabc\r\n0\r\n\r\n", "chunk_size"],
    ["a size that wraps around", "100000000000000003\r\nabc\r\n0\r\n\r\n", "chunk_size"],
    ["a carriage return in an extension", "3;a\rb\r\nabc\r\n0\r\n\r\n", "chunk_size"],
    ["an endless extension", `3;${"a".repeat(300)}\r\nabc\r\n0\r\n\r\n`, "chunk_line"],
    ["an endless size line without an end", "3".repeat(300), "chunk_line"],
    ["a folded trailer", "0\r\nX: a\r\n b\r\n\r\n", "trailer"],
    ["a trailer without a name", "0\r\n: a\r\n\r\n", "trailer"],
    ["a trailer with a NUL", "0\r\nX: \0\r\n\r\n", "trailer"],
    ["trailers without end", `0\r\n${"X: a\r\n".repeat(2000)}\r\n`, "chunk_line"],
  ])("with %s are refused", async (_, wire, rule) => {
    await expect(read(chunked, [wire], true)).rejects.toMatchObject({ rule });
  });

  test("lose trailers that would frame, route or authorise", async () => {
    const wire =
      "0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: x\r\nAuthorization: y\r\nX-Sum: z\r\n\r\n";
    expect((await read(chunked, [wire])).trailers?.names).toEqual(["X-Sum"]);
  });

  test("many small ones that are there already are one piece, whatever stands behind them", async () => {
    const { channel, feed } = pipedChannel();
    const body = openBody(channel, chunked);
    feed(`${"1\r\nx\r\n".repeat(1_000)}400\r\n${"y".repeat(1024)}\r\n2\r\nzz\r\n1\r\n`);
    expect((await body.next(100))!.toString()).toBe("x".repeat(1_000));
    expect((await body.next(100))!.toString()).toBe("y".repeat(1024));
    expect((await body.next(100))!.toString()).toBe("zz");
    feed("a\r\n1\r\nb\r\n0\r\n\r\nrest");
    expect((await body.next(100))!.toString()).toBe("ab");
    expect(body.done).toBe(true);
    expect(await body.next(100)).toBeNull();
    expect((await channel.read(100))!.toString()).toBe("rest");
  });

  test("small ones in front of a broken one are given out first", async () => {
    const { channel, feed } = pipedChannel();
    const body = openBody(channel, chunked);
    feed("1\r\na\r\n1\r\nb\r\n1\r\ncd\r\n");
    expect((await body.next(100))!.toString()).toBe("abc");
    for (let n = 0; n < 2; n += 1) expect(() => body.next(100)).toThrow("longer than its size");
  });

  test("are framed anew, without extensions", async () => {
    const from = pipedChannel();
    const to = pipedChannel();
    from.feed('3;evil="x"\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\n');
    await copyBody(openBody(from.channel, chunked), to.channel, new BodyWriter(to.channel, "chunked", 1_000), 1_000);
    expect(to.sent()).toBe("5\r\nabcde\r\n0\r\nA: b\r\n\r\n");
  });

  test("gathers what was cut into very many small chunks", async () => {
    const from = pipedChannel();
    const to = pipedChannel();
    from.feed(`${"1\r\nx\r\n".repeat(5_000)}0\r\n\r\n`);
    await copyBody(openBody(from.channel, chunked), to.channel, new BodyWriter(to.channel, "chunked", 1_000), 1_000);
    const sizes = [...to.sent().matchAll(/([0-9a-f]+)\r\n(x*)\r\n/g)].map((match) => {
      expect(match[2]!.length).toBe(Number.parseInt(match[1]!, 16));
      return match[2]!.length;
    });
    expect(sizes.reduce((sum, size) => sum + size, 0)).toBe(5_000);
    expect(sizes.length).toBeLessThan(100);
    expect(to.sent().endsWith("0\r\n\r\n")).toBe(true);
  });

  test("that break off are never finished", async () => {
    const from = pipedChannel();
    const to = pipedChannel();
    from.feed("3\r\nabc\r\n5\r\nde");
    from.finish();
    const copying = copyBody(
      openBody(from.channel, chunked),
      to.channel,
      new BodyWriter(to.channel, "chunked", 1_000),
      1_000,
    );
    await expect(copying).rejects.toMatchObject({ rule: "body_end" });
    expect(to.sent()).not.toContain("0\r\n\r\n");
  });
});

test("a body without framing ends with its connection", async () => {
  expect((await read({ kind: "until_close" }, ["ab", "c"], true)).text).toBe("abc");
});
