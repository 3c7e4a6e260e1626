import {
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { type Clock, systemClock } from "@openshell/base";
import pino from "pino";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type SlotRequest, StagedArchives, takenArchive } from "./archives.ts";
import { StagingLimit } from "./limits.ts";

let state: string;
let now: number;
/** What sleeps, and until when. */
let sleepers: { readonly until: number; readonly wake: () => void }[];
let open: StagedArchives[];
const log = pino({ level: "silent" });
const clock: Clock = {
  ...systemClock,
  now: () => now,
  sleep: (ms) => new Promise((wake) => void sleepers.push({ until: now + ms, wake })),
};
beforeEach(() => {
  state = mkdtempSync(join(tmpdir(), "staging-"));
  now = 1_000_000;
  sleepers = [];
  open = [];
});
afterEach(async () => {
  for (const archives of open) await archives[Symbol.asyncDispose]();
  rmSync(state, { recursive: true, force: true });
});

const inStaging = () => (existsSync(join(state, "staging")) ? readdirSync(join(state, "staging")).toSorted() : []);
const everything = () => readdirSync(state, { recursive: true }).toSorted();
const WHO = { workspace: "default", subject: "uid:0" };
const request = (changes: Partial<SlotRequest> = {}): SlotRequest => ({
  ...WHO,
  fileName: "x.tar",
  sizeBytes: 4n,
  ...changes,
});
const forSandbox = (sandboxId: string, changes: Partial<SlotRequest> = {}) => ({ ...WHO, ...changes, sandboxId });

async function started(wanted: readonly string[] = [], maxBytes = 1_000): Promise<StagedArchives> {
  const archives = new StagedArchives({ state, clock, log, maxBytes });
  open.push(archives);
  await archives.open(async (id) => wanted.includes(id));
  return archives;
}

async function pass(ms: number): Promise<void> {
  now += ms;
  for (const { until, wake } of sleepers) if (until <= now) wake();
  // What woke up removes files.
  for (let turn = 0; turn < 200 && inStaging().some((name) => name.startsWith(".trash-")); turn++)
    await new Promise((resolve) => setTimeout(resolve, 5));
  await new Promise((resolve) => setTimeout(resolve, 20));
}

const REFUSED = /the staging token is unknown, expired or was used before/;

