import { execFile, execFileSync, spawnSync } from "node:child_process";
import {
  appendFileSync,
  chmodSync,
  chownSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

const repository = resolve(import.meta.dirname, "../../..");
const run = promisify(execFile);
/** An id that nobody has. */
const OTHER_USER = 30_500;

/** Without what npm tells the scripts that it runs: its cache belongs to whoever runs the tests. */
function plainEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.toLowerCase().startsWith("npm_")));
}

/** Without the repository's own tools, which another user may not reach. */
function systemPath(): string {
  return (process.env["PATH"] ?? "")
    .split(":")
    .filter((folder) => !folder.startsWith(repository))
    .join(":");
}

/**
 * A checkout of the launcher with a small program in place of the packages: the launcher's own behaviour is what is
 * tested, with real npm-installed packages (linked), the real compiler and the real bundler.
 */
function makeCheckout(folder: string): void {
  mkdirSync(folder, { recursive: true });
  for (const path of ["openshell", "tools", "package.json", "package-lock.json", ".npmrc", "native"]) {
    cpSync(join(repository, path), join(folder, path), {
      recursive: true,
      filter: (source) => !source.includes("/node_modules"),
    });
  }
  // Whatever is bundled beside the command line, with nothing in it.
  const programs = readFileSync(join(repository, "tools/build.ts"), "utf8").matchAll(/"(packages\/[^"]+\.ts)"/g);
  for (const [, path] of programs) {
    mkdirSync(join(folder, path!, ".."), { recursive: true });
    writeFileSync(join(folder, path!), "export {};\n");
  }
  mkdirSync(join(folder, "packages/cli/src"), { recursive: true });
  writeFileSync(join(folder, "packages/cli/src/main.ts"), 'console.log("one", ...process.argv.slice(2));\n');
  mkdirSync(join(folder, "proto"));
  symlinkSync(join(repository, "node_modules"), join(folder, "node_modules"));
  // Older than the packages: npm would install them again, through the link, and remove the checkout's own first.
  utimesSync(join(folder, "package-lock.json"), 1, 1);
  const node = join(repository, "tools/node/node_modules");
  if (existsSync(node)) symlinkSync(node, join(folder, "tools/node/node_modules"));
}

