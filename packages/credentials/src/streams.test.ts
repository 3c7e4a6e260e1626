import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { BodyMarkerScanner, MARKER_TAIL_BYTES } from "./marker-scan.ts";
import { ResponseScrubber } from "./scrubber.ts";
import { Secret } from "./secret.ts";

const encode = (text: string): Uint8Array => new TextEncoder().encode(text);
const decode = (pieces: readonly Uint8Array[]): string => {
  const decoder = new TextDecoder();
  return pieces.map((piece) => decoder.decode(piece, { stream: true })).join("") + decoder.decode();
};
/** Cuts a text at random places. */
const cut = (text: string, at: readonly number[]): Uint8Array[] => {
  const bytes = encode(text);
  const places = [...new Set(at.map((place) => place % (bytes.length + 1)))].sort((a, b) => a - b);
  return [...places, bytes.length].map((place, index) => bytes.subarray(places[index - 1] ?? 0, place));
};
const places = fc.array(fc.nat(10_000), { maxLength: 12 });
const used = (...values: string[]) =>
  values.map((value, n) => ({ placeholder: `<${n}>`, secret: new Secret(value), key: `K${n}`, provider: "p" }));

describe("ResponseScrubber", () => {
  const run = (scrubber: ResponseScrubber, chunks: readonly Uint8Array[]): string =>
    decode([...chunks.flatMap((chunk) => scrubber.push(chunk)), ...scrubber.end()]);

  it("replaces a value wherever chunks are cut", () => {
    const text = "start SECRETVALUE mid SECRETVALUESECRETVALUE SECRETVALU end SECRETVAL";
    fc.assert(
      fc.property(places, (at) => {
        const scrubber = new ResponseScrubber(used("SECRETVALUE"));
        expect(run(scrubber, cut(text, at))).toBe("start <0> mid <0><0> SECRETVALU end SECRETVAL");
        expect(scrubber.replacements).toBe(3);
      }),
    );
  });

  it("agrees with replacing the whole text, for several overlapping values", () => {
    const secrets = ["abcabc", "abcabcabd", "bcabcaXX", "cabdcabd"];
    const piece = fc.constantFrom("abc", "abd", "abcabc", "abcabcabd", "bcabcaXX", "cabdcabd", "x", "X");
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 12 }), places, (pieces, at) => {
        const text = pieces.join("");
        const scrubber = new ResponseScrubber(used(...secrets));
        // Leftmost, and of those the longest.
        const pattern = new RegExp([...secrets].sort((a, b) => b.length - a.length).join("|"), "g");
        const expected = text.replace(pattern, (match) => `<${secrets.indexOf(match)}>`);
        expect(run(scrubber, cut(text, at))).toBe(expected);
      }),
      { numRuns: 3000 },
    );
  });

  it("finds percent-encoded and JSON spellings", () => {
    const scrubber = new ResponseScrubber(used('p"a/ss wörd'));
    const value = 'p"a/ss wörd';
    const percent = encodeURIComponent(value);
    const text = `a ${value} b ${percent} c ${percent.toLowerCase()} d ${new URLSearchParams([["k", value]])}`;
    expect(run(scrubber, [encode(text)])).toBe("a <0> b <0> c <0> d k=<0>");
    const json = JSON.stringify({ k: value });
    expect(run(scrubber, [encode(json + json.replace("/", "\\/"))])).toBe('{"k":"<0>"}{"k":"<0>"}');
  });

  it("finds base64 of every alignment and alphabet, and hexadecimal", () => {
    const value = "sk-live-?>ü~secret";
    for (const before of ["", "a", "ab", "user:", "{"]) {
      for (const coding of ["base64", "base64url", "hex"] as const) {
        const scrubber = new ResponseScrubber(used(value));
        const text = Buffer.from(`${before}${value} and more`).toString(coding);
        const result = run(scrubber, [encode(`x ${text} y`)]);
        expect(scrubber.replacements, `${before} ${coding}`).toBe(1);
        expect(Buffer.from(result.slice(2, -2).replace("<0>", ""), coding).toString()).not.toContain("live");
      }
    }
    const upper = new ResponseScrubber(used(value));
    expect(run(upper, [encode(Buffer.from(value).toString("hex").toUpperCase())])).toBe("<0>");
  });

  it("can keep the announced length", () => {
    const scrubber = new ResponseScrubber(used("SECRETVALUE"), { keepLength: true });
    const text = "x SECRETVALUE y";
    const result = run(scrubber, [encode(text)]);
    expect(result).toBe("x *********** y");
    expect(encode(result).length).toBe(encode(text).length);
  });

  it("delays nothing that cannot be the start of a value", () => {
    const scrubber = new ResponseScrubber(used("SECRETVALUE"));
    expect(decode(scrubber.push(encode("data: event\n\n")))).toBe("data: event\n\n");
    expect(decode(scrubber.push(encode("data: SEC")))).toBe("data: ");
    expect(decode(scrubber.push(encode("OND\n")))).toBe("SECOND\n");
  });

  it("is out of the way when nothing can be searched for", () => {
    for (const scrubber of [new ResponseScrubber([]), new ResponseScrubber(used("short"))]) {
      expect(scrubber.active).toBe(false);
      const chunk = encode("short");
      expect(scrubber.push(chunk)[0]).toBe(chunk);
      expect(scrubber.end()).toEqual([]);
    }
  });

  it("replaces in head values", () => {
    const scrubber = new ResponseScrubber(used("SECRETVALUE"));
    expect(scrubber.scrubText("key=SECRETVALUE; SECRETVALUE")).toBe("key=<0>; <0>");
    expect(scrubber.replacements).toBe(2);
  });

  it("finds a value beyond ASCII in head values held as bytes", () => {
    const scrubber = new ResponseScrubber(used("pässwörd€"));
    const bytes = Buffer.from("x pässwörd€ y", "utf8").toString("latin1");
    expect(scrubber.scrubText(bytes)).toBe("x <0> y");
    expect(scrubber.scrubText("x pässwörd€ y")).toBe("x <0> y");
  });

  it("passes 64 MiB of other bytes quickly", () => {
    const scrubber = new ResponseScrubber(used("sk-live-0123456789abcdefghijklmnopqrstuvwxyz"));
    const chunk = Uint8Array.from({ length: 65_536 }, (_, i) => (i * 2_654_435_761) >>> 24);
    const started = performance.now();
    let passed = 0;
    for (let n = 0; n < 1024; n += 1) for (const piece of scrubber.push(chunk)) passed += piece.length;
    for (const piece of scrubber.end()) passed += piece.length;
    expect(passed).toBe(65_536 * 1024);
    expect(performance.now() - started).toBeLessThan(2000);
  });
});

