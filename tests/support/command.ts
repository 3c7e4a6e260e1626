import { type ChildProcess, spawn } from "node:child_process";
import { mode } from "./mode.ts";
import { systemCalls } from "./system-calls.ts";

/**
 * Commands inside the test network: environment, ids and working folder are exactly what the caller says, and output
 * and exit status are exactly what the command gave.
 */

/** Output beyond this ends the command. Tests that move more count bytes elsewhere. */
export const MAX_OUTPUT_BYTES = 256 * 1024 * 1024;
export const DEFAULT_TIMEOUT_MS = 30_000;
/** After exit, a pipe that is silent but open for two of these is reported as held by something left behind. */
const HELD_OUTPUT_TICK_MS = 500;

export interface SpawnOptions {
  /** Added to PATH, HOME, LANG and TERM; nothing else is inherited. `undefined` removes a variable. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly cwd?: string;
  /**
   * "product" (default): as the mode says, an ordinary user without capabilities or full root. "harness": with the
   * capabilities of the test process, for what sets up the surroundings.
   */
  readonly privileges?: "product" | "harness";
  /** Another user id (and group id), root mode only. */
  readonly uid?: number;
  readonly gid?: number;
  /** Folder whose resolv.conf and nsswitch.conf the command sees: see `PlaceOptions.names`. */
  readonly namesFolder?: string;
  /** Pid of a process whose network namespace is used. */
  readonly networkOf?: number;
  /** "pipe" (default) or one entry per descriptor. */
  readonly stdio?: ("pipe" | "ignore" | "inherit" | number)[];
}

export interface RunOptions extends SpawnOptions {
  readonly stdin?: string | Uint8Array;
  /** The whole process group is killed after this many milliseconds. */
  readonly timeoutMs?: number;
  /** Ends the command like the timeout. */
  readonly signal?: AbortSignal;
}

export interface RunResult {
  readonly argv: readonly string[];
  readonly stdoutBytes: Buffer;
  readonly stderrBytes: Buffer;
  /** UTF-8 views of the bytes. */
  readonly stdout: string;
  readonly stderr: string;
  /** Null when a signal ended the command. */
  readonly exitCode: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly timedOut: boolean;
  /** True when something the command left behind still holds its stdout or stderr. */
  readonly outputHeldOpen: boolean;
  readonly durationMs: number;
}

const DROP = ["setpriv", "--ambient-caps=-all", "--inh-caps=-all", "--"];

/**
 * Puts the folder's resolv.conf and nsswitch.conf in front of the machine's with MS_BIND (4096), for one command. Not
 * with mount(8): that is set-user-id, and refuses a caller with capabilities but another uid than root.
 */
const WITH_NAMES = `
my ($mount, $folder, @argv) = @ARGV;
my $type = "none";
for my $name (qw(resolv.conf nsswitch.conf)) {
  my ($from, $to) = ("$folder/$name", "/etc/$name");
  next unless -e $to;
  syscall($mount + 0, $from, $to, $type, 4096, 0) == 0 or die "mount $to: $!\\n";
}
exec { $argv[0] } @argv or die "$argv[0]: $!\\n";`;

/** `argv` with what brings it into the wanted namespaces and to the wanted privileges in front. */
export function wrapCommand(argv: readonly string[], options: SpawnOptions = {}): readonly string[] {
  const command: string[] = [];
  if (options.networkOf !== undefined) command.push("nsenter", `--net=/proc/${options.networkOf}/ns/net`, "--");
  if (options.namesFolder !== undefined) {
    const perl = ["perl", "-e", WITH_NAMES, "--", String(systemCalls().mount), options.namesFolder];
    command.push("unshare", "--mount", "--propagation", "private", "--", ...perl);
  }
  if (options.uid !== undefined && options.uid !== process.getuid?.()) {
    if (mode !== "root") throw new Error("only root can run a command under another uid");
    const gid = options.gid ?? options.uid;
    command.push("setpriv", "--reuid", String(options.uid), "--regid", String(gid), "--clear-groups", "--");
  } else if (mode === "user" && options.privileges !== "harness") {
    command.push(...DROP);
  }
  return [...command, ...argv];
}