describe("launcher", () => {
  let base: string;
  let checkout: string;
  const env = (): NodeJS.ProcessEnv => ({ ...process.env, HOME: base, XDG_CACHE_HOME: join(base, "cache") });
  const start = (...args: string[]): Promise<{ stdout: string; stderr: string }> =>
    run(join(checkout, "openshell"), args, { env: env(), cwd: "/" });

  beforeAll(() => {
    base = mkdtempSync(join(tmpdir(), "launcher-"));
    checkout = join(base, "checkout");
    makeCheckout(checkout);
  });
  afterAll(() => {
    execFileSync("chmod", ["-R", "u+w", base]);
    rmSync(base, { recursive: true });
  });

  it("prepares a fresh checkout with one line a step, then is silent", async () => {
    const first = await start("a b", "c");
    expect(first.stdout).toBe("one a b c\n");
    expect(first.stderr).toMatch(/building the native parts\n[\s\S]*bundling\n/);
    const second = await start("x");
    expect(second).toEqual({ stdout: "one x\n", stderr: "" });
  });

  it("works through a link to a link, from any folder", async () => {
    symlinkSync("checkout/openshell", join(base, "link"));
    mkdirSync(join(base, "bin"));
    symlinkSync("../link", join(base, "bin/openshell"));
    expect((await run(join(base, "bin/openshell"), ["via"], { env: env(), cwd: tmpdir() })).stdout).toBe("one via\n");
  });

  it("never runs stale code: an edit, an added file and a removed file each count, also with old times", async () => {
    const main = join(checkout, "packages/cli/src/main.ts");
    writeFileSync(main, 'console.log("two");\n');
    execFileSync("touch", ["-d", "2001-01-01", main]);
    // The tab key in a shell neither runs old code nor waits for new.
    expect(await start("__complete", "bash", "")).toEqual({ stdout: "", stderr: "" });
    expect((await start()).stdout).toBe("two\n");
    writeFileSync(join(checkout, "packages/cli/src/word.ts"), 'export const word = "three";\n');
    writeFileSync(main, 'import { word } from "./word.ts";\nconsole.log(word);\n');
    expect((await start()).stdout).toBe("three\n");
    rmSync(join(checkout, "packages/cli/src/word.ts"));
    await expect(start()).rejects.toMatchObject({ stderr: expect.stringContaining("bundling failed") });
    writeFileSync(main, 'console.log("four");\n');
    expect((await start()).stdout).toBe("four\n");
  });

  it("does not build again for the same content", async () => {
    const main = join(checkout, "packages/cli/src/main.ts");
    appendFileSync(main, "");
    execFileSync("touch", [main]);
    expect(await start()).toEqual({ stdout: "four\n", stderr: "" });
  });

  it("builds once when started twice at once; the other waits and says so", async () => {
    writeFileSync(join(checkout, "packages/cli/src/main.ts"), 'console.log("five");\n');
    const both = await Promise.all([start(), start()]);
    expect(both.map(({ stdout }) => stdout)).toEqual(["five\n", "five\n"]);
    const said = both.map(({ stderr }) => stderr).join("");
    expect(said.match(/bundling/g)).toHaveLength(1);
    expect(said).toMatch(/another openshell is preparing this checkout; waiting for it/);
  });

  it("installs packages with npm under its own Node, whose folder holds the machine's npmrc", () => {
    const fresh = join(base, "fresh");
    makeCheckout(fresh);
    rmSync(join(fresh, "node_modules"));
    rmSync(join(fresh, "tools/node/node_modules"), { force: true });
    const pinned = join(fresh, "tools/node/node_modules", `node-linux-${process.arch}`, "bin");
    mkdirSync(pinned, { recursive: true });
    symlinkSync(process.execPath, join(pinned, "node"));
    const system = join(base, "system");
    mkdirSync(system);
    writeFileSync(join(system, "node"), "#!/bin/sh\necho v20.0.0\n", { mode: 0o755 });
    writeFileSync(join(system, "npm"), '#!/bin/sh\necho "npm under $(command -v node)"\nexit 1\n', { mode: 0o755 });
    const result = spawnSync(join(fresh, "openshell"), [], {
      env: { ...env(), PATH: `${system}:${systemPath()}` },
      encoding: "utf8",
    });
    expect(result.stderr).toContain(`npm under ${join(system, "node")}\n`);
    expect(result.stderr).toContain("Check that npm reaches its registry");
  });

  it("names the Debian package when there is no compiler", async () => {
    writeFileSync(join(checkout, "packages/cli/src/main.ts"), 'console.log("six");\n');
    const result = spawnSync(join(checkout, "openshell"), [], {
      env: { ...env(), CC: "/nonexistent/cc" },
      encoding: "utf8",
    });
    expect(result.status).not.toBe(0);
    expect(result.stderr).toMatch(/gcc/);
    expect(result.stderr).not.toMatch(/\n\s+at /);
    expect((await start()).stdout).toBe("six\n");
  });

  it("keeps three builds at most", () => {
    expect(
      readdirSync(join(checkout, "dist")).filter((name) => /^[0-9a-f]{16}$/.test(name)).length,
    ).toBeLessThanOrEqual(3);
  });

  it("checks freshness in 10 ms", async () => {
    const stamp = join(checkout, "dist/stamp");
    // The shortest of each, by turns: what else the machine does can only add.
    let [check, node] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
    for (let round = 0; round < 15; round += 1) {
      node = Math.min(node, timeOf(process.execPath, ["-e", "0"]));
      const found = [
        join(repository, "packages"),
        join(repository, "proto"),
        join(repository, "native"),
        "-name",
        "node_modules",
        "-prune",
        "-o",
        "-name",
        "*.test.ts",
        "-prune",
        "-o",
        "-cnewer",
        stamp,
        "-name",
        "nothing",
        "-print",
        "-quit",
      ];
      check = Math.min(check, timeOf("find", found));
    }
    // 10 ms are the budget where Node itself takes 20.
    expect(check / node).toBeLessThan(10 / 20);
  });

  it("needs no HOME where a fresh build serves a user who may not write the checkout, and says so where none does", async () => {
    await start();
    chmodSync(base, 0o755);
    const asRoot = process.getuid?.() === 0;
    if (!asRoot) chmodSync(checkout, 0o555);
    const user = asRoot ? { uid: OTHER_USER, gid: OTHER_USER } : {};
    const homeless = () =>
      run(join(checkout, "openshell"), ["x"], { env: { PATH: process.env["PATH"] }, cwd: "/", ...user });
    const { stdout } = await start("x");
    try {
      expect(await homeless()).toEqual({ stdout, stderr: "" });
      writeFileSync(join(checkout, "packages/cli/src/main.ts"), 'console.log("no home");\n');
      await expect(homeless()).rejects.toMatchObject({ stderr: expect.stringContaining("HOME is not set") });
    } finally {
      chmodSync(checkout, 0o755);
    }
  });

  it("builds in the user's cache when the checkout is read-only", async () => {
    writeFileSync(join(checkout, "packages/cli/src/main.ts"), 'console.log("seven");\n');
    rmSync(join(checkout, "node_modules"));
    rmSync(join(checkout, "tools/node/node_modules"), { force: true });
    const before = readFileSync(join(checkout, "dist/stamp"), "utf8");
    const home = join(base, "home");
    mkdirSync(home);
    chmodSync(base, 0o755);
    // Root writes everywhere, so it becomes somebody else for this; a user takes its own right away.
    const asRoot = process.getuid?.() === 0;
    if (asRoot) chownSync(home, OTHER_USER, OTHER_USER);
    else chmodSync(checkout, 0o555);
    const user = asRoot ? { uid: OTHER_USER, gid: OTHER_USER } : {};
    const env = { ...plainEnvironment(), PATH: systemPath(), HOME: home, XDG_CACHE_HOME: join(home, "cache") };
    const again = () => run(join(checkout, "openshell"), [], { env, cwd: "/", ...user });
    try {
      const { stdout, stderr } = await again();
      expect(stdout).toBe("seven\n");
      expect(stderr).toMatch(/the checkout is read-only: building in /);
      expect(readFileSync(join(checkout, "dist/stamp"), "utf8")).toBe(before);
      expect(readdirSync(join(home, "cache/openshell"))).toHaveLength(1);
      expect(await again()).toEqual({ stdout: "seven\n", stderr: "" });
    } finally {
      chmodSync(checkout, 0o755);
    }
  });
});

/** Milliseconds from the start of a program to its end. */
function timeOf(program: string, args: readonly string[]): number {
  const started = performance.now();
  execFileSync(program, args);
  return performance.now() - started;
}
