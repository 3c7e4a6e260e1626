import type { ChildProcess } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import type { RunOptions, RunResult, SpawnOptions } from "./command.ts";
import { type GatewayConfigOptions, TestHome } from "./home.ts";
import { runProcesses } from "./leaks.ts";
import { filesWithSecrets } from "./secrets.ts";

/** The command that tests run: what a person types. tests/run.ts brings the build behind it up to date first. */
export const OPENSHELL: readonly string[] = [
  process.env["OPENSHELL_TEST_COMMAND"] ?? resolve(import.meta.dirname, "../../openshell"),
];

const STOP_TIMEOUT_MS = 30_000;

/** What this file needs of `TestInternet`. */
interface Surroundings {
  readonly caFile: string;
  readonly dns: { readonly resolvers: readonly string[] };
  run(argv: readonly string[], options?: RunOptions): Promise<RunResult>;
  spawn(argv: readonly string[], options?: SpawnOptions): ChildProcess;
}

export interface OpenShellOptions {
  /** Added to a gateway.toml that trusts the test internet's CA and asks its name server. */
  readonly gateway?: GatewayConfigOptions;
  /** Variables of every command; `undefined` removes one. */
  readonly env?: SpawnOptions["env"];
  /** In place of `OPENSHELL`: another build, say. */
  readonly command?: readonly string[];
}

/**
 * `openshell` as somebody uses it who has never used it before, in the test internet. The first command that needs a
 * gateway starts it. Disposal stops the gateway with its sandboxes, and throws if anything of it is left, or if a secret
 * of the tests (secrets.ts) is in any file that it wrote.
 */
export class TestOpenShell implements AsyncDisposable {
  readonly home: TestHome;
  readonly #net: Surroundings;
  readonly #env: NonNullable<SpawnOptions["env"]>;
  readonly #command: readonly string[];
  /** Descriptions (pid and start time) of processes that were found to be its own. */
  readonly #seen = new Set<string>();
  #used = false;

  private constructor(net: Surroundings, home: TestHome, options: OpenShellOptions) {
    this.#net = net;
    this.home = home;
    this.#env = { ...home.env, ...options.env };
    this.#command = options.command ?? OPENSHELL;
  }

  static create(net: Surroundings, options: OpenShellOptions = {}): TestOpenShell {
    const home = TestHome.create();
    home.writeGatewayConfig({ caFile: net.caFile, resolvers: net.dns.resolvers, ...options.gateway });
    return new TestOpenShell(net, home, options);
  }

  /** The environment of its commands. */
  get env(): NonNullable<SpawnOptions["env"]> {
    return this.#env;
  }

  /** Runs `openshell ARGS…` in the home folder. */
  run(args: readonly string[], options: RunOptions = {}): Promise<RunResult> {
    this.#used = true;
    return this.#net.run([...this.#command, ...args], this.#place(options));
  }

  /** As `run`; throws with both outputs unless it exits 0. */
  async ok(args: readonly string[], options: RunOptions = {}): Promise<string> {
    const result = await this.run(args, options);
    if (result.exitCode === 0) return result.stdout;
    const how = result.timedOut ? "timed out" : `exit ${result.exitCode ?? result.signal}`;
    throw new Error(`openshell ${args.join(" ")}: ${how}\n${result.stderr}${result.stdout}`);
  }

  /** As `ok`, with `-o json`, parsed. */
  async json<T>(args: readonly string[], options: RunOptions = {}): Promise<T> {
    return JSON.parse(await this.ok([...args, "-o", "json"], options)) as T;
  }

  /** Starts `openshell ARGS…`. */
  spawn(args: readonly string[], options: SpawnOptions = {}): ChildProcess {
    this.#used = true;
    return this.#net.spawn([...this.#command, ...args], this.#place(options));
  }

  /**
   * Pids of processes that belong to this home: gateway, hosts, sandboxes, commands. Those that carry it in their
   * environment or arguments; those that cannot be looked into (they are not dumpable) by descent from the gateway,
   * for as long as they live.
   */
  processes(): readonly number[] {
    const table = runProcesses().filter((entry) => entry.pid !== process.pid);
    const mentions = (path: string) => {
      try {
        return readFileSync(path, "latin1").includes(this.home.folder);
      } catch {
        return false;
      }
    };
    const gateways = this.#gatewayPids();
    const found = new Set<number>();
    for (const { pid, description } of table) {
      const own = this.#seen.has(description) || gateways.has(pid);
      if (own || mentions(`/proc/${pid}/environ`) || mentions(`/proc/${pid}/cmdline`)) found.add(pid);
    }
    for (let size = -1; size !== found.size; ) {
      size = found.size;
      for (const { pid, parent } of table) if (found.has(parent)) found.add(pid);
    }
    for (const { pid, description } of table) if (found.has(pid)) this.#seen.add(description);
    return [...found];
  }

  /** As the records say that gateways of this home leave while they run. */
  #gatewayPids(): ReadonlySet<number> {
    const folder = join(this.home.runtime, "openshell");
    const pids = new Set<number>();
    try {
      for (const name of readdirSync(folder)) {
        const record = JSON.parse(readFileSync(join(folder, name, "gateway.json"), "utf8")) as { pid: number };
        pids.add(record.pid);
      }
    } catch {
      // None runs.
    }
    return pids;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    let problem: Error | undefined;
    if (this.#used && this.processes().length > 0) {
      const args = ["gateway", "stop", "--sandboxes", "stop"];
      const result = await this.run(args, { timeoutMs: STOP_TIMEOUT_MS });
      if (result.exitCode !== 0) {
        problem = new Error(`openshell ${args.join(" ")}: exit ${result.exitCode ?? result.signal}\n${result.stderr}`);
      }
      const left = this.processes();
      if (left.length > 0) {
        const names = left.map((pid) => runProcesses().find((entry) => entry.pid === pid)?.description ?? String(pid));
        problem ??= new Error(`still running after openshell ${args.join(" ")}:\n  ${names.join("\n  ")}`);
        for (const pid of left) {
          try {
            process.kill(pid, "SIGKILL");
          } catch {
            // It ended by itself.
          }
        }
      }
    }
    const leaked = filesWithSecrets([
      this.home.config,
      this.home.state,
      this.home.runtime,
      this.home.env["XDG_CACHE_HOME"]!,
    ]);
    if (leaked.length > 0) problem ??= new Error(`secrets in files of openshell:\n  ${leaked.join("\n  ")}`);
    try {
      this.home[Symbol.dispose]();
    } catch (error) {
      problem ??= error as Error;
    }
    if (problem) throw problem;
  }

  #place<T extends SpawnOptions>(options: T): T {
    return { cwd: this.home.path(), ...options, env: { ...this.#env, ...options.env } };
  }
}
