import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { DriverError } from "../../driver.ts";
import { end, entry, longName, pax } from "./testing.ts";
import { unpackArchive } from "./unpack-archive.ts";

/** Archives and saved images as no tool writes them: unpacked, or refused in one line; never anything outside. */

vi.setConfig({ testTimeout: 60_000 });

const LIMITS = { bytes: 1 << 20, entries: 100 };
let folder: string;
let outside: string;
beforeEach(() => {
  folder = realpathSync(mkdtempSync(join(tmpdir(), "bad-archives-")));
  outside = join(folder, "outside");
  mkdirSync(outside);
  writeFileSync(join(outside, "secret"), "secret\n");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

/** What is wrong with how an archive was taken; undefined when it was unpacked, or refused as it should be. */
async function problem(bytes: Buffer, what: string, mustFail = false): Promise<string | undefined> {
  const archive = join(folder, "x.tar");
  const out = join(folder, "out");
  writeFileSync(archive, bytes);
  mkdirSync(out);
  const owners = process.getuid!() === 0 ? "archive" : "own";
  const before = lstatSync(join(outside, "secret"));
  try {
    await unpackArchive({ archive, folder: out, limits: LIMITS, owners }, () => {});
    return mustFail ? `${what}: was taken` : undefined;
  } catch (error) {
    if (!(error instanceof DriverError)) return `${what}: ${(error as Error).stack}`;
    const { code, message, next } = error;
    const said = `${message}${next}`;
    const good =
      code === "image_invalid" &&
      next !== "" &&
      message.length < 600 &&
      !said.includes(folder) &&
      !/[\p{Cc}\u202a-\u202e\u2028]|\[object|at .*:\d+:\d+/u.test(said);
    return good ? undefined : `${what}: ${code}: ${JSON.stringify(message)}. ${next}`;
  } finally {
    rmSync(out, { recursive: true });
    const after = lstatSync(join(outside, "secret"));
    expect([readdirSync(folder).toSorted(), after.nlink, after.mode, after.mtimeMs], what).toEqual([
      ["outside", "x.tar"],
      before.nlink,
      before.mode,
      before.mtimeMs,
    ]);
    expect(readFileSync(join(outside, "secret"), "utf8"), what).toBe("secret\n");
  }
}

/** A generator of whole numbers below a limit, the same ones each time (mulberry32). */
function numbers(seed: number): (below: number) => number {
  let at = seed;
  return (below) => {
    at = (at + 0x6d2b79f5) | 0;
    let mixed = Math.imul(at ^ (at >>> 15), 1 | at);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * below);
  };
}

/** Makes the sum of a header right again, so that what it says is looked at. */
function sum(bytes: Buffer, at: number): void {
  bytes.fill(" ", at + 148, at + 156);
  const total = bytes.subarray(at, at + 512).reduce((all, byte) => all + byte, 0);
  bytes.write(`${total.toString(8).padStart(6, "0")}\0 `, at + 148, "latin1");
}

/** Places and lengths of what a header says. */
const FIELDS = [
  [0, 100],
  [100, 8],
  [108, 8],
  [116, 8],
  [124, 12],
  [136, 12],
  [156, 1],
  [157, 100],
  [257, 6],
  [345, 155],
] as const;
const WORDS = [
  "/",
  "..",
  "../outside/secret",
  "outside",
  "",
  "77777777777",
  "-1",
  "\xff\xff\xff",
  "\x80\0\0\0\xff",
  "\x1b[2J\n",
  "l",
  "d",
];

describe("an archive", () => {
  it("whose headers say anything at all is unpacked or refused", async () => {
    const random = numbers(20_261_130);
    const base = Buffer.concat([
      entry({ name: "d/", type: "5", mode: 0o755 }),
      entry({ name: "d/f", content: "content".repeat(100) }),
      entry({ name: "l", type: "2", link: "d/f" }),
      entry({ name: "h", type: "1", link: "d/f" }),
      longName(`${"n".repeat(120)}/x`),
      entry({ name: "n" }),
      pax({ path: "p/long", mtime: "1.5", uid: "70000", size: "3" }),
      entry({ name: "p", content: "abc" }),
      entry({ name: "dev", type: "3" }),
      entry({ name: "fifo", type: "6" }),
      end(),
    ]);
    const headers = [0, 512, 2_048, 2_560, 3_072, 4_096, 4_608, 5_632, 6_656, 7_168].filter((at) => at < base.length);
    const problems: (string | undefined)[] = [];
    for (let round = 0; round < 400; round++) {
      let bytes = Buffer.from(base);
      for (let change = 0; change <= random(3); change++) {
        const at = headers[random(headers.length)]!;
        const [offset, length] = FIELDS[random(FIELDS.length)]!;
        const kind = random(5);
        if (kind === 0) bytes = bytes.subarray(0, random(bytes.length));
        else if (kind === 1) bytes[random(bytes.length)] = random(256);
        else if (kind === 2 && bytes.length > at + 512) {
          for (let n = 0; n < length; n++) bytes[at + offset + n] = random(256);
          sum(bytes, at);
        } else if (bytes.length > at + 512) {
          bytes.fill(0, at + offset, at + offset + length);
          bytes.write(WORDS[random(WORDS.length)]!.slice(0, length), at + offset, "latin1");
          sum(bytes, at);
        }
      }
      problems.push(await problem(bytes, `round ${round}`));
      if (round % 8 === 0) problems.push(await problem(gzipSync(bytes, { level: 1 }), `round ${round} as gzip`));
    }
    expect(problems.filter((text) => text !== undefined)).toEqual([]);
  });

  it("whose extended headers say anything at all is unpacked or refused", async () => {
    const values = [
      "",
      "-1",
      "1e9",
      "NaN",
      "a\0b",
      "\x1b[2J",
      "/",
      "..",
      "../outside/secret",
      "9".repeat(15),
      "é".repeat(100),
      "x".repeat(5_000),
    ];
    const problems: (string | undefined)[] = [];
    for (const key of ["path", "linkpath", "size", "uid", "gid", "mtime", "GNU.sparse.major", "__proto__", "comment"]) {
      for (const value of values) {
        for (const type of ["0", "1", "2", "5"]) {
          const bytes = Buffer.concat([
            entry({ name: "f" }),
            pax({ [key]: value }),
            entry({ name: "x", type, link: "f" }),
            end(),
          ]);
          problems.push(await problem(bytes, `${key}=${JSON.stringify(value.slice(0, 20))} of type ${type}`));
        }
      }
    }
    expect(problems.filter((text) => text !== undefined)).toEqual([]);
  });

  it("that is none is refused, whatever it begins with", async () => {
    const gz = gzipSync(Buffer.concat([entry({ name: "a", content: "a" }), end()]));
    const cases: Record<string, Buffer> = {
      empty: Buffer.alloc(0),
      "an end and nothing before it": end(),
      zeros: Buffer.alloc(1 << 19),
      "one byte": Buffer.from("x"),
      text: Buffer.from("FROM scratch\n".repeat(100)),
      "a gzip of nothing": gzipSync(""),
      "a gzip of text": gzipSync("text\n".repeat(500)),
      "a gzip in a gzip": gzipSync(gz),
      "the head of a gzip": gz.subarray(0, 5),
      "a gzip with a wrong sum": Buffer.concat([gz.subarray(0, -8), Buffer.alloc(8, 7)]),
      "a bomb": gzipSync(Buffer.alloc(64 << 20)),
      "a bomb in a file": gzipSync(Buffer.concat([entry({ name: "z", size: 2 ** 33 - 1 }), Buffer.alloc(8 << 20)]), {
        level: 1,
      }),
      zstd: Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0]),
      "a file as its root": Buffer.concat([
        entry({ name: "./", content: "x" }),
        entry({ name: ".", content: "x" }),
        end(),
      ]),
      "more names than it may have": Buffer.concat([
        ...Array.from({ length: 101 }, () => entry({ name: "same" })),
        end(),
      ]),
      "names with control characters": Buffer.concat([entry({ name: "/\x1b[2J\nerror: forged" }), end()]),
    };
    const problems = [];
    for (const [what, bytes] of Object.entries(cases)) problems.push(await problem(bytes, what, true));
    expect(problems.filter((text) => text !== undefined)).toEqual([]);
  });
});

