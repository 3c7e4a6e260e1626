import { describe, expect, it } from "vitest";
import { ownFolderName, ownFolderTargets } from "./own-folders.ts";

describe("ownFolderTargets", () => {
  it("keeps what neither the system nor a volume provides", () => {
    expect(ownFolderTargets(["/workspace", "/data/x", "/var/log", "/app"], ["/data"])).toEqual([
      "/app",
      "/var/log",
      "/workspace",
    ]);
  });
  it.each([
    "/tmp",
    "/tmp/x",
    "/sandbox",
    "/sandbox/x",
    "/dev/null",
    "/usr/local",
    "/etc/x",
    "/proc",
    "/run/x",
    "/",
    "/var",
    "/a/",
    "/a/../b",
    "relative",
    "/opt",
  ])("makes none for %s", (path) => expect(ownFolderTargets([path], [])).toEqual([]));
  it("makes one for nested paths, and none that would hide a volume", () => {
    expect(ownFolderTargets(["/a/b", "/a"], [])).toEqual(["/a"]);
    expect(ownFolderTargets(["/a"], ["/a/b"])).toEqual([]);
  });
  it("makes a bounded number", () => {
    expect(
      ownFolderTargets(
        Array.from({ length: 300 }, (_, i) => `/d${i}`),
        [],
      ),
    ).toHaveLength(32);
  });
  it("names folders by path", () => {
    expect(ownFolderName("/a")).not.toBe(ownFolderName("/b"));
    expect(ownFolderName("/a")).toMatch(/^[0-9a-f]{16}$/);
  });
});
