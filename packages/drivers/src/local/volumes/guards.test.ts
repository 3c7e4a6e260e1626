import { describe, expect, it } from "vitest";
import { memoryHost } from "../testing.ts";
import { findGuards, MAX_GUARDS } from "./guards.ts";

function guards(entries: Readonly<Record<string, string>>, deep = true): readonly string[] {
  const found = findGuards("/p", memoryHost({ "/p": "dir", ...entries }), deep);
  return found.guards.map(
    ({ path, readOnly, hold }) => `${readOnly ? "ro" : "rw"} ${path}${hold === undefined ? "" : ` +${hold}`}`,
  );
}

describe("findGuards", () => {
  it("holds the places of hooks, configuration and editor settings that a repository lacks", () => {
    expect(guards({ "/p/.git/HEAD": "file" })).toEqual([
      "ro .vscode +folder",
      "rw .git",
      "ro .git/hooks +folder",
      "ro .git/config +file",
    ]);
  });
  it("holds the worktree configuration where git would read it", () => {
    const config = "file: [extensions]\n\tworktreeConfig = true\n";
    expect(guards({ "/p/.git/config": config, "/p/.git/hooks": "dir" })).toContain("ro .git/config.worktree +file");
    expect(guards({ "/p/.git/config": "file", "/p/.git/hooks": "dir" })).not.toContain("ro .git/config.worktree +file");
  });
  it("leaves a plain folder without stand-ins, so that a project can be made in it", () => {
    expect(guards({ "/p/a": "file" })).toEqual([]);
  });
  it("keeps another repository out of a part of one, and keys out of a home", () => {
    const inside = findGuards("/p/part", memoryHost({ "/p/.git": "dir", "/p/part": "dir" }), true);
    expect(inside.guards).toEqual([{ path: ".git", readOnly: true, hold: "folder" }]);
    expect(guards({ "/p/.profile": "file" })).toContain("ro .ssh +folder");
  });
  it("guards repositories, submodules and start-up files in folders below, when a sandbox is launched", () => {
    const entries = {
      "/p/.git/config": "file",
      "/p/.git/hooks": "dir",
      "/p/.git/worktrees/x": "dir",
      "/p/.git/modules/libs/a/HEAD": "file",
      "/p/.git/modules/libs/a/config": "file",
      "/p/.vscode": "dir",
      "/p/libs/a/.git": "file",
      "/p/libs/b/.git/hooks": "dir",
      "/p/libs/b/.git/config": "file",
      "/p/web/.envrc": "file",
      "/p/web/.claude/settings.json": "file",
      "/p/web/.bashrc": "file",
      "/p/node_modules/x/.npmrc": "file",
    };
    const found = guards(entries);
    for (const path of [
      "ro .git/worktrees",
      "rw .git/modules/libs/a",
      "ro .git/modules/libs/a/config",
      "ro .git/modules/libs/a/hooks +folder",
      "ro libs/a/.git",
      "rw libs/b/.git",
      "ro libs/b/.git/hooks",
      "ro libs/b/.git/config",
      "ro web/.envrc",
      "ro web/.claude/settings.json",
    ])
      expect(found).toContain(path);
    expect(found.join()).not.toMatch(/bashrc|node_modules/);
    expect(guards(entries, false).join()).not.toMatch(/libs|web/);
  });
  it("guards what a repository's configuration names: hooks elsewhere and files that it includes", () => {
    const config =
      'file: [core]\n\thooksPath = "tools/hooks"\n[include] path = ../team.gitconfig\n\tPATH = ../../../outside\n';
    const found = guards({
      "/p/.git/config": config,
      "/p/tools/hooks": "dir",
      "/p/team.gitconfig": "file",
      "/outside": "file",
    });
    expect(found).toContain("ro tools/hooks");
    expect(found).toContain("ro team.gitconfig");
    expect(found.join()).not.toContain("outside");
  });
  it("holds the places of what the volume's own configuration names and that is missing", () => {
    const config =
      "file: [core]\n\thooksPath = .myhooks\n[include]\n\tpath = ../local.gitconfig\n\tpath = ../no/such\n";
    expect(guards({ "/p/.git/config": config })).toEqual(
      expect.arrayContaining(["ro .myhooks +folder", "ro local.gitconfig +file"]),
    );
    expect(guards({ "/p/.git/config": config }).join()).not.toContain("such");
    expect(guards({ "/p/x/.git/config": config }).join()).not.toMatch(/myhooks|local/);
  });
  it("treats a volume that is itself a git folder as one, and names those that may be redirected", () => {
    const bare = { "/p/HEAD": "file", "/p/objects": "dir", "/p/refs": "dir", "/p/config": "file" };
    expect(guards(bare)).toEqual(["ro config", "ro hooks +folder"]);
    expect(findGuards("/p", memoryHost(bare), true).gitFolders).toEqual([""]);
    const below = Object.fromEntries(Object.entries(bare).map(([path, kind]) => [path.replace("/p", "/p/x"), kind]));
    expect(guards(below)).toEqual(["rw x", "ro x/config", "ro x/hooks +folder"]);
    const redirected = memoryHost({ "/p/.git/commondir": "file", "/p/.git/hooks": "dir", "/p/.git/config": "file" });
    expect(findGuards("/p", redirected, true).gitFolders).toEqual([]);
  });
  it.each(["/p/.git", "/p/.git/hooks", "/p/.git/config"])("refuses a repository whose %s is a link", (path) => {
    expect(() => guards({ [path]: "-> /elsewhere" })).toThrow(/is a link/);
  });
  it("passes over links below, and stops at its limit", () => {
    expect(guards({ "/p/x/.git": "-> /elsewhere", "/p/x/.vscode": "-> y" })).toEqual([]);
    const many = Object.fromEntries(Array.from({ length: 300 }, (_, n) => [`/p/d${n}/.envrc`, "file"]));
    expect(guards(many)).toHaveLength(MAX_GUARDS);
  });
  it("tells of sockets in folders below", () => {
    expect(findGuards("/p", memoryHost({ "/p/a/s": "socket" }), true).sockets).toEqual(["a/s"]);
  });
});