function environment(extra: SpawnOptions["env"] = {}): Record<string, string> {
  const base: Record<string, string | undefined> = {
    PATH: process.env.PATH ?? "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    HOME: process.env.HOME ?? "/",
    LANG: "C.UTF-8",
    TERM: "dumb",
    ...extra,
  };
  return Object.fromEntries(Object.entries(base).filter((entry): entry is [string, string] => entry[1] !== undefined));
}

/** Starts `argv` in a session of its own. The caller ends it; `killGroup` reaches its children too. */
export function spawnCommand(argv: readonly string[], options: SpawnOptions = {}): ChildProcess {
  const [program, ...rest] = wrapCommand(argv, options);
  return spawn(program!, rest, {
    cwd: options.cwd ?? "/",
    env: environment(options.env),
    stdio: options.stdio ?? ["pipe", "pipe", "pipe"],
    detached: true,
  });
}

/** Sends a signal to the process group that `spawnCommand` made. False when nothing was left of it. */
export function killGroup(child: ChildProcess, signal: NodeJS.Signals = "SIGKILL"): boolean {
  if (child.pid === undefined) return false;
  try {
    return process.kill(-child.pid, signal);
  } catch {
    return false;
  }
}

/** Runs `argv` to its end. Rejects only when it could not be started; a timeout is part of the result. */
export async function runCommand(argv: readonly string[], options: RunOptions = {}): Promise<RunResult> {
  const startedAt = performance.now();
  const child = spawnCommand(argv, { ...options, stdio: ["pipe", "pipe", "pipe"] });
  const collected: Record<"stdout" | "stderr", Buffer[]> = { stdout: [], stderr: [] };
  let total = 0;
  let timedOut = false;
  let problem: Error | undefined;
  const stop = () => {
    timedOut = true;
    killGroup(child);
  };
  for (const name of ["stdout", "stderr"] as const) {
    child[name]?.on("data", (chunk: Buffer) => {
      total += chunk.length;
      if (total > MAX_OUTPUT_BYTES) {
        problem = new Error(`${argv[0]} wrote more than ${MAX_OUTPUT_BYTES} bytes`);
        killGroup(child);
      } else collected[name].push(chunk);
    });
  }
  // The command may exit without reading its input.
  child.stdin?.on("error", () => {});
  child.stdin?.end(options.stdin ?? "");
  const timer = setTimeout(stop, options.timeoutMs ?? DEFAULT_TIMEOUT_MS);
  options.signal?.addEventListener("abort", stop, { once: true });
  if (options.signal?.aborted) stop();
  let outputHeldOpen = false;
  try {
    const [exitCode, signal] = await new Promise<[number | null, NodeJS.Signals | null]>((done, fail) => {
      child.on("error", fail);
      child.on("close", (code, signal) => done([code, signal]));
      child.on("exit", (code, signal) => {
        // "close" follows once both pipes are read to their end, unless a process left behind keeps them open. Silence
        // counts only over two ticks, since a busy event loop fires the first one before it reads.
        let seen = total;
        let silent = 0;
        const tick = setInterval(() => {
          silent = total === seen ? silent + 1 : 0;
          seen = total;
          if (child.stdout?.closed && child.stderr?.closed) clearInterval(tick);
          else if (silent >= 2) {
            clearInterval(tick);
            outputHeldOpen = true;
            child.stdout?.destroy();
            child.stderr?.destroy();
            done([code, signal]);
          }
        }, HELD_OUTPUT_TICK_MS);
        child.on("close", () => clearInterval(tick));
      });
    });
    if (problem) throw problem;
    const stdoutBytes = Buffer.concat(collected.stdout);
    const stderrBytes = Buffer.concat(collected.stderr);
    return {
      argv,
      stdoutBytes,
      stderrBytes,
      stdout: stdoutBytes.toString(),
      stderr: stderrBytes.toString(),
      exitCode,
      signal,
      timedOut,
      outputHeldOpen,
      durationMs: performance.now() - startedAt,
    };
  } finally {
    clearTimeout(timer);
    options.signal?.removeEventListener("abort", stop);
  }
}

/** As `runCommand`, and throws with both outputs unless the exit code is 0. Returns stdout. */
export async function runOk(argv: readonly string[], options: RunOptions = {}): Promise<string> {
  const result = await runCommand(argv, options);
  if (result.exitCode === 0) return result.stdout;
  const how = result.timedOut ? "timed out" : `exit ${result.exitCode ?? result.signal}`;
  throw new Error(`${argv.join(" ")}: ${how}\n${result.stderr}${result.stdout}`);
}
