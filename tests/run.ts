import { type StdioOptions, spawn, spawnSync } from "node:child_process";
import {
  accessSync,
  chmodSync,
  chownSync,
  closeSync,
  constants,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { enterAsUserCommand, enterCommand } from "./support/enter.ts";
import { type Failure, nameOf, readOutcome, tellFailures, unhandledIn } from "./support/failures.ts";
import type { Mode } from "./support/mode.ts";
import { preparePrograms } from "./support/programs.ts";
import { UNHANDLED_FILE } from "./support/unhandled-reporter.ts";
import { createTestUser, loginEnvironment, type TestUser } from "./support/user.ts";

/**
 * Runs the system tests, once a mode:
 *
 *     node tests/run.ts [--mode root|user|both] [--no-build] [vitest arguments…]
 *
 * Root runs both modes at once by default and makes an unprivileged account for the second; anyone else runs as themselves.
 * The programs are built first, since there is no network where the tests run. TMPDIR is a folder of the pass, which
 * is removed with it. What failed and the summary lines come last, one a pass. Exit status: 0 when every pass succeeded.
 *
 * Two passes at once on a busy machine can make a test fail that waits for something by the clock. After a run of
 * everything the files of a few such failures run once more with nothing beside them; those that pass then are said to be
 * unsteady, with what failed, and the pass counts. Attacks and faults have no second attempt: there a rare failure is a find.
 */

/** Debian package by the command that the tests need of it. */
const TOOLS: Readonly<Record<string, string>> = {
  perl: "perl-base",
  unshare: "util-linux",
  nsenter: "util-linux",
  setpriv: "util-linux",
  ip: "iproute2",
  git: "git",
  curl: "curl",
};

const repository = resolve(import.meta.dirname, "..");

interface Pass {
  readonly mode: Mode;
  readonly ok: boolean;
  readonly failures: readonly Failure[];
  readonly passed: ReadonlySet<string>;
  readonly line: string;
}

/** vitest's command line. */
function vitestCommand(reportFile: string, rest: readonly string[]): readonly string[] {
  const vitest = join(repository, "node_modules", "vitest", "vitest.mjs");
  const unhandled = join(repository, "tests", "support", "unhandled-reporter.ts");
  const reporters = ["default", "json", unhandled].map((name) => `--reporter=${name}`);
  // The native loader writes no file: the user may not write to the checkout.
  const options = [
    "--project",
    "system",
    "--root",
    repository,
    "--configLoader",
    "native",
    ...reporters,
    `--outputFile.json=${reportFile}`,
  ];
  return [process.execPath, vitest, "run", ...options, ...rest];
}

/** Aborted by the first SIGINT or SIGTERM: the pass that runs ends, with its clean-up, and no further one starts. */
const interruption = new AbortController();

/** `output`: a file for what it prints; undefined for this process's own output. */
function run(
  argv: readonly string[],
  cwd: string,
  env: NodeJS.ProcessEnv,
  output: string | undefined,
): Promise<number> {
  const file = output === undefined ? undefined : openSync(output, "a");
  return new Promise<number>((done, fail) => {
    const stdio: StdioOptions = file === undefined ? "inherit" : ["ignore", file, file];
    const child = spawn(argv[0]!, argv.slice(1), { cwd, stdio, env });
    // The terminal sends SIGINT to the child as well; this process only waits, to clean up.
    const interrupt = () => interruption.abort();
    const terminate = () => {
      interruption.abort();
      child.kill("SIGTERM");
    };
    process.on("SIGINT", interrupt).on("SIGTERM", terminate);
    child.on("error", fail);
    child.on("close", (code) => {
      process.off("SIGINT", interrupt).off("SIGTERM", terminate);
      done(code ?? 128);
    });
  }).finally(() => file !== undefined && closeSync(file));
}

function summarise(mode: Mode, code: number, reportFile: string, startedAt: number): Pass {
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
  const outside = unhandledIn(join(dirname(reportFile), UNHANDLED_FILE));
  if (!existsSync(reportFile)) {
    const line = `system tests as ${mode}: did not finish (exit ${code}), ${seconds} s`;
    return { mode, ok: false, failures: outside, passed: new Set(), line };
  }
  const { success, counts, failures, passed } = readOutcome(reportFile, repository);
  const ok = code === 0 && success;
  const line = `system tests as ${mode}: ${ok ? "ok" : "FAILED"}, ${counts}, ${seconds} s`;
  return { mode, ok, failures: [...failures, ...outside], passed, line };
}

/** Locale, colour and CI of the caller; everything else of its environment stays out of a user's pass. */
function passedOn(): Record<string, string> {
  const names = ["PATH", "LANG", "LC_ALL", "TERM", "CI", "NO_COLOR", "FORCE_COLOR"];
  const testing = Object.keys(process.env).filter((name) => name.startsWith("OPENSHELL_TEST_"));
  const kept: Record<string, string> = {};
  for (const name of [...names, ...testing]) {
    const value = process.env[name];
    if (value !== undefined) kept[name] = value;
  }
  return kept;
}

/** Makes the folder of a pass; others may enter it, since servers and clients of other ids use files in it. */
function passFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "openshell-run-"));
  chmodSync(folder, 0o711);
  mkdirSync(join(folder, "tmp"), { mode: 0o711 });
  return folder;
}

