import {
  chmodSync,
  closeSync,
  copyFileSync,
  fstatSync,
  mkdtempSync,
  openSync,
  renameSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import { RuntimeError } from "@openshell/base";
import type { SocketOwner, SocketPair } from "@openshell/boundary";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WorkerHasher } from "./hash.ts";
import { type Identification, Identifier, sameOwners } from "./identify.ts";

const pair: SocketPair = {
  family: 4,
  local: { address: "127.0.0.1", port: 1 },
  remote: { address: "1.1.1.1", port: 443 },
};
const hasher = new WorkerHasher();
let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "identify-"));
});
afterAll(async () => {
  rmSync(folder, { recursive: true });
  await hasher[Symbol.asyncDispose]();
});

function program(name: string, content: string): string {
  const path = join(folder, name);
  writeFileSync(path, content);
  chmodSync(path, 0o755);
  return path;
}

function owner(path: string, shown = path): SocketOwner {
  const exeFd = openSync(path, "r");
  const { dev, ino, size, mtimeNs, ctimeNs } = fstatSync(exeFd, { bigint: true });
  return {
    pid: 7,
    exe: shown,
    exeFd,
    exeKey: { dev, ino, size, mtimeNs, ctimeNs },
    ancestors: [{ pid: 1, exe: "/bin/sh" }],
  };
}

/** An hour ahead: every file has settled. */
const later = (): number => Date.now() + 3_600_000;

function counting() {
  let hashes = 0;
  return {
    get hashes() {
      return hashes;
    },
    hash: (fd: number, size: number) => {
      hashes += 1;
      return hasher.hash(fd, size);
    },
    async [Symbol.asyncDispose]() {},
  };
}

describe("identities", () => {
  test("carry path, ancestors and digest, and every descriptor is closed", async () => {
    const path = program("one", "content one");
    const closed: number[] = [];
    const found = owner(path);
    const identifier = new Identifier({
      identify: async () => [found],
      hasher,
      now: later,
      closeFd: (fd) => {
        closed.push(fd);
        closeSync(fd);
      },
    });
    const result = await identifier.identify(pair);
    expect(result).toMatchObject({ known: true, owners: [{ pid: 7, process: { exe: path, ancestors: ["/bin/sh"] } }] });
    expect(result.known && result.owners[0]!.digest).toMatch(/^[0-9a-f]{64}$/);
    expect(closed).toEqual([found.exeFd]);
  });

  test("an unchanged file is hashed once; one that changed moments ago each time", async () => {
    const path = program("two", "content two");
    const settled = counting();
    const identifier = new Identifier({ identify: async () => [owner(path)], hasher: settled, now: later });
    await identifier.identify(pair);
    await identifier.identify(pair);
    expect(settled.hashes).toBe(1);
    const fresh = counting();
    const careful = new Identifier({ identify: async () => [owner(path)], hasher: fresh, now: Date.now });
    await careful.identify(pair);
    await careful.identify(pair);
    expect(fresh.hashes).toBe(2);
  });

  test("a program replaced under its path is refused, also with its times put back", async () => {
    const path = program("three", "original");
    const { atime, mtime } = fstatSync(openSync(path, "r"));
    const identifier = new Identifier({ identify: async () => [owner(path)], hasher, now: later });
    expect((await identifier.identify(pair)).known).toBe(true);
    const other = program("other", "evil one");
    renameSync(other, path);
    utimesSync(path, atime, mtime);
    expect(await identifier.identify(pair)).toMatchObject({
      known: false,
      reason: expect.stringContaining("integrity"),
    });
  });

  test("the same content at another path is another identity", async () => {
    const path = program("four", "content four");
    const copy = join(folder, "copy");
    copyFileSync(path, copy);
    const queue = [owner(path), owner(copy)];
    const identifier = new Identifier({ identify: async () => [queue.shift()!], hasher, now: later });
    expect((await identifier.identify(pair)).known).toBe(true);
    expect((await identifier.identify(pair)).known).toBe(true);
  });

  test.each<[string, () => Promise<readonly SocketOwner[]>]>([
    ["nobody holds the socket", async () => []],
    ["the lookup fails", () => Promise.reject(new Error("gone"))],
    ["the executable cannot be opened", async () => [{ ...owner(program("five", "x")), exeFd: undefined }]],
    [
      "the executable is larger than the limit",
      async () => {
        const found = owner(program("six", "x"));
        return [{ ...found, exeKey: { ...found.exeKey!, size: 1n << 40n } }];
      },
    ],
    [
      "the file is longer than it was said to be",
      async () => {
        const found = owner(program("seven", "longer"));
        return [{ ...found, exeKey: { ...found.exeKey!, size: 2n } }];
      },
    ],
  ])("unknown when %s", async (_, identify) => {
    const identifier = new Identifier({ identify, hasher, now: later });
    expect((await identifier.identify(pair)).known).toBe(false);
  });

  test("a lookup that fails says by which code, and nothing else", async () => {
    const ask = (error: Error): Promise<Identification> =>
      new Identifier({ identify: async () => Promise.reject(error), hasher, now: later }).identify(pair);
    expect(await ask(new RuntimeError("boundary_timeout", "not answered /secret"))).toEqual({
      known: false,
      reason: "failed to resolve peer binary: the lookup failed (boundary_timeout)",
    });
    expect(await ask(new Error("/secret"))).toEqual({
      known: false,
      reason: "failed to resolve peer binary: the lookup failed (unexpected)",
    });
  });

  test("each lookup waits for the sandbox's turn, those that are tried again as well", async () => {
    const path = program("turns", "x");
    const order: string[] = [];
    const found: SocketOwner[][] = [[], [], [owner(path)]];
    const identifier = new Identifier({
      identify: async () => {
        order.push("lookup");
        return found.shift()!;
      },
      hasher,
      now: later,
      turn: async () => {
        await nextTurn();
        order.push("turn");
      },
    });
    expect((await identifier.identify(pair)).known).toBe(true);
    expect(order).toEqual(["turn", "lookup", "turn", "lookup", "turn", "lookup"]);
  });

  test("one unreadable owner spoils them all", async () => {
    const good = owner(program("eight", "x"));
    const identifier = new Identifier({
      identify: async () => [good, { ...good, exeFd: undefined }],
      hasher,
      now: later,
    });
    expect((await identifier.identify(pair)).known).toBe(false);
  });

  test("two lookups give equal owners", async () => {
    const path = program("nine", "x");
    const identifier = new Identifier({ identify: async () => [owner(path)], hasher, now: later });
    const [a, b] = [await identifier.identify(pair), await identifier.identify(pair)];
    expect(a.known && b.known && sameOwners(a.owners, b.owners)).toBe(true);
  });
});
