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
