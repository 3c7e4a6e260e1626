import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { acquireFileLock } from "./file-lock.ts";
import { currentBootId, identifyProcess, isAlive } from "./process-identity.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-lock-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

const holder = (path: string) =>
  spawn(process.execPath, [
    "--input-type=module",
    "-e",
    `import { acquireFileLock } from ${JSON.stringify(new URL("./file-lock.ts", import.meta.url).href)};
     globalThis.lock = acquireFileLock(${JSON.stringify(path)}); console.log(globalThis.lock ? "held" : "refused"); setInterval(() => {}, 1000);`,
  ]);

it("is held by one process at a time and given back by kill -9", async () => {
  const path = join(folder, "lock");
  const child = holder(path);
  const [said] = await once(child.stdout, "data");
  expect(String(said)).toBe("held\n");
  expect(acquireFileLock(path)).toBeUndefined();
  const ended = once(child, "exit");
  child.kill("SIGKILL");
  await ended;
  using lock = acquireFileLock(path);
  expect(lock).toBeDefined();
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(readdirSync(folder)).toEqual(["lock"]);
  const second = holder(path);
  expect(String((await once(second.stdout, "data"))[0])).toBe("refused\n");
  second.kill("SIGKILL");
});

/** Takes the locks 0, 1, … of the folder, each at its moment; tells which it got and keeps them until it is killed. */
const contender = (startAt: number, rounds: number) =>
  spawn(process.execPath, [
    "--input-type=module",
    "-e",
    `import { acquireFileLock } from ${JSON.stringify(new URL("./file-lock.ts", import.meta.url).href)};
     const got = [];
     globalThis.locks = Array.from({ length: ${rounds} }, (_, round) => {
       while (performance.timeOrigin + performance.now() < ${startAt} + round * 30);
       const lock = acquireFileLock(${JSON.stringify(folder)} + "/" + round);
       if (lock) got.push(round);
       return lock;
     });
     console.log(JSON.stringify(got)); setInterval(() => {}, 1000);`,
  ]);

it("is had by one of two that ask at the same moment", async () => {
  const rounds = 60;
  const startAt = Date.now() + 600;
  const children = [contender(startAt, rounds), contender(startAt, rounds)];
  const got = await Promise.all(
    children.map(async ({ stdout }) => JSON.parse(String((await once(stdout, "data"))[0])) as number[]),
  );
  for (const child of children) child.kill("SIGKILL");
  expect(got.flat().toSorted((a, b) => a - b)).toEqual(Array.from({ length: rounds }, (_, round) => round));
}, 20_000);

it("is free again after its holder let go", () => {
  const path = join(folder, "lock");
  acquireFileLock(path)?.[Symbol.dispose]();
  using lock = acquireFileLock(path);
  expect(lock?.path).toBe(path);
});

it("says why a lock cannot be had at all", () => {
  expect(() => acquireFileLock(join(folder, "missing", "lock"))).toThrow(/cannot lock/);
});

it("tells a process from its successors and from the dead", async () => {
  const child = spawn("sleep", ["100"]);
  await once(child, "spawn");
  const identity = identifyProcess(child.pid!);
  expect(identity).toMatchObject({ pid: child.pid, bootId: currentBootId() });
  expect(isAlive(identity!)).toBe(true);
  expect(isAlive({ ...identity!, startTime: "1" })).toBe(false);
  expect(isAlive({ ...identity!, bootId: "another" })).toBe(false);
  const ended = once(child, "exit");
  child.kill("SIGKILL");
  await ended;
  expect(isAlive(identity!)).toBe(false);
  expect(identifyProcess(child.pid!)).toBeUndefined();
});
