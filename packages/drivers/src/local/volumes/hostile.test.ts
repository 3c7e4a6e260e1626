import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type HostFiles, hostFiles, MAX_FOLDER_ENTRIES } from "../host-files.ts";
import { memoryHost } from "../testing.ts";
import { findGuards, MAX_FOLDERS, MAX_GIT_FOLDERS, MAX_GUARDS } from "./guards.ts";
import { entriesOf, findPlanted, PlantedLimit } from "./planted.ts";

/** What an agent can leave in a volume before its sandbox starts again. */
let folder = "";
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "hostile-volume-"));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function write(path: string, text = ""): void {
  const full = join(folder, path);
  mkdirSync(join(full, ".."), { recursive: true });
  writeFileSync(full, text);
}

describe("findGuards in a folder that an agent prepared", () => {
  it("takes a moment for a configuration of blank lines", () => {
    write("x/.git/config", "\n".repeat(100_000) + " ".repeat(100_000));
    const before = performance.now();
    findGuards(folder, hostFiles, true);
    expect(performance.now() - before).toBeLessThan(2_000);
  });
  it("looks up no more names of a configuration than could be guarded", () => {
    write("x/.git/config", Array.from({ length: 20_000 }, (_, n) => `path = a${n}`).join("\n"));
    let looked = 0;
    const files = {
      ...hostFiles,
      realPath: (path: string) => {
        looked++;
        return hostFiles.realPath(path);
      },
    };
    findGuards(folder, files, true);
    expect(looked).toBeLessThan(1_000);
  });
  it("looks into as many folders of submodules as into others, and follows no more git folders than it guards", () => {
    const names = Array.from({ length: MAX_FOLDERS + 200 }, (_, n) => ({ name: `m${n}`, kind: "directory" as const }));
    let looked = 0;
    const files: HostFiles = {
      ...memoryHost({ "/p/.git/HEAD": "file", "/p/.git/modules": "dir" }),
      entries(path) {
        looked++;
        if (path === "/p") return [{ name: ".git", kind: "directory" }];
        if (path === "/p/.git") return [{ name: "modules", kind: "directory" }];
        return path === "/p/.git/modules" ? names : [];
      },
      kind: (path) => (path.endsWith("/HEAD") ? "file" : undefined),
    };
    const { gitFolders } = findGuards("/p", files, true);
    expect(looked).toBeLessThanOrEqual(MAX_FOLDERS + 2);
    expect(gitFolders.length).toBeLessThanOrEqual(MAX_GIT_FOLDERS);
  });
  it("guards the top before invented submodules take the room", () => {
    const invented = Array.from({ length: MAX_GUARDS }, (_, n) => [`/p/.git/modules/m${n}/HEAD`, "file"]);
    const host = memoryHost({ ...Object.fromEntries(invented), "/p/.vscode": "dir", "/p/.husky": "dir" });
    const guarded = findGuards("/p", host, true).guards.map(({ path }) => path);
    expect(guarded).toEqual(expect.arrayContaining([".git", ".git/config", ".vscode", ".husky"]));
  });
  it.each(["", "/web"])("looks behind what makes %j pass for a git folder", (at) => {
    const disguise = { [`/p${at}/HEAD`]: "file", [`/p${at}/objects`]: "dir", [`/p${at}/refs`]: "dir" };
    const own = { "/p/.git/config": "file", [`/p${at}/.vscode`]: "dir", [`/p${at}/objects/.envrc`]: "file" };
    const guarded = findGuards("/p", memoryHost({ ...disguise, ...own }), true).guards.map(({ path }) => `/${path}`);
    expect(guarded).toEqual(expect.arrayContaining(["/.git", "/.git/config", `${at}/.vscode`, `${at}/objects/.envrc`]));
  });
  it("reports what was planted behind what passes for a git folder", async () => {
    for (const path of ["HEAD", "refs/x", "objects/.envrc", ".vscode/tasks.json", "evil/.git/config"]) write(path);
    const { files } = await findPlanted([folder], 1);
    const paths = files.map(({ path }) => path.slice(folder.length + 1));
    expect(paths).toEqual(expect.arrayContaining(["objects/.envrc", ".vscode/tasks.json", "evil/.git/config"]));
  });
  it("says that it did not see all where submodules take the time", async () => {
    write(".git/modules/a/HEAD");
    let looks = 0;
    const { complete } = await findPlanted([folder], 1, () => (++looks <= 2 ? 0 : PlantedLimit.milliseconds + 1));
    expect(complete).toBe(false);
  });
  it("reads no more of a folder than it may hold, and refuses a top that is fuller", async () => {
    for (const name of ["a", "b", "c", "d"]) write(name);
    expect(hostFiles.entries(folder, 3)).toHaveLength(3);
    expect(hostFiles.entries(folder).map(({ name }) => name)).toEqual(["a", "b", "c", "d"]);
    expect(await entriesOf(folder, 3)).toHaveLength(3);
    expect((await entriesOf(folder)).map(({ name }) => name)).toEqual(["a", "b", "c", "d"]);
    expect(await entriesOf(join(folder, "none"))).toEqual([]);
    const many = Array.from({ length: MAX_FOLDER_ENTRIES }, (_, n) => ({ name: `f${n}`, kind: "file" as const }));
    expect(() => findGuards("/p", { ...memoryHost({ "/p": "dir" }), entries: () => many }, false)).toThrow(/entries/);
  });
  it("reads no more of a file than it may have, and waits for no pipe", () => {
    execFileSync("mkfifo", [join(folder, "pipe")]);
    expect(hostFiles.read(join(folder, "pipe"))).toBeUndefined();
    write("long", "x".repeat(300_000));
    expect(hostFiles.read(join(folder, "long"))).toBeUndefined();
    write("short", "é");
    expect(hostFiles.read(join(folder, "short"))).toBe("é");
  });
});
