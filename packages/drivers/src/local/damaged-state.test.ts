import { execFileSync } from "node:child_process";
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { DriverError, type StartedSandbox } from "../driver.ts";
import { usedImages } from "./image/roots.ts";
import { type LaunchRecord, SandboxFolders } from "./state.ts";
import { NO_VOLUMES } from "./volumes/volume-care.ts";

/** What may stand in the place of the driver's files about a sandbox: read as a whole or refused, never changed. */

const ID = "0192b3a4-0000-7000-8000-000000000001";
let root: string;
let folders: SandboxFolders;
beforeEach(() => {
  root = realpathSync(mkdtempSync(join(tmpdir(), "openshell-damaged-state-")));
  folders = new SandboxFolders(root);
  mkdirSync(folders.of(ID));
});
afterEach(() => rmSync(root, { recursive: true }));

const LAUNCH: LaunchRecord = {
  sandboxId: ID,
  name: "box",
  workspace: "default",
  generation: 3n,
  nonceHash: "0".repeat(64),
  title: "openshell-init:x",
  controlFolder: "/run/x/s/1",
  cgroups: ["/sys/fs/cgroup/x"],
  volumes: NO_VOLUMES,
  request: { hostname: "h", process: {}, volumes: [], root: { kind: "host" }, idBlock: undefined } as never,
};
const STARTED = {
  sandboxId: ID,
  generation: 3n,
  record: { bootId: "b", pid: 7, startTime: 5n },
  boundary: { kind: "local", socketPath: "/run/x/s/1/control", netnsCookie: 9n },
  layout: {
    home: "/sandbox",
    workingDirectory: "/sandbox",
    uid: 1000,
    gid: 1000,
    readOnlyPaths: [],
    readWritePaths: [],
    processLimit: 10,
    environment: {},
  },
  isolation: [{ name: "confined", enforced: true, detail: "" }],
} as unknown as StartedSandbox;

/** Each file with how it is written and read back. */
const FILES: Readonly<Record<string, { write: () => Promise<void>; read: () => Promise<unknown> }>> = {
  "launch.json": { write: () => folders.writeLaunch(LAUNCH), read: () => folders.readLaunch(ID) },
  "started.json": { write: () => folders.writeStarted(STARTED), read: () => folders.readStarted(ID) },
  "image.json": {
    write: () => folders.writeImage(ID, { kind: "archive", digest: "a".repeat(64) }),
    read: () => folders.readImage(ID),
  },
  "quota.json": { write: () => folders.writeQuota(ID, 70_000), read: () => folders.readQuota(ID) },
};

const put =
  (data: string | Buffer) =>
  (path: string): void =>
    writeFileSync(path, data);
const STATES: Readonly<Record<string, (path: string) => void>> = {
  empty: put(""),
  zeros: put(Buffer.alloc(512)),
  garbage: put(Buffer.from([0xff, 0xd8, 0x1b, 0x5b, 0x32, 0x4a])),
  "no object": put("[]"),
  null: put("null"),
  "of no kind": put("{}"),
  huge: put(`{"x": "${"y".repeat(20 << 20)}"}`),
  "nested too deeply": put("[".repeat(200_000)),
  "a folder": (path) => void mkdirSync(path),
  "a pipe": (path) => void execFileSync("mkfifo", [path]),
  "a device": (path) => symlinkSync("/dev/zero", path),
  "a link to itself": (path) => symlinkSync(path, path),
};

async function problem(file: string, what: string): Promise<string | undefined> {
  const path = join(folders.of(ID), file);
  const before = lstatSync(path);
  try {
    const value = await FILES[file]!.read();
    return `${file} ${what}: taken as ${String(value)}`;
  } catch (error) {
    if (!(error instanceof DriverError)) return `${file} ${what}: ${(error as Error).stack}`;
    const { code, message, next } = error;
    const good =
      code === "state_unreadable" &&
      message.includes(path) &&
      message.length < 700 &&
      next !== "" &&
      !/\p{Cc}/u.test(message + next);
    const after = lstatSync(path);
    const same = after.ino === before.ino && after.mtimeMs === before.mtimeMs && after.size === before.size;
    return good && same ? undefined : `${file} ${what}: ${code}: ${message}. ${next}`;
  }
}

describe("the driver's files about a sandbox", () => {
  it("are read back as they were written", async () => {
    for (const { write } of Object.values(FILES)) await write();
    expect(await folders.readLaunch(ID)).toEqual(LAUNCH);
    expect(await folders.readStarted(ID)).toEqual(STARTED);
    expect(await folders.readQuota(ID)).toBe(70_000);
    for (const file of Object.keys(FILES)) rmSync(join(folders.of(ID), file));
    for (const { read } of Object.values(FILES)) expect(await read()).toBeUndefined();
  });

  it("are refused in every state in which they are none", async () => {
    const problems: (string | undefined)[] = [];
    for (const file of Object.keys(FILES)) {
      for (const [what, make] of Object.entries(STATES)) {
        const path = join(folders.of(ID), file);
        make(path);
        problems.push(await problem(file, what));
        rmSync(path, { recursive: true });
      }
    }
    expect(problems.filter((text) => text !== undefined)).toEqual([]);
  });

  it("are refused wherever they are cut off, and with each field missing or of another type", async () => {
    const problems: (string | undefined)[] = [];
    for (const [file, { write }] of Object.entries(FILES)) {
      await write();
      const path = join(folders.of(ID), file);
      const whole = readFileSync(path, "utf8");
      for (let length = 0; length < whole.trimEnd().length; length += 13) {
        writeFileSync(path, whole.slice(0, length));
        problems.push(await problem(file, `cut at ${length}`));
      }
      const value = JSON.parse(whole) as Record<string, unknown>;
      for (const key of Object.keys(value)) {
        const { [key]: old, ...rest } = value;
        const others = [
          ...(key === "volumes" ? [] : [rest]),
          { ...rest, [key]: null },
          { ...rest, [key]: Array.isArray(old) ? {} : [] },
        ];
        for (const other of others) {
          writeFileSync(path, JSON.stringify(other));
          problems.push(await problem(file, `${key}: ${JSON.stringify((other as Record<string, unknown>)[key])}`));
        }
      }
      rmSync(path);
    }
    expect(problems.filter((text) => text !== undefined)).toEqual([]);
  });

  it("are refused when they are another sandbox's: what they name would be ended with this one", async () => {
    const other = "0192b3a4-0000-7000-8000-000000000002";
    mkdirSync(folders.of(other));
    await folders.writeLaunch({ ...LAUNCH, sandboxId: other });
    await folders.writeStarted({ ...STARTED, sandboxId: other });
    for (const file of ["launch.json", "started.json"]) {
      writeFileSync(join(folders.of(ID), file), readFileSync(join(folders.of(other), file)));
      expect(await problem(file, "of another")).toBeUndefined();
    }
    expect(await folders.readLaunch(other)).toMatchObject({ sandboxId: other });
  });

  it("keep all images while one of them does not say which it needs", async () => {
    await folders.writeImage(ID, { kind: "archive", digest: "a".repeat(64) });
    expect(await usedImages(folders)).toEqual(new Set(["a".repeat(64)]));
    const other = "0192b3a4-0000-7000-8000-000000000002";
    mkdirSync(folders.of(other));
    writeFileSync(join(folders.of(other), "image.json"), "{");
    expect(await usedImages(folders)).toBe("unknown");
    rmSync(folders.of(other), { recursive: true });
    expect(readdirSync(root)).toEqual([ID]);
    expect(await usedImages(folders)).toEqual(new Set(["a".repeat(64)]));
  });
});
