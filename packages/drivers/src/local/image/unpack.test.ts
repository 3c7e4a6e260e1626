import { spawnSync } from "node:child_process";
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { end, entry, pax } from "./testing.ts";
import { unpackArchive } from "./unpack-archive.ts";

let folder: string;
let outside: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "unpack-"));
  outside = join(folder, "outside");
  mkdirSync(outside);
  writeFileSync(join(outside, "secret"), "secret\n");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const LIMITS = { bytes: 1 << 20, entries: 100 };

async function unpack(
  parts: readonly Uint8Array[],
  limits = LIMITS,
  transform = (bytes: Uint8Array): Uint8Array => bytes,
) {
  const archive = join(folder, "x.tar");
  writeFileSync(archive, transform(Buffer.concat(parts)));
  mkdirSync(join(folder, "out"));
  return await unpackArchive({ archive, folder: join(folder, "out"), limits, owners: "own" }, () => {});
}

const at = (path: string) => join(folder, "out/root", path);
/** Every name below the root; no link is followed. */
const tree = (below = ""): string[] =>
  readdirSync(at(below), { withFileTypes: true })
    .flatMap((found) => [below + found.name, ...(found.isDirectory() ? tree(`${below}${found.name}/`) : [])])
    .sort();
const refusal = (says: RegExp) => ({ code: "image_invalid", message: expect.stringMatching(says) });

