import { type ChildProcess, execFileSync, fork, spawn } from "node:child_process";
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import type { TestGateway } from "../../tests/support/api.ts";
import { wrapCommand } from "../../tests/support/command.ts";
import type { TestInternet } from "../../tests/support/internet/index.ts";
import type { Result } from "./report.ts";

const REPOSITORY = resolve(import.meta.dirname, "../..");
/** What the launcher looks at before it starts a build that exists. */
const INPUTS = ["openshell", "package.json", "package-lock.json", "packages", "proto", "native", "tools"];

/** What every suite gets. */
export interface Stage {
  readonly net: TestInternet;
  readonly build: Build;
  /** Seconds a measurement that counts operations. */
  readonly seconds: number;
  /** Sandboxes of one round of churn. */
  readonly sandboxes: number;
  /** Prints and keeps a figure. */
  readonly report: (result: Result) => void;
  /** A gateway without sandboxes, one for all suites that need no other. */
  readonly gateway: () => Promise<TestGateway>;
  /** One of the caller's own, which ends it. */
  readonly freshGateway: () => Promise<TestGateway>;
  /** Runs `step` before the test internet ends. */
  readonly cleanup: (step: () => unknown) => void;
}

/**
 * A checkout of its own with the current build: the launcher does what it does for a user, and edits in the checkout
 * meanwhile change nothing that is being measured.
 */
export class Build implements Disposable {
  readonly folder: string;
  readonly launcher: string;
  /** The Node that the build runs on. */
  readonly node: string;
  /** Bundles of the build. */
  readonly output: string;

  private constructor(folder: string, key: string, node: string) {
    this.folder = folder;
    this.launcher = join(folder, "openshell");
    this.node = node;
    this.output = join(folder, "dist", key);
  }

  /** Brings the build of the checkout up to date. Needs the network when packages are missing. */
  static prepare(): void {
    execFileSync(join(REPOSITORY, "openshell"), ["--version"], { stdio: ["ignore", "ignore", "inherit"] });
  }

  /** Copies the build that `prepare` left. */
  static copy(): Build {
    const stamp = readFileSync(join(REPOSITORY, "dist", "stamp"), "utf8");
    const [key, node] = stamp.trim().split(" ") as [string, string];
    const folder = mkdtempSync(join(tmpdir(), "openshell-bench-"));
    chmodSync(folder, 0o755);
    const filter = (source: string): boolean => basename(source) !== "node_modules";
    for (const name of INPUTS) cpSync(join(REPOSITORY, name), join(folder, name), { recursive: true, filter });
    mkdirSync(join(folder, "dist"));
    cpSync(join(REPOSITORY, "dist", key), join(folder, "dist", key), { recursive: true });
    cpSync(join(REPOSITORY, "bench", "workers"), join(folder, "bench"), { recursive: true });
    // Last: everything else must be older.
    writeFileSync(join(folder, "dist", "stamp"), stamp);
    return new Build(folder, key, node);
  }

  [Symbol.dispose](): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A process of its own that does jobs one after the other: its work distorts nothing that the caller times. */
export class Worker implements Disposable {
  readonly #child: ChildProcess;

  constructor(name: string) {
    this.#child = fork(join(REPOSITORY, "bench", "workers", `${name}.ts`));
  }

  get pid(): number {
    return this.#child.pid!;
  }

  async run<T>(job: unknown): Promise<T> {
    const child = this.#child;
    const answer = await new Promise<{ result: T } | { error: string }>((resolve, reject) => {
      const ended = (code: number | null): void => reject(new Error(`a worker ended with status ${code}`));
      child.once("exit", ended);
      child.once("message", (message) => {
        child.off("exit", ended);
        resolve(message as { result: T } | { error: string });
      });
      child.send(job as object);
    });
    if ("error" in answer) throw new Error(answer.error);
    return answer.result;
  }

  [Symbol.dispose](): void {
    this.#child.kill("SIGKILL");
  }
}

/** How long a command took. */
export interface Timed {
  /** Until its first byte of output; undefined when it had none. */
  readonly firstOutputMs: number | undefined;
  readonly totalMs: number;
  readonly exitCode: number | null;
}

/** Runs a command as the product runs in this mode, with its output read. */
export function timed(
  argv: readonly string[],
  env: Readonly<Record<string, string | undefined>>,
  cwd: string,
): Promise<Timed> {
  const [program, ...rest] = wrapCommand(argv);
  const startedAt = performance.now();
  const child = spawn(program!, rest, { env: { ...process.env, ...env }, cwd, stdio: ["ignore", "pipe", "pipe"] });
  let firstOutputMs: number | undefined;
  let errors = "";
  child.stdout.on("data", () => {
    firstOutputMs ??= performance.now() - startedAt;
  });
  child.stderr.on("data", (chunk) => {
    errors += chunk;
  });
  return new Promise((done, fail) => {
    child.on("error", fail);
    child.on("close", (exitCode) => {
      if (exitCode !== 0) fail(new Error(`${argv.join(" ")}: exit ${exitCode}\n${errors}`));
      else done({ firstOutputMs, totalMs: performance.now() - startedAt, exitCode });
    });
  });
}
