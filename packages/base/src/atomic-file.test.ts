import { mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { ensureFolder, writeFileAtomic } from "./atomic-file.ts";

describe("writeFileAtomic", () => {
  let folder: string;
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "atomic-"));
  });
  afterEach(() => rm(folder, { recursive: true }));

  it("replaces the content, sets the exact mode and leaves no temporary file", async () => {
    const path = join(folder, "f");
    await writeFileAtomic(path, "one", 0o644);
    await writeFileAtomic(path, "two");
    expect(await readFile(path, "utf8")).toBe("two");
    expect((await stat(path)).mode & 0o777).toBe(0o600);
    expect(await readdir(folder)).toEqual(["f"]);
  });
  it("replaces a link instead of writing through it", async () => {
    const victim = join(folder, "victim");
    await writeFile(victim, "kept");
    await symlink(victim, join(folder, "f"));
    await writeFileAtomic(join(folder, "f"), "new");
    expect(await readFile(victim, "utf8")).toBe("kept");
  });
  it("leaves nothing behind when the target is a folder", async () => {
    await ensureFolder(join(folder, "d", "e"));
    await expect(writeFileAtomic(join(folder, "d"), "x")).rejects.toThrow();
    expect(await readdir(folder)).toEqual(["d"]);
  });
});