describe("a staged archive", () => {
  it("is copied into a private folder and taken by one sandbox, as a file of the gateway's alone", async () => {
    const archives = await started();
    const slot = await archives.begin(request());
    expect(slot).toMatchObject({ maxBytes: 1_000, expiresAt: now + 30 * 60_000 });
    expect(slot.path).toMatch(/\/staging\/slot-[0-9a-f]{16}\/upload\/x\.tar$/);
    for (let at = dirname(slot.path); at !== state; at = dirname(at)) expect(statSync(at).mode & 0o777).toBe(0o700);
    writeFileSync(slot.path, "four", { mode: 0o644 });
    await archives.take(slot.token, forSandbox("box-1"));
    const taken = takenArchive(state, "box-1");
    expect(readFileSync(taken, "utf8")).toBe("four");
    expect(statSync(taken).mode & 0o777).toBe(0o600);
    expect(inStaging()).toEqual(["of-box-1"]);
    await archives.release("box-1");
    expect(inStaging()).toEqual([]);
  });

  it("has a token that no file holds, 32 random bytes of it", async () => {
    const archives = await started();
    const { token } = await archives.begin(request());
    expect(Buffer.from(token, "base64url")).toHaveLength(32);
    for (const name of everything()) {
      expect(name).not.toContain(token);
      const path = join(state, String(name));
      if (statSync(path).isFile()) expect(readFileSync(path, "utf8")).not.toContain(token);
    }
  });

  it("is taken once: of ten sandboxes at the same moment one gets it", async () => {
    const archives = await started();
    const slot = await archives.begin(request());
    writeFileSync(slot.path, "four");
    const taken = await Promise.allSettled(
      Array.from({ length: 10 }, (_, n) => archives.take(slot.token, forSandbox(`box-${n}`))),
    );
    expect(taken.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
    await expect(archives.take(slot.token, forSandbox("box-x"))).rejects.toThrow(REFUSED);
    expect(inStaging()).toHaveLength(1);
  });

  it.each([
    ["another workspace", { workspace: "other" }],
    ["another caller", { subject: "openshell-user" }],
  ])("is not given to %s, and stays its owner's", async (_, changes) => {
    const archives = await started();
    const slot = await archives.begin(request());
    writeFileSync(slot.path, "four");
    await expect(archives.take(slot.token, forSandbox("box-1", changes))).rejects.toThrow(REFUSED);
    await archives.take(slot.token, forSandbox("box-2"));
  });

  it("is refused when it is not a file of the announced size under one name, and its token is gone", async () => {
    const archives = await started();
    const secret = join(state, "secret");
    writeFileSync(secret, "keys");
    const cases: [what: string, put: (path: string) => void, says: RegExp][] = [
      ["nothing", () => {}, /is not there/],
      ["shorter", (path) => writeFileSync(path, "abc"), /has 3 bytes where 4 were announced/],
      ["longer", (path) => writeFileSync(path, "abcde"), /has 5 bytes/],
      ["a link", (path) => symlinkSync(secret, path), /is a link/],
      ["a second name of another file", (path) => linkSync(secret, path), /second name/],
      ["a folder", (path) => mkdirSync(path), /is no regular file/],
      [
        "a link in place of the folder",
        (path) => {
          rmSync(dirname(path), { recursive: true });
          mkdirSync(join(state, "elsewhere"));
          writeFileSync(join(state, "elsewhere/x.tar"), "abcd");
          symlinkSync(join(state, "elsewhere"), dirname(path));
        },
        /is not there/,
      ],
      [
        "a link in place of the slot",
        (path) => {
          const slot = dirname(dirname(path));
          rmSync(slot, { recursive: true });
          mkdirSync(join(state, "slot/upload"), { recursive: true });
          writeFileSync(join(state, "slot/upload/x.tar"), "abcd");
          symlinkSync(join(state, "slot"), slot);
        },
        /is not there/,
      ],
    ];
    for (const [what, put, says] of cases) {
      const slot = await archives.begin(request());
      put(slot.path);
      await expect(archives.take(slot.token, forSandbox("box-1")), what).rejects.toThrow(says);
      await expect(archives.take(slot.token, forSandbox("box-1")), what).rejects.toThrow(REFUSED);
      expect(inStaging(), what).toEqual([]);
    }
    expect(readFileSync(secret, "utf8")).toBe("keys");
    for (const kept of ["elsewhere/x.tar", "slot/upload/x.tar"])
      expect(readFileSync(join(state, kept), "utf8")).toBe("abcd");
  });

  it("whose slot somebody removed is refused as one that has expired", async () => {
    const archives = await started();
    const slot = await archives.begin(request());
    rmSync(dirname(dirname(slot.path)), { recursive: true });
    await expect(archives.take(slot.token, forSandbox("box-1"))).rejects.toThrow(REFUSED);
  });
});

describe("a slot", () => {
  it.each(["", ".", "..", "../x.tar", "/etc/x.tar", "a/b.tar", "a\\b.tar", "x\0.tar", "x\n.tar", "é".repeat(128)])(
    "is not made for the file name %j",
    async (fileName) => {
      const archives = await started();
      await expect(archives.begin(request({ fileName }))).rejects.toThrow(/file_name: must/);
      expect(inStaging()).toEqual([]);
    },
  );

  it.each([0n, 1_001n, 2n ** 64n - 1n])("is not made for %d bytes", async (sizeBytes) => {
    const archives = await started();
    await expect(archives.begin(request({ sizeBytes }))).rejects.toThrow(/size_bytes: must be from 1 to 1000/);
  });

  it("is not made where the driver takes no archives, or where the disk has no room for it", async () => {
    await expect((await started([], 0)).begin(request())).rejects.toThrow(/takes no root file system archives/);
    const archives = await started([], Number.MAX_SAFE_INTEGER);
    const sizeBytes = BigInt(Number.MAX_SAFE_INTEGER);
    await expect(archives.begin(request({ sizeBytes }))).rejects.toThrow(/disk has \d+ bytes left/);
    expect(inStaging()).toEqual([]);
  });

  it("is one of a bounded number, also when all are asked for at once", async () => {
    const archives = await started();
    const asked = Array.from({ length: StagingLimit.slotsOfWorkspace + 5 }, () => archives.begin(request()));
    const outcomes = await Promise.allSettled(asked);
    expect(outcomes.filter(({ status }) => status === "rejected")).toHaveLength(5);
    await archives.begin(request({ workspace: "other" }));
    for (let n = 0; n < StagingLimit.slots - StagingLimit.slotsOfWorkspace - 1; n++)
      await archives.begin(request({ workspace: `w${n}` }));
    await expect(archives.begin(request({ workspace: "last" }))).rejects.toThrow(/64 in all are being staged/);
    await pass(StagingLimit.slotMs);
    await archives.begin(request());
  });

  it("is removed with its archive after half an hour, whatever the wall clock says then", async () => {
    const archives = await started();
    const slot = await archives.begin(request());
    writeFileSync(slot.path, "four");
    await pass(StagingLimit.slotMs - 1);
    expect(inStaging()).toHaveLength(1);
    await pass(1);
    expect(inStaging()).toEqual([]);
    await expect(archives.take(slot.token, forSandbox("box-1"))).rejects.toThrow(REFUSED);
  });
});

describe("after a crash of the gateway", () => {
  it("a slot is still good, until its time is over", async () => {
    const slot = await (await started()).begin(request());
    writeFileSync(slot.path, "four");
    await (await started()).take(slot.token, forSandbox("box-1"));
    const late = await (await started(["box-1"])).begin(request());
    writeFileSync(late.path, "four");
    now += StagingLimit.slotMs;
    await expect((await started(["box-1"])).take(late.token, forSandbox("box-2"))).rejects.toThrow(REFUSED);
    expect(inStaging()).toEqual(["of-box-1"]);
  });

  it("archives of sandboxes that were never stored, were made or are gone are removed, and all that is half done", async () => {
    const archives = await started();
    for (const id of ["stored", "lost"]) {
      const slot = await archives.begin(request());
      writeFileSync(slot.path, "four");
      await archives.take(slot.token, forSandbox(id));
    }
    const { token, path } = await archives.begin(request());
    writeFileSync(path, "four");
    const slot = dirname(dirname(path));
    // Died between the use of the token and the taking of the file.
    renameSync(slot, join(state, "staging/.used-x"));
    mkdirSync(join(state, "staging/slot-0123456789abcdef/upload"), { recursive: true });
    writeFileSync(join(state, "staging/rubbish"), "");
    const next = await started(["stored"]);
    expect(inStaging()).toEqual(["of-stored"]);
    await expect(next.take(token, forSandbox("box-1"))).rejects.toThrow(REFUSED);
  });

  it("what was begun while the folder was looked through is left alone", async () => {
    const archives = new StagedArchives({ state, clock, log, maxBytes: 1_000 });
    open.push(archives);
    const slot = await archives.begin(request());
    writeFileSync(slot.path, "four");
    await archives.take(slot.token, forSandbox("box-1"));
    await archives.begin(request());
    await archives.open(async () => false);
    expect(inStaging()).toEqual(["of-box-1", expect.stringMatching(/^slot-/)]);
  });
});
