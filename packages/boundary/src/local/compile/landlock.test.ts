import { describe, expect, it } from "vitest";
import { ACCESS_FS, compileLandlock, type FilesystemRules, SCOPE } from "./landlock.ts";

const RULES: FilesystemRules = {
  readOnly: ["/opt/data"],
  readWrite: ["/srv/out"],
  includeWorkdir: true,
  workingDirectory: "/sandbox",
  layoutReadOnly: ["/mnt/ro"],
  layoutReadWrite: ["/mnt/rw"],
  compatibility: "best_effort",
};
const READ = 0xdn;

function access(abi: number, path: string, rules: FilesystemRules = RULES): bigint | undefined {
  return compileLandlock(rules, abi)?.rules.find((rule) => rule.path === path)?.access;
}

describe("compileLandlock", () => {
  it("has no ruleset where files could be emptied in spite of it", () => {
    for (const abi of [0, 1, 2]) expect(compileLandlock(RULES, abi)).toBeUndefined();
  });
  it.each([
    [3, 0x7fffn, 0n],
    [4, 0x7fffn, 0n],
    [5, 0xffffn, 0n],
    [6, 0xffffn, SCOPE.abstractUnixSocket | SCOPE.signal],
    [7, 0xffffn, SCOPE.abstractUnixSocket | SCOPE.signal],
    [99, 0xffffn, SCOPE.abstractUnixSocket | SCOPE.signal],
  ])("handles every right that ABI %i knows", (abi, handledFs, scoped) => {
    expect(compileLandlock(RULES, abi)).toMatchObject({ handledFs, handledNet: 0n, scoped });
  });
  it("grants reading for read_only and everything but device nodes for read_write", () => {
    expect(access(7, "/opt/data")).toBe(READ);
    expect(access(7, "/mnt/ro")).toBe(READ);
    for (const path of ["/srv/out", "/sandbox", "/mnt/rw", "/tmp"]) expect(access(7, path)).toBe(0x77bfn);
  });
  it("never grants a right that is not handled", () => {
    for (const abi of [3, 4, 5, 6, 7]) {
      const ruleset = compileLandlock(RULES, abi)!;
      for (const rule of ruleset.rules) expect(rule.access & ~ruleset.handledFs).toBe(0n);
    }
  });
  it("never grants making device nodes, and ioctl on terminals only", () => {
    const ruleset = compileLandlock(RULES, 7)!;
    const withIoctl = ruleset.rules
      .filter((rule) => (rule.access & ACCESS_FS.ioctlDev) !== 0n)
      .map((rule) => rule.path);
    expect(withIoctl).toEqual(["/dev/tty", "/dev/ptmx", "/dev/pts"]);
    for (const rule of ruleset.rules) expect(rule.access & (ACCESS_FS.makeChar | ACCESS_FS.makeBlock)).toBe(0n);
  });
  it("leaves the home closed when the policy does not include the working directory", () => {
    expect(access(7, "/sandbox", { ...RULES, includeWorkdir: false })).toBeUndefined();
  });
  it("unites the rights of a path that is listed twice", () => {
    expect(access(7, "/etc", { ...RULES, readWrite: ["/etc"] })).toBe(0x77bfn);
  });
  it("demands a listed path under hard_requirement, never a base path", () => {
    const ruleset = compileLandlock({ ...RULES, compatibility: "hard_requirement" }, 7)!;
    const required = ruleset.rules.filter((rule) => rule.required).map((rule) => rule.path);
    expect(required).toEqual(["/opt/data", "/srv/out", "/sandbox", "/mnt/ro", "/mnt/rw"]);
    expect(compileLandlock(RULES, 7)!.rules.find((rule) => rule.path === "/opt/data")?.required).toBe(false);
  });
  it("opens nothing of the root itself", () => {
    expect(access(7, "/")).toBeUndefined();
    expect(access(7, "/dev")).toBe(ACCESS_FS.readDir);
  });
});
