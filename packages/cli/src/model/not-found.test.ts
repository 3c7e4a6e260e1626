import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { findOutside, notFoundError, startFailureCode } from "./not-found.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-nf-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

const program = (...parts: string[]): string => {
  const path = join(folder, ...parts);
  mkdirSync(join(path, ".."), { recursive: true });
  writeFileSync(path, "#!/bin/sh\n");
  chmodSync(path, 0o755);
  return path;
};
const env = (...folders: string[]) => ({ PATH: [...folders, "/usr/bin", "/bin"].join(":") });

test("a program on the PATH is found with what has to be mounted", () => {
  const tool = program("tool", "bin", "agent");
  expect(findOutside("agent", env(join(folder, "tool", "bin")), [])).toEqual({
    path: tool,
    real: tool,
    folder: join(folder, "tool"),
  });
  const plain = program("scripts", "job");
  expect(findOutside(plain, env(), [])?.folder).toBe(join(folder, "scripts"));
});

test("a shell's line in quotes is known for one", () => {
  expect(notFoundError(["echo hi"], 127, true, env(), [])).toMatchObject({
    message: 'a program called "echo hi" does not exist in the sandbox',
    next: ["Write it without quotes: -- echo hi; or give it to a shell: -- sh -c 'echo hi'"],
  });
});

test("a package of npm needs its whole node_modules", () => {
  const real = program("x", "node_modules", "opencode-ai", "bin", "opencode");
  mkdirSync(join(folder, "x", "node_modules", ".bin"));
  symlinkSync("../opencode-ai/bin/opencode", join(folder, "x", "node_modules", ".bin", "opencode"));
  const found = findOutside("opencode", env(join(folder, "x", "node_modules", ".bin")), []);
  expect(found).toMatchObject({ real, folder: join(folder, "x", "node_modules") });
});

test("neither the home nor ~/.local is advised for a program in its bin folder", () => {
  const home = { HOME: join(folder, "home"), PATH: "/usr/bin" };
  for (const place of [
    ["home", "bin"],
    ["home", ".local", "bin"],
  ]) {
    const tool = program(...place, "agent");
    expect(findOutside(tool, home, [])?.folder).toBe(join(folder, ...place));
  }
  expect(findOutside(program("home", "go", "bin", "tool"), home, [])?.folder).toBe(join(folder, "home", "go"));
});

test("nothing is said of what exists inside as well, or nowhere", () => {
  expect(findOutside("sh", env(), [])).toBeUndefined();
  expect(findOutside("no-such-program", env(), [])).toBeUndefined();
  const tool = program("tool", "bin", "agent");
  const mounted = [{ source: join(folder, "tool"), target: join(folder, "tool"), access: "ro" }];
  expect(findOutside(tool, env(), mounted)).toBeUndefined();
  const elsewhere = [{ source: join(folder, "tool"), target: "/work", access: "ro" }];
  expect(findOutside(tool, env(), elsewhere)).toBeDefined();
});

test("the error tells where it is and what to add, quoted for a shell", () => {
  const tool = program("my tools", "agent");
  const error = notFoundError([tool, "two words"], 127, true, env(), []);
  expect(error?.exitCode).toBe(127);
  expect(error?.message).toContain(`is at ${tool} on this machine`);
  const mount = `'${join(folder, "my tools")}:${join(folder, "my tools")}:ro'`;
  expect(error?.next.join()).toContain(`--volume ${mount} -- '${tool}' 'two words'`);
});

test("a status 127 of a program's own is left alone", () => {
  expect(notFoundError(["sh", "-c", "exit 127"], 127, false, env(), [])).toBeUndefined();
  expect(notFoundError(["/usr/bin/env"], 126, false, env(), [])).toBeUndefined();
});

test("what execve said becomes a shell's status", () => {
  expect(startFailureCode(new Error("Sandbox init: exec: ENOENT: no such file or directory"))).toBe(127);
  expect(startFailureCode(new Error("exec: EACCES: permission denied"))).toBe(126);
  expect(startFailureCode(new Error("ENOENT"))).toBeUndefined();
  expect(startFailureCode(undefined)).toBeUndefined();
});
