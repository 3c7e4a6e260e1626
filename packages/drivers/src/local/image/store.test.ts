import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Clock, systemClock } from "@openshell/base";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ImageStore, type ImageStoreOptions } from "./store.ts";
import { end, entry } from "./testing.ts";
import { type UnpackRequest, unpackArchive } from "./unpack-archive.ts";

let folder: string;
let archive: string;
const images = () => join(folder, "images");
const names = () => readdirSync(images()).filter((name) => !name.startsWith("."));
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "store-"));
  mkdirSync(images());
  archive = join(folder, "x.tar");
  write("content");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function write(content: string, path = archive): void {
  writeFileSync(path, Buffer.concat([entry({ name: "file", content }), end()]));
}

/** A store, the digests in use, and how often something was unpacked. */
async function open(changes: Partial<ImageStoreOptions> = {}) {
  const used = new Set<string>();
  let now = systemClock.now();
  const clock: Clock = { ...systemClock, now: () => now };
  const state = { unpacked: 0 };
  const store = new ImageStore({
    folder: images(),
    owners: "own",
    limits: { bytes: 1 << 20, entries: 100 },
    keepMs: 1_000,
    clock,
    bootId: "boot-1",
    flush: async () => {},
    used: async () => used,
    ...changes,
    unpack: async (request, onBytes, signal) => {
      state.unpacked += 1;
      return await (changes.unpack ?? ((one: UnpackRequest) => unpackArchive(one, () => {})))(request, onBytes, signal);
    },
  });
  await store.open();
  return {
    store,
    used,
    state,
    pass: (ms: number) => {
      now += ms;
    },
  };
}

const wanted = async () => true;