async function passAsCaller(mode: Mode, rest: readonly string[], output?: string): Promise<Pass> {
  const folder = passFolder();
  try {
    const reportFile = join(folder, "report.json");
    const startedAt = performance.now();
    const env = { ...process.env, TMPDIR: join(folder, "tmp") };
    const code = await run(enterCommand(vitestCommand(reportFile, rest)), repository, env, output);
    return summarise(mode, code, reportFile, startedAt);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Whether that user passes `test FLAG PATH`, after `prefix`. */
function userCan(user: TestUser, flag: "-r" | "-x", path: string, prefix: readonly string[] = []): boolean {
  const ids = ["--reuid", String(user.uid), "--regid", String(user.gid), "--clear-groups"];
  const [program, ...argv] = [...prefix, "setpriv", ...ids, "test", flag, path];
  return spawnSync(program!, argv).status === 0;
}

/** In place of the folder $0, one that everyone may enter and that holds nothing but the path to $1. */
const SHOW_ONLY = `
t=$(mktemp -d) && mount --bind "$1" "$t" && mount -t tmpfs -o mode=755 none "$0" && mkdir -p "$1" &&
mount --bind "$t" "$1" && umount "$t" && rmdir "$t" && shift && exec "$@"`;

/**
 * What goes before a command so that the user can read the checkout: nothing, or, for a checkout below a private
 * folder (root's home, say), a mount namespace in which that folder shows the checkout alone, under the same path.
 */
function showCheckout(user: TestUser): readonly string[] {
  const ancestors: string[] = [];
  for (let path = dirname(repository); path !== "/"; path = dirname(path)) ancestors.unshift(path);
  const hidden = ancestors.find((path) => !userCan(user, "-x", path));
  if (hidden === undefined) return [];
  return ["unshare", "--mount", "--propagation", "private", "sh", "-c", SHOW_ONLY, hidden, repository];
}

async function passAsNewUser(rest: readonly string[], output?: string): Promise<Pass> {
  using user = createTestUser();
  const env = passedOn();
  const prefix = showCheckout(user);
  const node = process.execPath;
  for (const [flag, path] of [
    ["-x", node],
    ["-r", join(repository, "package.json")],
  ] as const) {
    if (userCan(user, flag, path, prefix)) continue;
    throw new Error(`the unprivileged user cannot read ${path}; make it readable by everyone, or use another copy`);
  }
  const temporary = join(user.home, "tmp");
  mkdirSync(temporary, { mode: 0o711 });
  chownSync(temporary, user.uid, user.gid);
  const reportFile = join(user.home, "report.json");
  const command = enterAsUserCommand(vitestCommand(reportFile, rest), user, {
    ...loginEnvironment(user),
    ...env,
    TMPDIR: temporary,
    PATH: `${dirname(node)}:${env["PATH"] ?? "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}`,
  });
  const startedAt = performance.now();
  // cwd is set by vitest's --root; the user may not be able to enter the caller's.
  const code = await run([...prefix, ...command], "/", process.env, output);
  return summarise("user", code, reportFile, startedAt);
}

function onePass(mode: Mode, root: boolean, rest: readonly string[]): Promise<Pass> {
  return mode === "user" && root ? passAsNewUser(rest) : passAsCaller(mode, rest);
}

/**
 * Both at the same time: each has networks, processes and folders of its own, and waits more than it computes. What the
 * second one prints follows when it has ended.
 */
async function bothPasses(rest: readonly string[]): Promise<readonly Pass[]> {
  const folder = mkdtempSync(join(tmpdir(), "openshell-passes-"));
  const output = join(folder, "user.log");
  try {
    const user = passAsNewUser(rest, output);
    // Awaited below; a failure before that is no unhandled one.
    user.catch(() => {});
    const first = await passAsCaller("root", rest);
    const second = await user.finally(() => {
      console.log("\n== the same as a user");
      if (existsSync(output)) process.stdout.write(readFileSync(output));
    });
    return [first, second];
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Files with failures that may be tried again, of both passes together. More is no matter of the clock. */
const SECOND_ATTEMPTS = 3;
const ONE_ATTEMPT = /^tests\/(security|faults)\/|attack/;

/** Runs files that failed beside the other pass again, alone. A pass whose tests all succeed then is ok; its failures stay named. */
async function secondAttempts(passes: readonly Pass[], root: boolean): Promise<readonly Pass[]> {
  const failures = passes.flatMap((pass) => pass.failures);
  const failed = passes.map((pass) => [...new Set(pass.failures.map(({ file }) => file))]);
  const files = failed.flat();
  const hopeless =
    passes.some((pass) => !pass.ok && pass.failures.length === 0) ||
    failures.some(({ file, test }) => test === undefined || ONE_ATTEMPT.test(file)) ||
    // What fails in both is no chance, or one that both have in common.
    new Set(files).size < files.length;
  if (files.length === 0 || files.length > SECOND_ATTEMPTS || hopeless) return passes;
  const judged: Pass[] = [];
  for (const [index, pass] of passes.entries()) {
    const again = failed[index]!;
    if (again.length === 0 || interruption.signal.aborted) {
      judged.push(pass);
      continue;
    }
    console.log(`\n== once more as ${pass.mode}, alone: ${again.join(" ")}`);
    const second = await onePass(pass.mode, root, again);
    const succeeded = second.ok && pass.failures.every(({ file, test }) => second.passed.has(nameOf(file, test ?? "")));
    judged.push(succeeded ? { ...pass, ok: true, line: pass.line.replace("FAILED", "ok alone") } : pass);
  }
  return judged;
}

/** Throws, naming what to install, when a tool is missing. */
function requireTools(names: readonly string[]): void {
  const present = (name: string) => spawnSync("sh", ["-c", 'command -v "$0"', name]).status === 0;
  const missing = names.filter((name) => !present(name));
  if (missing.length === 0) return;
  const packages = [...new Set(missing.map((name) => TOOLS[name] ?? "passwd"))].join(" ");
  throw new Error(`missing for the system tests: ${missing.join(", ")}; on Debian: apt-get install ${packages}`);
}

/** Brings the build behind `./openshell` up to date, where packages can still be fetched. */
function prepare(): void {
  const env = { ...process.env, OPENSHELL_OUT: join(repository, "dist") };
  const result = spawnSync("sh", [join(repository, "tools", "prepare.sh")], {
    env,
    stdio: ["ignore", "ignore", "inherit"],
  });
  if (result.status !== 0) throw new Error("the build failed; --no-build runs tests that do not need it");
}

/** False when only test files are named that run none of the prepared programs. */
function mayUsePrograms(rest: readonly string[]): boolean {
  const files = rest.filter((argument) => argument.includes("tests/"));
  return (
    files.length === 0 ||
    files.some((file) => /functional\/?$|functional\/(agent|clients|python-sdk|rpc)|conformance/.test(file))
  );
}

async function main(args: readonly string[]): Promise<number> {
  const rest = [...args];
  const root = process.getuid?.() === 0;
  let wanted: string = root ? "both" : "user";
  const flag = rest.findIndex((argument) => argument === "--mode" || argument.startsWith("--mode="));
  if (flag >= 0) {
    const inline = rest[flag]!.split("=")[1];
    wanted = inline ?? rest[flag + 1] ?? "";
    rest.splice(flag, inline === undefined ? 2 : 1);
  }
  if (!["root", "user", "both"].includes(wanted)) throw new Error("--mode takes root, user or both");
  if (!root && wanted !== "user") throw new Error(`--mode ${wanted} needs root`);
  requireTools([...Object.keys(TOOLS), ...(root && wanted !== "root" ? ["useradd", "userdel"] : [])]);
  accessSync(join(repository, "node_modules", "vitest"), constants.R_OK);
  const build = rest.indexOf("--no-build");
  if (build >= 0) rest.splice(build, 1);
  else prepare();
  if (mayUsePrograms(rest)) await preparePrograms();

  const passes = wanted === "both" ? await bothPasses(rest) : [await onePass(wanted as Mode, root, rest)];
  const judged = wanted === "both" && rest.length === 0 ? await secondAttempts(passes, root) : passes;
  for (const { mode, ok, failures } of judged) tellFailures(`${ok ? "UNSTEADY" : "FAILED"} as ${mode}:`, failures);
  for (const pass of judged) console.log(pass.line);
  return judged.every((pass) => pass.ok) ? 0 : 1;
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}
