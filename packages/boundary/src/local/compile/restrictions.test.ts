import { describe, expect, it } from "vitest";
import { compileRestrictions } from "./restrictions.ts";
import { agentRlimits } from "./rlimits.ts";

const FILESYSTEM = {
  readOnly: [],
  readWrite: [],
  includeWorkdir: true,
  workingDirectory: "/sandbox",
  layoutReadOnly: [],
  layoutReadWrite: [],
  compatibility: "best_effort",
} as const;

describe("agentRlimits", () => {
  it("keeps the host's core dump program from running, which a limit of 0 would not", () => {
    expect(agentRlimits().find((limit) => limit.resource === 4)).toEqual({ resource: 4, soft: 1n, hard: 1n });
  });
  it("bounds processes as asked for, 2,048 by default", () => {
    expect(agentRlimits().find((limit) => limit.resource === 6)?.hard).toBe(2048n);
    expect(agentRlimits(40).find((limit) => limit.resource === 6)).toEqual({ resource: 6, soft: 40n, hard: 40n });
  });
});

describe("compileRestrictions", () => {
  it("puts filter, ruleset and limits together", () => {
    const restrictions = compileRestrictions({ filesystem: FILESYSTEM, arch: "x64", pids: 7 });
    expect(restrictions.seccomp.length % 8).toBe(0);
    expect(restrictions.landlock?.rules.some((rule) => rule.path === "/sandbox")).toBe(true);
    expect(restrictions).toMatchObject({ umask: 0o022 });
  });
  it("says that a kernel without Landlock has none, for the caller to decide", () => {
    expect(compileRestrictions({ filesystem: FILESYSTEM, arch: "arm64", landlockAbi: 0 }).landlock).toBeUndefined();
  });
  it("refuses a machine that no filter exists for", () => {
    expect(() => compileRestrictions({ filesystem: FILESYSTEM, arch: "riscv64" })).toThrow(/riscv64/);
  });
});