describe("ImageStore", () => {
  it("unpacks once for those who ask at the same time, and for those who ask later, also under another name", async () => {
    const { state, store } = await open();
    const found = await Promise.all([store.acquire(archive, wanted), store.acquire(archive, wanted)]);
    expect(readFileSync(join(found[0].root, "file"), "utf8")).toBe("content");
    const again = await store.acquire(archive, wanted);
    expect([again.digest, found[1].digest, state.unpacked]).toEqual([found[0].digest, found[0].digest, 1]);
    write("content", join(folder, "copy.tar"));
    const copy = await store.acquire(join(folder, "copy.tar"), wanted);
    expect([copy.digest, names()]).toEqual([found[0].digest, [found[0].digest]]);
    await store.acquire(join(folder, "copy.tar"), wanted);
    expect(state.unpacked).toBe(2);
    await store[Symbol.asyncDispose]();
  });

  it("is found again when the store is opened anew, and an archive that changed is another image", async () => {
    const first = await open();
    const { digest } = await first.store.acquire(archive, wanted);
    await first.store[Symbol.asyncDispose]();
    const second = await open();
    second.used.add(digest);
    expect((await second.store.acquire(archive, wanted)).digest).toBe(digest);
    expect(second.state.unpacked).toBe(0);
    write("other content");
    expect((await second.store.acquire(archive, wanted)).digest).not.toBe(digest);
    await second.store[Symbol.asyncDispose]();
  });

  it("unpacks again when somebody cleared the folder", async () => {
    const { state, store } = await open({ flush: () => new Promise(() => {}) });
    const { digest } = await store.acquire(archive, wanted);
    rmSync(join(images(), digest), { recursive: true });
    expect(() => store.get(digest)).toThrow(/is gone/);
    await store.sweep();
    expect((await store.acquire(archive, wanted)).digest).toBe(digest);
    expect([names(), state.unpacked]).toEqual([[digest], 2]);
    await store[Symbol.asyncDispose]();
  });

  it("removes an image when nobody used it for its time, not while it is held or used", async () => {
    // Writing the record anew would set the time of its file by another clock.
    const { pass, store, used } = await open({ flush: () => new Promise(() => {}) });
    const held = await store.acquire(archive, wanted);
    pass(10_000);
    await store.sweep();
    expect(names()).toEqual([held.digest]);
    used.add(held.digest);
    await held[Symbol.asyncDispose]();
    pass(10_000);
    await store.sweep();
    used.clear();
    await store.sweep();
    expect(names()).toEqual([held.digest]);
    pass(1_001);
    await store.sweep();
    await store[Symbol.asyncDispose]();
    expect(readdirSync(images())).toEqual([]);
    expect(() => store.get(held.digest)).toThrow(/is gone/);
  });

  it("leaves alone what was taken into use while it swept", async () => {
    let release = (): void => {};
    const asked = new Promise<void>((resolve) => {
      release = resolve;
    });
    let slow = false;
    const used = new Set<string>();
    const { store } = await open({
      keepMs: 0,
      used: async () => {
        const then = new Set(used);
        if (slow) await asked;
        return then;
      },
    });
    slow = true;
    const sweep = store.sweep();
    const held = await store.acquire(archive, wanted);
    used.add(held.digest);
    await held[Symbol.asyncDispose]();
    release();
    await sweep;
    expect(names()).toEqual([held.digest]);
    await store[Symbol.asyncDispose]();
  });

  it("removes what a crash left, and what a power failure may have cost", async () => {
    const first = await open({ flush: () => new Promise(() => {}) });
    const { digest } = await first.store.acquire(archive, wanted);
    mkdirSync(join(images(), ".tmp-1/root"), { recursive: true });
    mkdirSync(join(images(), "e".repeat(64)));
    const same = await open({ flush: () => new Promise(() => {}) });
    await same.store[Symbol.asyncDispose]();
    expect(readdirSync(images())).toEqual([digest]);
    const other = await open({ bootId: "boot-2" });
    await other.store[Symbol.asyncDispose]();
    expect(readdirSync(images())).toEqual([]);
  });

  it("keeps an image that a sandbox uses when its record is damaged, says so, and makes it whole from the archive", async () => {
    const first = await open();
    const { digest } = await first.store.acquire(archive, wanted);
    const file = join(images(), digest, "image.json");
    const settled = () => expect.poll(() => JSON.parse(readFileSync(file, "utf8")).bootId).toBeNull();
    await settled();
    await first.store[Symbol.asyncDispose]();
    for (const used of [new Set([digest]), "unknown" as const]) {
      writeFileSync(file, "{");
      const second = await open({ used: async () => used });
      expect(names()).toEqual([digest]);
      expect(() => second.store.get(digest)).toThrow(`${file} is damaged`);
      await second.store.acquire(archive, wanted);
      expect(second.store.get(digest).digest).toBe(digest);
      expect(readFileSync(join(images(), digest, "root/file"), "utf8")).toBe("content");
      await settled();
      await second.store[Symbol.asyncDispose]();
    }
    writeFileSync(file, "{");
    await (await open()).store[Symbol.asyncDispose]();
    expect(names()).toEqual([]);
  });

  it("removes nothing while it is unknown what sandboxes use", async () => {
    const { store, pass } = await open({ used: async () => "unknown" });
    await (await store.acquire(archive, wanted))[Symbol.asyncDispose]();
    pass(10_000);
    await store.sweep();
    expect(names()).toHaveLength(1);
    await store[Symbol.asyncDispose]();
  });

  it("keeps an image over a start of the machine once its files were on the disk", async () => {
    const first = await open();
    const { digest } = await first.store.acquire(archive, wanted);
    await expect.poll(() => JSON.parse(readFileSync(join(images(), digest, "image.json"), "utf8")).bootId).toBeNull();
    const other = await open({ bootId: "boot-2" });
    expect(other.store.get(digest).digest).toBe(digest);
    await other.store[Symbol.asyncDispose]();
  });

  it("ends when nobody waits any more, and leaves nothing", async () => {
    let stopped = false;
    const { store } = await open({
      unpack: (_request, _onBytes, signal) =>
        new Promise((_, reject) => {
          signal.addEventListener("abort", () => {
            stopped = true;
            reject(signal.reason);
          });
        }),
    });
    const said: string[] = [];
    const gone = store.acquire(archive, async (message) => {
      said.push(message);
      return false;
    });
    await expect(gone).rejects.toMatchObject({
      code: "image_unavailable",
      message: expect.stringMatching(/nobody waits/),
    });
    expect(stopped).toBe(true);
    expect(said[0]).toMatch(/unpack/);
    await store[Symbol.asyncDispose]();
    expect(readdirSync(images())).toEqual([]);
  });

  it("refuses an archive that changes while it is read, one that is too large, and one that is not there", async () => {
    const { store } = await open({
      unpack: async (request) => {
        const image = await unpackArchive(request, () => {});
        utimesSync(archive, 1, 1);
        return image;
      },
    });
    await expect(store.acquire(archive, wanted)).rejects.toMatchObject({ code: "image_unavailable", retryable: true });
    writeFileSync(join(folder, "large.tar"), Buffer.alloc((1 << 20) + 1));
    await expect(store.acquire(join(folder, "large.tar"), wanted)).rejects.toMatchObject({ code: "image_invalid" });
    await expect(store.acquire(join(folder, "none.tar"), wanted)).rejects.toMatchObject({ code: "image_unavailable" });
    await store[Symbol.asyncDispose]();
    expect(readdirSync(images())).toEqual([]);
  });

  it("unpacks two at once, the others after them", async () => {
    let running = 0;
    let most = 0;
    const { store } = await open({
      unpack: async (request) => {
        running += 1;
        most = Math.max(most, running);
        await new Promise((resolve) => setTimeout(resolve, 10));
        running -= 1;
        return await unpackArchive(request, () => {});
      },
    });
    const archives = [1, 2, 3, 4, 5].map((index) => join(folder, `${index}.tar`));
    for (const [index, path] of archives.entries()) write(`content ${index}`, path);
    const found = await Promise.all(archives.map((path) => store.acquire(path, wanted)));
    expect([new Set(found.map(({ digest }) => digest)).size, most]).toEqual([5, 2]);
    await store[Symbol.asyncDispose]();
  });
});
