import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { TestOpenShell } from "../../support/openshell.ts";

/** Volumes as their owner meets them: what works, what is kept read-only, what is told afterwards, what stays behind. */

let net: TestInternet;
let openshell: TestOpenShell;

beforeAll(async () => {
  net = await TestInternet.start();
  openshell = TestOpenShell.create(net);
  await openshell.ok(["gateway", "start"], { timeoutMs: 60_000 });
});
afterAll(async () => {
  await openshell[Symbol.asyncDispose]();
  await net[Symbol.asyncDispose]();
});

/** A folder of the owner's, by any name. */
function folder(name: string): string {
  const path = join(openshell.home.folder, "volumes", name);
  mkdirSync(path, { recursive: true });
  return path;
}
const sandbox = (volumes: readonly string[], script: string) =>
  openshell.run(["run", ...volumes.flatMap((one) => ["--volume", one]), "--no-tty", "--", "/bin/sh", "-c", script]);

test("folders and files by any name, nosuid and nodev, in the access that was asked for", async () => {
  const name = `данные 数据 ${"é".repeat(100)}`;
  const path = folder(name);
  writeFileSync(join(path, "file"), "text");
  const script = `cd "/data/${name}" && cat file && echo more >> file; echo x > /one; cat /one; grep ' /data/\\| /one ' /proc/self/mounts | cut -d' ' -f4`;
  const result = await sandbox([`${path}:/data/${name}`, `${join(path, "file")}:/one:ro`], script);
  expect(result.stderr).toMatch(/cannot create \/one|\/one: .*Read-only/i);
  const [first, ...mounts] = result.stdout.trim().split("\n");
  expect([first, mounts.shift()]).toEqual(["texttextmore", expect.stringMatching(/^rw,nosuid,nodev/)]);
  expect(mounts).toEqual([expect.stringMatching(/^ro,nosuid,nodev/)]);
  expect(readFileSync(join(path, "file"), "utf8")).toBe("textmore\n");
  expect(statSync(join(path, "file")).uid).toBe(process.getuid!());
}, 60_000);

test("what was planted is told after the command; nothing is said of a plain change, and rw-all asks for no guard", async () => {
  const path = folder("planted");
  mkdirSync(join(path, "sub"));
  const plain = await sandbox(
    [`${path}:/work`],
    "echo x > /work/main.c; mkdir /work/build; echo y > /work/build/Makefile",
  );
  expect([plain.exitCode, plain.stderr]).toEqual([0, ""]);
  const planted = await sandbox(
    [`${path}:/work`],
    "echo evil > /work/sub/.envrc; mkdir -p /work/lib/.vscode; echo '{}' > /work/lib/.vscode/tasks.json; exit 3",
  );
  expect(planted.exitCode).toBe(3);
  expect(planted.stderr).toMatch(
    /^openshell: HIGH: .*lib\/\.vscode\/tasks\.json \(.*\), .*sub\/\.envrc \(direnv .*\)\. Read them/,
  );
  expect((await sandbox([`${path}:/work:rw-all`], "echo evil > /work/.envrc")).stderr).toBe("");
}, 60_000);

test("a kept sandbox shows them, while it runs and when it is stopped; stand-ins go with the last sandbox on the folder", async () => {
  const path = folder("kept");
  execFileSync("git", ["init", "-q", "."], { cwd: path });
  rmSync(join(path, ".git/hooks"), { recursive: true, force: true });
  const create = (name: string) =>
    openshell.ok([
      "sandbox",
      "create",
      "--name",
      name,
      "--detach",
      "--volume",
      `${path}:/work`,
      "--",
      "sleep",
      "86400",
    ]);
  await create("one");
  await create("two");
  expect(readdirSync(path).sort()).toEqual([".git", ".vscode"]);
  expect(execFileSync("git", ["status", "--porcelain"], { cwd: path, encoding: "utf8" })).toBe("");
  const exec = (name: string, script: string) =>
    openshell.run(["sandbox", "exec", name, "--", "/bin/sh", "-c", script]);
  const tried = await exec(
    "one",
    "cd /work; mkdir -p .vscode .git/hooks; echo x > .vscode/settings.json; echo x > .git/hooks/pre-commit; rmdir .vscode .git/hooks; mv .vscode v; git -c user.name=a -c user.email=a@b.c commit -q --allow-empty -m ok && git log --format=%s",
  );
  expect(tried.stdout).toBe("ok\n");
  await openshell.ok(["sandbox", "delete", "two"]);
  expect(existsSync(join(path, ".git/hooks"))).toBe(true);
  await exec("one", "mkdir /work/s; git init -q /work/s");
  expect(await openshell.ok(["sandbox", "get", "one"])).toMatch(
    /VolumeStartupFiles: false, StartupFilesChanged: HIGH: .*s\/\.git\/config/,
  );
  await exec("one", "echo x > /work/s/.npmrc");
  await openshell.ok(["sandbox", "stop", "one"]);
  expect(await openshell.ok(["sandbox", "get", "one"])).toMatch(/s\/\.npmrc/);
  expect(await openshell.ok(["logs", "one"])).toMatch(/StartupFilesChanged: HIGH/);
  expect(readdirSync(path).sort()).toEqual([".git", "s"]);
  expect(existsSync(join(path, ".git/hooks"))).toBe(false);
  await openshell.ok(["sandbox", "delete", "one"]);
}, 90_000);
