import {
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { openFolder } from "./folder-handle.ts";
import { makeHolds, removeHolds } from "./holds.ts";
import { findPlanted, PlantedLimit, reachableSockets } from "./planted.ts";
import { RedirectWatch } from "./redirect-watch.ts";
import { NO_VOLUMES, VolumeCare } from "./volume-care.ts";

let folder = "";
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "volumes-"));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function write(path: string, text = "x"): string {
  const full = join(folder, path);
  mkdirSync(join(full, ".."), { recursive: true });
  writeFileSync(full, text);
  return full;
}

describe("openFolder", () => {
  it("stays with the folder that it opened, and follows no link", () => {
    mkdirSync(join(folder, "a/b"), { recursive: true });
    symlinkSync("a", join(folder, "link"));
    expect(openFolder(join(folder, "link/b"))).toBeUndefined();
    expect(openFolder(join(folder, "none"))).toBeUndefined();
    using opened = openFolder(join(folder, "a/b"));
    renameSync(join(folder, "a/b"), join(folder, "c"));
    writeFileSync(opened!.at("file"), "");
    expect(existsSync(join(folder, "c/file"))).toBe(true);
  });
});

describe("stand-ins", () => {
  it("are made with the owner of their folder, and removed while they are empty and the same", () => {
    const holds = makeHolds([
      { path: join(folder, "hooks"), kind: "folder" },
      { path: join(folder, "config"), kind: "file" },
    ]);
    expect(holds.map(({ made }) => made)).toEqual([true, true]);
    expect(lstatSync(join(folder, "hooks"))).toMatchObject({ uid: statSync(folder).uid });
    expect(lstatSync(join(folder, "hooks")).mode & 0o777).toBe(0o755);
    removeHolds(holds);
    expect(readdirSync(folder)).toEqual([]);
  });
  it("are not removed when somebody put something into them or in their place", () => {
    const wanted = [
      { path: join(folder, "a"), kind: "folder" },
      { path: join(folder, "b"), kind: "folder" },
      { path: join(folder, "c"), kind: "file" },
    ] as const;
    const holds = makeHolds(wanted);
    write("a/mine");
    // Both exist at once, so that they cannot share an inode.
    mkdirSync(join(folder, "other"));
    rmSync(join(folder, "b"), { recursive: true });
    renameSync(join(folder, "other"), join(folder, "b"));
    write("c", "mine");
    removeHolds(holds);
    expect(readdirSync(folder)).toEqual(["a", "b", "c"]);
  });
  it("keeps what is there, and makes nothing behind a link", () => {
    write("kept/file");
    mkdirSync(join(folder, "elsewhere"));
    symlinkSync("elsewhere", join(folder, "link"));
    const holds = makeHolds([
      { path: join(folder, "kept"), kind: "folder" },
      { path: join(folder, "link/hooks"), kind: "folder" },
    ]);
    expect(holds.map(({ path, made }) => [path, made])).toEqual([[join(folder, "kept"), false]]);
    expect(readdirSync(join(folder, "elsewhere"))).toEqual([]);
  });
  it("stay until the last sandbox on the folder has ended", () => {
    const care = new VolumeCare();
    const path = join(folder, "hooks");
    const step = { kind: "volume", source: path, target: "/w/hooks", readOnly: true, idmap: undefined } as const;
    const plan = { steps: [step], readOnlyPaths: [], readWritePaths: ["/w"], gitFolders: [], covered: [] };
    const requests = [{ source: folder, target: "/w", access: "rw" }] as const;
    const first = care.prepare("one", { ...plan, holds: [{ path, kind: "folder" }] }, requests, undefined);
    // For the second one it exists already.
    const second = care.prepare("two", { ...plan, holds: [] }, requests, undefined);
    care.ended("one", first.record);
    expect(existsSync(path)).toBe(true);
    care.ended("two", second.record);
    expect(existsSync(path)).toBe(false);
    care.ended("two", NO_VOLUMES);
  });
});