describe("unpackArchive", () => {
  it("makes what the archive says, without set-user-id bits, devices and pipes", async () => {
    const result = await unpack([
      entry({ name: "usr/bin/su", content: "su", mode: 0o6755 }),
      entry({ name: "tmp/", type: "5", mode: 0o3777 }),
      entry({ name: "closed/", type: "5", mode: 0o500 }),
      entry({ name: "closed/in", content: "x", mode: 0o400 }),
      entry({ name: "bin", type: "2", link: "usr/bin" }),
      entry({ name: "usr/bin/sudo", type: "1", link: "usr/bin/su" }),
      entry({ name: "dev/null", type: "3" }),
      entry({ name: "dev/null2", type: "1", link: "dev/null" }),
      entry({ name: "run/pipe", type: "6" }),
      end(),
    ]);
    expect(tree()).toEqual(["bin", "closed", "closed/in", "tmp", "usr", "usr/bin", "usr/bin/su", "usr/bin/sudo"]);
    expect(lstatSync(at("usr/bin/su")).mode & 0o7777).toBe(0o755);
    expect(lstatSync(at("usr/bin/sudo")).ino).toBe(lstatSync(at("usr/bin/su")).ino);
    expect(lstatSync(at("tmp")).mode & 0o7777).toBe(0o1777);
    expect(lstatSync(at("closed")).mode & 0o7777).toBe(0o500);
    expect(readlinkSync(at("bin"))).toBe("usr/bin");
    expect(result).toMatchObject({ entries: 9, leftOut: 3, digest: expect.stringMatching(/^[0-9a-f]{64}$/) });
  });

  it("unpacks gzip by content, and names the bytes of the archive alone", async () => {
    const parts = [entry({ name: "a", content: "a" }), end()];
    const { digest } = await unpack(parts, LIMITS, gzipSync);
    expect(readFileSync(at("a"), "utf8")).toBe("a");
    rmSync(join(folder, "out"), { recursive: true });
    expect((await unpack(parts, LIMITS, gzipSync)).digest).toBe(digest);
    rmSync(join(folder, "out"), { recursive: true });
    expect((await unpack(parts)).digest).not.toBe(digest);
  });

  it("takes the last of several entries with one name", async () => {
    await unpack([
      entry({ name: "a/b", content: "old" }),
      entry({ name: "a", content: "file" }),
      entry({ name: "c", content: "1" }),
      entry({ name: "c", content: "2" }),
      entry({ name: "l", type: "2", link: "outside" }),
      entry({ name: "l", content: "no link" }),
      end(),
    ]);
    expect([readFileSync(at("a"), "utf8"), readFileSync(at("c"), "utf8"), readFileSync(at("l"), "utf8")]).toEqual([
      "file",
      "2",
      "no link",
    ]);
  });

  it.each([
    [
      "a link to a folder outside",
      (out: string) => [entry({ name: "l", type: "2", link: out }), entry({ name: "l/secret", content: "gone" })],
    ],
    [
      "a chain of links",
      (out: string) => [
        entry({ name: "l", type: "2", link: "m" }),
        entry({ name: "m", type: "2", link: out }),
        entry({ name: "l/secret", content: "gone" }),
      ],
    ],
    [
      "a link above the root",
      () => [
        entry({ name: "a/l", type: "2", link: "../../../outside" }),
        entry({ name: "a/l/secret", content: "gone" }),
      ],
    ],
    [
      "a link that replaced a folder",
      (out: string) => [
        entry({ name: "d/", type: "5" }),
        entry({ name: "d", type: "2", link: out }),
        entry({ name: "d/secret", content: "gone" }),
      ],
    ],
    [
      "a folder behind a link",
      (out: string) => [entry({ name: "l", type: "2", link: out }), entry({ name: "l/new/", type: "5" })],
    ],
    [
      "a hard link through a link",
      (out: string) => [entry({ name: "l", type: "2", link: out }), entry({ name: "h", type: "1", link: "l/secret" })],
    ],
    ["a file below a file", () => [entry({ name: "f", content: "f" }), entry({ name: "f/x", content: "x" })]],
    ["a hard link to nothing", () => [entry({ name: "h", type: "1", link: "missing" })]],
    ["a hard link to a folder", () => [entry({ name: "d/", type: "5" }), entry({ name: "h", type: "1", link: "d" })]],
  ])("refuses %s, and nothing outside changes", async (_, parts) => {
    await expect(unpack([...parts(outside), end()])).rejects.toMatchObject({ code: "image_invalid" });
    expect(readdirSync(outside)).toEqual(["secret"]);
    expect(readFileSync(join(outside, "secret"), "utf8")).toBe("secret\n");
    expect(lstatSync(join(outside, "secret")).nlink).toBe(1);
  });

  it("writes through no link that a hard link names again", async () => {
    await unpack([
      entry({ name: "l", type: "2", link: join(outside, "secret") }),
      entry({ name: "h", type: "1", link: "l" }),
      entry({ name: "h", content: "replaced" }),
      end(),
    ]);
    expect(readFileSync(join(outside, "secret"), "utf8")).toBe("secret\n");
    expect(readFileSync(at("h"), "utf8")).toBe("replaced");
  });

  it("has an end: too many entries, too many bytes, a compressed bomb, an announced size", async () => {
    const many = Array.from({ length: 101 }, (_, index) => entry({ name: `f${index}` }));
    await expect(unpack([...many, end()])).rejects.toMatchObject(refusal(/more than 100 entries/));
    rmSync(join(folder, "out"), { recursive: true });
    const bomb = [entry({ name: "zeros", content: Buffer.alloc(4 << 20) }), end()];
    await expect(unpack(bomb, LIMITS, gzipSync)).rejects.toMatchObject(refusal(/unpacks to more than 1048576 bytes/));
    rmSync(join(folder, "out"), { recursive: true });
    await expect(unpack(bomb)).rejects.toMatchObject(refusal(/more than 1048576 bytes/));
    rmSync(join(folder, "out"), { recursive: true });
    await expect(unpack([entry({ name: "big", size: 2 ** 32 })])).rejects.toMatchObject(refusal(/middle of a file/));
  });

  it("says which compression it does not read, and when one is damaged", async () => {
    await expect(unpack([Buffer.from([0xfd, 0x37, 0x7a, 0x58, 0x5a, 0, 0])])).rejects.toMatchObject({
      next: "Unpack it first: xz -d",
    });
    rmSync(join(folder, "out"), { recursive: true });
    const cut = (bytes: Uint8Array) => gzipSync(bytes).subarray(0, 60);
    await expect(unpack([entry({ name: "a", content: "a" }), end()], LIMITS, cut)).rejects.toMatchObject(
      refusal(/compression is damaged/),
    );
  });

  it("reads exactly the file that was named: no link, no pipe", async () => {
    const request = (archive: string) =>
      ({ archive, folder: join(folder, "out"), limits: LIMITS, owners: "own" }) as const;
    await unpack([entry({ name: "a" }), end()]);
    symlinkSync(join(folder, "x.tar"), join(folder, "link.tar"));
    symlinkSync(folder, join(folder, "here"));
    expect(spawnSync("mkfifo", [join(folder, "pipe.tar")]).status).toBe(0);
    for (const name of ["link.tar", "here/x.tar", "pipe.tar"]) {
      rmSync(join(folder, "out"), { recursive: true });
      mkdirSync(join(folder, "out"));
      await expect(
        unpackArchive(request(join(folder, name)), () => {}),
        name,
      ).rejects.toMatchObject({
        code: expect.stringMatching(/image_(refused|unavailable)/),
      });
    }
  });

  it("names that are no UTF-8 keep their bytes", async () => {
    await unpack([pax({}), entry({ name: "caf\u00e9" }), end()]);
    expect(readdirSync(Buffer.from(at("")), { encoding: "buffer" })).toEqual([Buffer.from("caf\u00e9", "latin1")]);
  });
});

