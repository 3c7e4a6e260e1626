import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { LOST_KEPT_MS, MAX_LOST, removeTree, SandboxFolders } from "./state.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "state-"));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

describe("removal of what an agent left", () => {
  it("removes a tree that is deeper than any path can name", async () => {
    const name = "d".repeat(40);
    const home = join(folder, "home");
    // From the inside out: no path here is ever long.
    let inner = join(folder, "inner");
    mkdirSync(inner);
    for (let depth = 0; depth < 300; depth++) {
      const outer = join(folder, `outer-${depth}`);
      mkdirSync(outer);
      renameSync(inner, join(outer, name));
      inner = outer;
    }
    renameSync(inner, home);
    symlinkSync(folder, join(home, "out"));
    await removeTree(home);
    expect(existsSync(home)).toBe(false);
    expect(existsSync(folder)).toBe(true);
  });

  it("removes folders that are closed to their owner, and names that are no UTF-8", async () => {
    const home = join(folder, "home");
    mkdirSync(join(home, "closed", "inner"), { recursive: true });
    writeFileSync(join(home, "closed", "inner", "file"), "");
    mkdirSync(Buffer.concat([Buffer.from(`${home}/`), Buffer.from([0xff, 0xfe])]));
    chmodSync(join(home, "closed", "inner"), 0);
    chmodSync(join(home, "closed"), 0);
    await removeTree(home);
    expect(existsSync(home)).toBe(false);
  });

  it("never follows a link", async () => {
    const home = join(folder, "home");
    const outside = join(folder, "outside");
    mkdirSync(home);
    mkdirSync(outside, { mode: 0o500 });
    symlinkSync(outside, join(home, "link"));
    mkdirSync(join(home, "closed"), { mode: 0 });
    await removeTree(home);
    expect(existsSync(outside)).toBe(true);
  });
});

describe("the folder of a sandbox that no record knows", () => {
  const make = (folders: SandboxFolders, id: string): void => {
    mkdirSync(folders.home(id), { recursive: true });
    writeFileSync(join(folders.home(id), "work.txt"), id);
  };

  it("is set aside whole, is no sandbox any more, and goes after 7 days", async () => {
    const folders = new SandboxFolders(folder);
    make(folders, "lost");
    make(folders, "known");
    const aside = await folders.setAside("lost", 1_000);
    expect(readFileSync(join(aside!, "home", "work.txt"), "utf8")).toBe("lost");
    expect(await folders.ids()).toEqual(["known"]);
    expect(await folders.setAside("lost", 1_000)).toBeUndefined();
    await folders.emptyTrash();
    await folders.dropLost(1_000 + LOST_KEPT_MS - 1);
    expect(existsSync(aside!)).toBe(true);
    await folders.dropLost(1_000 + LOST_KEPT_MS);
    expect(readdirSync(folder)).toEqual(["known"]);
  });

  it("is one of a bounded number: the newest stay", async () => {
    const folders = new SandboxFolders(folder);
    for (let index = 0; index < MAX_LOST + 2; index++) {
      make(folders, `s${index}`);
      await folders.setAside(`s${index}`, 1_000 + index);
    }
    const kept = readdirSync(folder);
    expect(kept).toHaveLength(MAX_LOST);
    expect(kept).not.toContain(".lost-1000-s0");
    expect(kept).not.toContain(".lost-1001-s1");
  });
});