describe("findPlanted", () => {
  const since = async (): Promise<number> => {
    await sleep(15);
    const now = Date.now();
    await sleep(15);
    return now;
  };
  const found = async (sinceMs: number) =>
    (await findPlanted([folder], sinceMs)).files.map(({ path }) => path.slice(folder.length + 1)).sort();

  it("names start-up files that came or changed, at the top and below, whatever times they carry", async () => {
    for (const path of [".envrc", "web/.vscode/settings.json", ".git/config", ".git/hooks/pre-push", "src/main.c"])
      write(path);
    const at = await since();
    expect(await found(at)).toEqual([]);
    write(".envrc", "other");
    utimesSync(write("web/.vscode/tasks.json"), 1, 1);
    write("sub/.git/config");
    write("sub/.git/hooks/post-commit");
    write("sub/.git/hooks/post-commit.sample");
    write(".git/commondir");
    write(".git/modules/libs/a/HEAD");
    write(".git/modules/libs/a/config");
    symlinkSync("/elsewhere", join(folder, "sub/.npmrc"));
    write(".claude/settings.json");
    write("src/other.c");
    write("node_modules/x/.npmrc");
    write("deep/.bashrc");
    write(".hg/hgrc");
    write("deep/.Envrc");
    for (const part of ["HEAD", "config", "objects/x", "refs/x"]) write(`deep/bare/${part}`);
    expect(await found(at)).toEqual(
      [
        ".claude/settings.json",
        ".envrc",
        ".hg/hgrc",
        ".git/commondir",
        ".git/modules/libs/a/config",
        "deep/.Envrc",
        "deep/bare/config",
        "sub/.git/config",
        "sub/.git/hooks/post-commit",
        "sub/.npmrc",
        "web/.vscode/tasks.json",
      ].sort(),
    );
  });
  it("names sockets of services outside that were not there at the start", () => {
    const sockets = ["/p/early.sock", "/p/a/late.sock", "/px/other.sock", "/run/x"];
    expect(reachableSockets(["/p"], ["/p/early.sock"], sockets).map(({ path }) => path)).toEqual(["/p/a/late.sock"]);
  });
  it("counts what it does not name, and says when a limit ended the look", async () => {
    for (let n = 0; n < PlantedLimit.named + 3; n++) write(`d${n}/.envrc`);
    expect(await findPlanted([folder], 0)).toMatchObject({ more: 3, complete: true });
    let now = 0;
    const slow = await findPlanted([folder], 0, () => (now += PlantedLimit.milliseconds));
    expect(slow.complete).toBe(false);
  });
});

describe("RedirectWatch", () => {
  it("takes a redirection away at once, again and again, and tells once", async () => {
    const told: string[] = [];
    using watch = new RedirectWatch((_, path) => told.push(path));
    watch.add({ sandboxId: "a", generation: 1n, folders: [folder, join(folder, "none")] });
    for (let round = 0; round < 3; round++) {
      write("commondir", "../evil");
      await vi.waitUntil(() => !existsSync(join(folder, "commondir")), { timeout: 5_000, interval: 1 });
    }
    linkSync(join(folder, readdirSync(folder)[0]!), join(folder, "next"));
    renameSync(join(folder, "next"), join(folder, "commondir"));
    await vi.waitUntil(() => !existsSync(join(folder, "commondir")), { timeout: 5_000, interval: 1 });
    expect(told).toEqual([join(folder, "commondir")]);
    expect(readFileSync(join(folder, readdirSync(folder)[0]!), "utf8")).toBe("../evil");
  });
  it("finds one that came before the watch, and leaves those alone that nobody watches any more", async () => {
    write("commondir");
    const told: string[] = [];
    using watch = new RedirectWatch((_, path) => told.push(path));
    watch.add({ sandboxId: "a", generation: 1n, folders: [folder] });
    expect(told).toHaveLength(1);
    watch.remove("a");
    write("commondir");
    await sleep(50);
    expect(existsSync(join(folder, "commondir"))).toBe(true);
  });
});
