import { execFileSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import {
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { create } from "@bufbuild/protobuf";
import { SandboxPhase, SandboxSpecSchema, SandboxStatusSchema } from "@openshell/api";
import { RuntimeError } from "@openshell/base";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { checkDatabaseIsThere, prepareDatabase } from "./sqlite.ts";
import { openStore } from "./store.ts";

/** What may stand in the place of the database at a start: it is refused as it is, or all of it can be read. */

vi.setConfig({ testTimeout: 60_000 });

const SANDBOXES = 60;
let state: string;
let path: string;
beforeEach(async () => {
  state = mkdtempSync(join(tmpdir(), "openshell-damaged-"));
  path = join(state, "gateway.db");
});
afterEach(() => rmSync(state, { recursive: true }));

async function fill(): Promise<Buffer> {
  await using store = await openStore(path);
  await Promise.all(
    Array.from({ length: SANDBOXES }, (_, n) =>
      store.write(
        store.sandboxes.create({
          id: randomUUID(),
          name: `box-${n}`,
          workspace: "default",
          labels: {},
          annotations: { text: "x".repeat(2_000) },
          createdAt: n,
          spec: create(SandboxSpecSchema, { command: ["true"] }),
          status: create(SandboxStatusSchema, { phase: SandboxPhase.STOPPED }),
          hostKeyFingerprint: "",
          workloadTemplate: undefined,
          generation: 1n,
          driver: "local",
          driverRecord: null,
          runtimeRecord: null,
        }),
      ),
    ),
  );
  await store[Symbol.asyncDispose]();
  return readFileSync(path);
}

/** The error with which it is not opened; undefined when it was, and everything could be read. */
async function refusal(): Promise<RuntimeError | undefined> {
  try {
    await using store = await openStore(path);
    expect(await store.sandboxes.list({ limit: 1_000 })).toHaveLength(SANDBOXES);
    return undefined;
  } catch (error) {
    if (!(error instanceof RuntimeError)) throw error;
    return error;
  }
}

function expectRefused(error: RuntimeError | undefined, what: string, cause: RegExp = /./): void {
  expect([what, error?.code]).toEqual([what, "store_unusable"]);
  expect(error!.message).toContain(path);
  expect(error!.message).toMatch(cause);
  expect(error!.message).not.toMatch(/\n/);
  expect(error!.next).toMatch(/backup/);
}

/** A generator of numbers from 0 to 1, the same ones each time (mulberry32). */
function numbers(seed: number): () => number {
  let at = seed;
  return () => {
    at = (at + 0x6d2b79f5) | 0;
    let mixed = Math.imul(at ^ (at >>> 15), 1 | at);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

describe("a database", () => {
  it("that was cut off is refused wherever the cut is, and stays as it is", async () => {
    const whole = await fill();
    const random = numbers(1);
    const lengths = [1, 15, 100, 511, 512, 4_095, 4_096, whole.length - 1, whole.length - 4_096];
    for (let n = 0; n < 15; n++) lengths.push(1 + Math.floor(random() * (whole.length - 1)));
    for (const length of lengths) {
      writeFileSync(path, whole);
      truncateSync(path, length);
      expectRefused(await refusal(), `cut at ${length}`);
      expect(readFileSync(path).equals(whole.subarray(0, length)), `cut at ${length}`).toBe(true);
    }
  });

  it("with a damaged page is refused and stays as it is", async () => {
    const whole = await fill();
    for (let page = 0; page * 4_096 < whole.length; page += 7) {
      const damaged = Buffer.from(whole);
      damaged.fill(0xa5, page * 4_096, page * 4_096 + 4_096);
      writeFileSync(path, damaged);
      // Of a page that is free, or of content alone, SQLite has no checksum.
      const error = await refusal().catch((other: Error) => other);
      if (error === undefined) continue;
      expectRefused(error as RuntimeError, `page ${page}`);
      expect(readFileSync(path).equals(damaged), `page ${page}`).toBe(true);
    }
  });

  it("of a newer version is not touched", async () => {
    await fill();
    const database = new DatabaseSync(path);
    database.exec("insert into schema_migrations values (999, 'future', 0)");
    database.close();
    const before = readFileSync(path);
    const error = await refusal();
    expect(error).toMatchObject({ code: "store_too_new", message: expect.stringContaining(path) });
    expect(readFileSync(path).equals(before)).toBe(true);
  });

  it("is no folder, pipe, link, or file of other things or of somebody else", async () => {
    const cases: [what: string, put: () => void, cause: RegExp][] = [
      ["text", () => writeFileSync(path, "no database at all\n".repeat(1_000), { mode: 0o600 }), /not a database/],
      ["a folder", () => mkdirSync(path), /folder|directory/],
      ["a pipe", () => void execFileSync("mkfifo", [path]), /no regular file/],
      ["a link", () => symlinkSync(join(state, "elsewhere"), path), /link/],
    ];
    if (process.getuid!() === 0) {
      const foreign = (): void => {
        prepareDatabase(path);
        chownSync(path, 4_321, 4_321);
      };
      cases.push(["somebody else's", foreign, /belongs to uid 4321/]);
    }
    for (const [what, put, cause] of cases) {
      put();
      const before = lstatSync(path);
      expectRefused(await refusal(), what, cause);
      const { ino, mode, size, mtimeMs } = lstatSync(path);
      expect([ino, mode, size, mtimeMs], what).toEqual([before.ino, before.mode, before.size, before.mtimeMs]);
      for (const name of readdirSync(state)) rmSync(join(state, name), { recursive: true });
    }
  });

  it("with a damaged log of writes loses no more than what was in it, or is refused", async () => {
    await fill();
    writeFileSync(`${path}-wal`, "x".repeat(100_000));
    expect(await refusal()).toBeUndefined();
    rmSync(`${path}-wal`, { force: true });
    mkdirSync(`${path}-wal`);
    expectRefused(await refusal(), "a folder as log");
  });
});

describe("a state folder with sandboxes", () => {
  const sandboxFolder = (): string => join(state, "sandboxes", randomUUID());

  it("is not started with an empty database: what it does not know would be removed", async () => {
    await fill();
    mkdirSync(sandboxFolder(), { recursive: true });
    checkDatabaseIsThere(state);
    renameSync(path, `${path}.aside`);
    for (const put of [() => {}, () => writeFileSync(path, "")]) {
      put();
      const present = existsSync(path);
      let error: unknown;
      try {
        checkDatabaseIsThere(state);
      } catch (thrown) {
        error = thrown;
      }
      expectRefused(error as RuntimeError, "no database", /1 sandbox/);
      expect(existsSync(path)).toBe(present);
    }
  });

  it("is new without sandboxes, whatever else of a first start is there", () => {
    checkDatabaseIsThere(state);
    mkdirSync(join(state, "sandboxes", ".trash-1"), { recursive: true });
    writeFileSync(path, "");
    checkDatabaseIsThere(state);
  });
});
