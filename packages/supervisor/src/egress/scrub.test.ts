import { brotliCompressSync, deflateSync, gzipSync, zstdCompressSync } from "node:zlib";
import { ResponseScrubber, Secret } from "@openshell/credentials";
import { describe, expect, test } from "vitest";
import { openBody } from "./http1/body.ts";
import { Fields } from "./http1/fields.ts";
import { decodeBody, decodersFor, guardBody, scrubBody, scrubFields } from "./scrub.ts";
import { pipedChannel } from "./testing/pipe.ts";

const SECRET = "sk-live-0123456789";
const used = [{ placeholder: "openshell:resolve:env:v1_KEY", secret: new Secret(SECRET), key: "KEY", provider: "p" }];

async function bodyText(body: { next(limitMs: number): Buffer | null | Promise<Buffer | null> }): Promise<string> {
  let text = "";
  for (;;) {
    const piece = await body.next(1_000);
    if (piece === null) return text;
    text += piece.toString("latin1");
  }
}

function body(pieces: readonly (string | Buffer)[]) {
  const pipe = pipedChannel();
  for (const piece of pieces) pipe.feed(piece);
  pipe.finish();
  return openBody(pipe.channel, { kind: "until_close" });
}

describe("responses", () => {
  test("a value cut anywhere is replaced", async () => {
    const text = `a ${SECRET} b`;
    for (let at = 0; at <= text.length; at += 1) {
      const scrubber = new ResponseScrubber(used);
      expect(
        await bodyText(scrubBody(body([text.slice(0, at), text.slice(at)].filter((piece) => piece !== "")), scrubber)),
      ).toBe("a openshell:resolve:env:v1_KEY b");
      expect(scrubber.replacements).toBe(1);
    }
  });

  test("field values are cleaned, a field named like the value goes", () => {
    const fields = new Fields();
    fields.add("X-Echo", `Bearer ${SECRET}`);
    fields.add(SECRET, "x");
    fields.add("A", "b");
    scrubFields(fields, new ResponseScrubber(used));
    expect(fields.names).toEqual(["X-Echo", "A"]);
    expect(fields.values).toEqual(["Bearer openshell:resolve:env:v1_KEY", "b"]);
  });

  test.each<[string, Buffer]>([
    ["gzip", gzipSync("plain text")],
    ["x-gzip", gzipSync("plain text")],
    ["deflate", deflateSync("plain text")],
    ["br", brotliCompressSync("plain text")],
    ["zstd", zstdCompressSync("plain text")],
    ["deflate, gzip", gzipSync(deflateSync("plain text"))],
  ])("%s is undone", async (coding, bytes) => {
    expect(await bodyText(decodeBody(body([bytes]), decodersFor([coding])!, 1_000))).toBe("plain text");
  });

  test("a broken coding is an error, an unknown or too deep one is told apart", async () => {
    await expect(bodyText(decodeBody(body(["not gzip"]), decodersFor(["gzip"])!, 1_000))).rejects.toThrow();
    await expect(
      bodyText(decodeBody(body([gzipSync("x".repeat(1000)).subarray(0, 12)]), decodersFor(["gzip"])!, 1_000)),
    ).rejects.toThrow();
    expect(decodersFor(["compress"])).toBeUndefined();
    expect(decodersFor(["gzip, gzip, gzip"])).toBeUndefined();
    expect(decodersFor(["identity"])).toEqual([]);
  });
});

describe("request bodies", () => {
  test.each(["openshell:resolve:env:v1_KEY", "%6fpenshell:resolve:env:v1_KEY", "openshell%3Aresolve%3Aenv%3AKEY"])(
    "break off before %s, wherever it is cut",
    async (marker) => {
      const text = `{"key":"${marker}"}`;
      for (let at = 1; at < text.length; at += 3) {
        let told = 0;
        const guarded = guardBody(body([text.slice(0, at), text.slice(at)]), () => {
          told += 1;
        });
        let sent = "";
        const reading = (async () => {
          for (;;) {
            const piece = await guarded.next(1_000);
            if (piece === null) return;
            sent += piece.toString("latin1");
          }
        })();
        await expect(reading).rejects.toMatchObject({ code: "credential_placeholder_in_request_body" });
        expect(told).toBe(1);
        expect(sent).not.toMatch(/resolve|%6f/);
      }
    },
  );

  test("without a placeholder go through unchanged", async () => {
    const text = "openshell and %6f and other text, o".repeat(100);
    expect(await bodyText(guardBody(body([text.slice(0, 50), text.slice(50)]), () => undefined))).toBe(text);
  });
});