describe("BodyMarkerScanner", () => {
  const run = (chunks: readonly Uint8Array[]): { text: string; found: boolean } => {
    const scanner = new BodyMarkerScanner();
    const pieces = chunks.map((chunk) => scanner.push(chunk));
    return { text: decode([...pieces, scanner.end()]), found: scanner.found };
  };

  it.each([
    ["canonical", "openshell:resolve:env:KEY"],
    ["alias", "OPENSHELL-RESOLVE-ENV-KEY"],
    ["partly encoded", "openshell%3aresolve%3Aenv%3AKEY"],
    ["fully encoded", [...encode("openshell:resolve:env:")].map((byte) => `%${byte.toString(16)}`).join("")],
  ])("finds a marker (%s) wherever chunks are cut, and lets nothing of it through", (_, marker) => {
    fc.assert(
      fc.property(places, (at) => {
        expect(run(cut(`before ${marker} after`, at))).toEqual({ text: "before ", found: true });
      }),
    );
  });

  it("passes everything else unchanged", () => {
    const piece = fc.constantFrom(
      "o",
      "O",
      "%",
      "%6",
      "%6f",
      "openshell",
      "openshell:resolve",
      "OPENSHELL-RESOLVE-ENV",
      ":",
      "x",
      "%zz",
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 10 }), places, (pieces, at) => {
        const text = pieces.join("");
        if (/openshell:resolve:env:|OPENSHELL-RESOLVE-ENV-/.test(text.replaceAll("%6f", "o"))) return;
        expect(run(cut(text, at))).toEqual({ text, found: false });
      }),
      { numRuns: 3000 },
    );
  });

  it("never holds back more than the longest marker", () => {
    expect(MARKER_TAIL_BYTES).toBe(66);
    const scanner = new BodyMarkerScanner();
    let sent = 0;
    let passed = 0;
    for (let n = 0; n < 200; n += 1) {
      const chunk = encode("%6f%70%65%6E%73");
      sent += chunk.length;
      passed += scanner.push(chunk).length;
      expect(sent - passed).toBeLessThan(MARKER_TAIL_BYTES);
    }
  });
});