describe("a saved image", () => {
  const layer = Buffer.concat([entry({ name: "a", content: "1" }), end()]);
  const saved = (manifest: string | Buffer, config: string | Buffer = "{}", more: readonly Buffer[] = []): Buffer =>
    Buffer.concat([
      entry({ name: "l.tar", content: layer }),
      entry({ name: "c.json", content: config }),
      ...more,
      entry({ name: "manifest.json", content: manifest }),
      end(),
    ]);
  const good = JSON.stringify([{ Config: "c.json", Layers: ["l.tar"] }]);

  it("with a manifest or configuration that is none is refused", async () => {
    expect(await problem(saved(good), "a good one")).toBeUndefined();
    const manifest = (value: object) => JSON.stringify([{ Config: "c.json", Layers: ["l.tar"], ...value }]);
    const texts = [
      "",
      "{",
      "null",
      "1",
      "[]",
      "{}",
      "[null]",
      '["x"]',
      "[".repeat(200_000),
      '[{"Config": 1}]',
      "\ufeff",
      "\xff\xfe",
    ];
    const manifests = [
      ...texts,
      manifest({ Config: "" }),
      manifest({ Config: ".." }),
      manifest({ Config: "/etc/passwd" }),
      manifest({ Config: "\u001b[2J\nerror: forged" }),
      manifest({ Config: "x".repeat(10_000) }),
      manifest({ Config: "l.tar/x" }),
      manifest({ Config: "a\0b" }),
      manifest({ Layers: "l.tar" }),
      manifest({ Layers: [1] }),
      manifest({ Layers: [""] }),
      manifest({ Layers: ["c.json"] }),
      manifest({ Layers: ["manifest.json"] }),
      manifest({ Layers: ["."] }),
      manifest({ Layers: ["../outside/secret"] }),
      manifest({ Layers: ["\u202e"] }),
      manifest({ Layers: Array.from({ length: 128 }, () => "l.tar") }),
      JSON.stringify([
        { Config: "c.json", Layers: [] },
        { Config: "c.json", Layers: [] },
      ]),
    ];
    const problems = [];
    for (const text of manifests) problems.push(await problem(saved(text), `the manifest ${text.slice(0, 60)}`, true));
    const configs = [
      ...texts.filter((text) => text !== "{}"),
      '{"config": 1}',
      '{"config": []}',
      '{"config": {"User": 1}}',
      '{"config": {"Env": "A=1"}}',
      '{"config": {"Env": [1]}}',
      '{"config": {"WorkingDir": {}}}',
    ];
    for (const text of configs)
      problems.push(await problem(saved(good, text), `the configuration ${text.slice(0, 60)}`, true));
    for (const type of ["1", "2", "5", "3"])
      problems.push(
        await problem(
          saved(JSON.stringify([{ Config: "k", Layers: [] }]), "{}", [
            entry({ name: "k", type, link: type === "1" ? "l.tar" : "/etc/passwd" }),
          ]),
          `a configuration of type ${type}`,
          true,
        ),
      );
    problems.push(
      await problem(Buffer.concat([entry({ name: "oci-layout", content: "{}" }), end()]), "no manifest", true),
    );
    expect(problems.filter((text) => text !== undefined)).toEqual([]);
  });
});