/** An archive as `docker save` writes it. */
function saved(
  layers: readonly (readonly Buffer[])[],
  config: object,
  names = layers.map((_, index) => `${index}/layer.tar`),
): Buffer[] {
  const files = layers.map((parts, index) =>
    entry({ name: `${index}/layer.tar`, content: Buffer.concat([...parts, end()]) }),
  );
  const manifest = JSON.stringify([{ Config: "c.json", Layers: names }]);
  return [
    ...files,
    entry({ name: "c.json", content: JSON.stringify({ config }) }),
    entry({ name: "manifest.json", content: manifest }),
    end(),
  ];
}

describe("a saved image", () => {
  it("is its layers in order, with what they remove", async () => {
    const { config } = await unpack(
      saved(
        [
          [
            entry({ name: "a", content: "1" }),
            entry({ name: "d/x", content: "x" }),
            entry({ name: "d/y", content: "y" }),
            entry({ name: "e/old" }),
          ],
          [
            entry({ name: "a", content: "2" }),
            entry({ name: "d/.wh.x" }),
            entry({ name: "e/new" }),
            entry({ name: "e/.wh..wh..opq" }),
            entry({ name: ".wh.gone" }),
          ],
        ],
        { User: "app", Env: ["A=1"], WorkingDir: "/d" },
      ),
    );
    expect(tree()).toEqual(["a", "d", "d/y", "e", "e/new"]);
    expect(readFileSync(at("a"), "utf8")).toBe("2");
    expect(config).toEqual({ user: "app", env: ["A=1"], workingDirectory: "/d" });
    expect(readdirSync(join(folder, "out"))).toEqual(["root"]);
  });

  it.each([
    ["a layer outside", ["../../outside/secret"]],
    ["a layer that is missing", ["1/layer.tar"]],
    ["an absolute layer", ["/etc/passwd"]],
  ])("refuses %s", async (_, names) => {
    await expect(unpack(saved([[entry({ name: "a" })]], {}, names))).rejects.toMatchObject({ code: "image_invalid" });
  });

  it("refuses a layer that is a link, and removals that name nothing", async () => {
    const link = [entry({ name: "0", type: "2", link: outside }), ...saved([], {}, ["0/secret"])];
    await expect(unpack(link)).rejects.toMatchObject(refusal(/is missing/));
    rmSync(join(folder, "out"), { recursive: true });
    const removal = saved([[entry({ name: "d/.wh..." }), entry({ name: "d/x" })], [entry({ name: "d/.wh..." })]], {});
    await expect(unpack(removal)).rejects.toMatchObject(refusal(/removes no name/));
  });
});
