import { describe, expect, it } from "vitest";
import { belowRoot, type TarEntry, TarReader } from "./tar.ts";
import { end, entry, longName, pax } from "./testing.ts";

async function read(...parts: readonly Uint8Array[]): Promise<(TarEntry & { readonly content: string })[]> {
  const source = async function* () {
    // Odd pieces: nothing may depend on how the bytes arrive.
    const all = Buffer.concat(parts);
    for (let at = 0; at < all.length; at += 333) yield all.subarray(at, at + 333);
  };
  const reader = new TarReader(source());
  const found: (TarEntry & { readonly content: string })[] = [];
  for (let next = await reader.next(); next !== undefined; next = await reader.next()) {
    const content: Uint8Array[] = [];
    for await (const chunk of reader.content()) content.push(chunk);
    found.push({ ...next, content: Buffer.concat(content).toString() });
  }
  return found;
}

describe("TarReader", () => {
  it("reads files, folders and links with their attributes", async () => {
    const found = await read(
      entry({ name: "./etc/", type: "5", mode: 0o755 }),
      entry({ name: "etc/passwd", content: "root\n", mode: 0o4644, uid: 7, gid: 8, mtime: 1_700_000_000 }),
      entry({ name: "bin", type: "2", link: "/usr/bin" }),
      entry({ name: "etc/other", type: "1", link: "./etc/passwd" }),
      end(),
    );
    expect(found).toMatchObject([
      { kind: "directory", path: "etc", mode: 0o755 },
      { kind: "file", path: "etc/passwd", content: "root\n", mode: 0o4644, uid: 7, gid: 8, mtime: 1_700_000_000 },
      { kind: "symlink", path: "bin", target: "/usr/bin" },
      { kind: "hardlink", path: "etc/other", target: "etc/passwd" },
    ]);
  });

  it("takes long names and sizes from GNU and POSIX headers", async () => {
    const long = `${"d".repeat(200)}/${"f".repeat(200)}`;
    const found = await read(
      longName(long),
      entry({ name: "cut", content: "a" }),
      pax({ path: `p/${"é".repeat(100)}`, uid: "70000", mtime: "1.5" }),
      entry({ name: "cut", content: "b" }),
      pax({ linkpath: "../x", size: "0" }),
      entry({ name: "l", type: "2", link: "cut" }),
      end(),
    );
    expect(found[0]).toMatchObject({ path: long, content: "a" });
    expect(Buffer.from(found[1]!.path, "latin1").toString()).toBe(`p/${"é".repeat(100)}`);
    expect(found[1]).toMatchObject({ uid: 70_000, mtime: 1.5, content: "b" });
    expect(found[2]).toMatchObject({ target: "../x" });
  });

  it.each([
    ["is no archive", [Buffer.alloc(512, "x")], /no tar archive/],
    ["ends without its mark", [entry({ name: "a", content: "a" })], /ends before its end mark/],
    ["ends inside a file", [entry({ name: "a", content: "a".repeat(2_000) }).subarray(0, 1_024)], /middle of a file/],
    ["has an absolute path", [entry({ name: "/etc/passwd" }), end()], /absolute path/],
    ["leads out", [entry({ name: "a/../../b" }), end()], /leads out of the root/],
    ["links out", [entry({ name: "a", type: "1", link: "../../etc/shadow" }), end()], /leads out of the root/],
    ["links to an absolute path", [entry({ name: "a", type: "1", link: "/etc/shadow" }), end()], /absolute path/],
    ["leads out by a long name", [longName("../x"), entry({ name: "a" }), end()], /leads out of the root/],
    ["leads out by an extended header", [pax({ path: "../x" }), entry({ name: "a" }), end()], /leads out of the root/],
    ["has a NUL in an extended path", [pax({ path: "a\0b" }), entry({ name: "a" }), end()], /NUL/],
    ["has a name too long", [pax({ path: "a".repeat(256) }), entry({ name: "a" }), end()], /longer than any name/],
    ["has a path too long", [pax({ path: "a/".repeat(3_000) }), entry({ name: "a" }), end()], /longer than any path/],
    [
      "has a bad record",
      [entry({ name: "x", type: "x", content: "99 path=a\n" }), end()],
      /extended header is damaged/,
    ],
    ["has a huge extended header", [entry({ name: "x", type: "x", size: 2 ** 30 }), end()], /extended header has/],
    ["has a sparse file", [entry({ name: "x", type: "S" }), end()], /stored sparsely/],
    ["has an unknown type", [entry({ name: "x", type: "Z" }), end()], /unknown type/],
    [
      "has a size that cannot be",
      [entry({ name: "x", rawSize: Buffer.alloc(12, 0xff) }), end()],
      /size that cannot be/,
    ],
  ] as const)("refuses an archive that %s", async (_, parts, says) => {
    await expect(read(...parts)).rejects.toMatchObject({ code: "image_invalid", message: expect.stringMatching(says) });
  });
});

describe("belowRoot", () => {
  it.each([
    ["./", ""],
    [".", ""],
    ["a//b/./c/", "a/b/c"],
    ["..a/b..", "..a/b.."],
  ])("%j is %j", (name, path) => expect(belowRoot(name)).toBe(path));
});
