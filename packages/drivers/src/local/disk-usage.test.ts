import { spawnSync } from "node:child_process";
import { chmodSync, linkSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { diskUsage } from "./disk-usage.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "usage-"));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const MIB = 2 ** 20;
const write = (name: string, bytes: number) => writeFileSync(join(folder, name), Buffer.alloc(bytes, 1));

describe("diskUsage", () => {
  it("counts allocated blocks, a file with two names once, and follows no link", () => {
    mkdirSync(join(folder, "a/b"), { recursive: true });
    write("a/b/one", MIB);
    linkSync(join(folder, "a/b/one"), join(folder, "a/two"));
    writeFileSync(join(folder, "sparse"), "");
    truncateSync(join(folder, "sparse"), 100 * MIB);
    symlinkSync("/usr", join(folder, "usr"));
    const { bytes } = diskUsage([folder, join(folder, "missing")], Number.POSITIVE_INFINITY);
    expect(bytes).toBeGreaterThanOrEqual(MIB);
    expect(bytes).toBeLessThan(2 * MIB);
  });

  it("stops when it knows enough", () => {
    for (let index = 0; index < 20; index++) write(`f${index}`, MIB);
    const { bytes, entries } = diskUsage([folder], 2 * MIB);
    expect(bytes).toBeGreaterThan(2 * MIB);
    expect(entries).toBeLessThan(10);
  });

  it("visits folders deeper than it holds open, once each", () => {
    const steps = 'chdir $ARGV[0]; for (1..300) { mkdir "d" and chdir "d" or die $!; open(F, ">f"); print F "x" }';
    expect(spawnSync("perl", ["-e", steps, folder]).status).toBe(0);
    const { bytes, entries } = diskUsage([folder], Number.POSITIVE_INFINITY);
    expect(entries).toBe(601);
    expect(bytes).toBe(Number.parseInt(String(spawnSync("du", ["-s", "--block-size=1", folder]).stdout), 10));
  });

  it.skipIf(process.getuid?.() === 0)("says what it could not look into", () => {
    mkdirSync(join(folder, "closed"));
    chmodSync(join(folder, "closed"), 0);
    expect(diskUsage([folder], MIB).unseen).toBe(1);
    chmodSync(join(folder, "closed"), 0o700);
  });

  it("is not stopped by folders deeper than a path can name", () => {
    // As a program inside does it: one step after the other.
    const steps = 'chdir $ARGV[0]; for (1..40) { mkdir "d" x 200 and chdir "d" x 200 or die $! }';
    expect(spawnSync("perl", ["-e", steps, folder]).status).toBe(0);
    expect(diskUsage([folder], MIB * 100).unseen).toBe(1);
    spawnSync("rm", ["-rf", folder]);
  });
});
