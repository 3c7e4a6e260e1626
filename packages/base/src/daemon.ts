import { type ChildProcess, spawn } from "node:child_process";

/**
 * How processes that hold secrets are started: a session of their own, no core dumps, umask 077, an environment of a few
 * known variables, and no way for another local user to attach a debugger (docs/architecture/overview.md).
 */

/** The variables that such a process gets, beside every XDG_* and OPENSHELL_*. Nothing that steers Node, TLS or proxies. */
const PASSED = ["PATH", "HOME", "LANG", "TZ"] as const;

/**
 * The C library's allocator, as a process wants it that works in bursts for days: few arenas for its threads, and what is
 * freed goes back to the system. By default a gateway through whose hands 500 sandboxes went keeps twice the memory that
 * it needs (`npm run bench -- churn`). https://man7.org/linux/man-pages/man3/mallopt.3.html
 */
const ALLOCATOR = { MALLOC_ARENA_MAX: "2", MALLOC_TRIM_THRESHOLD_: "131072" } as const;

/** The part of an environment that is passed on, with the settings of the allocator. */
export function daemonEnvironment(env: Readonly<Record<string, string | undefined>>): Record<string, string> {
  const kept = Object.entries(env).filter(
    ([name, value]) =>
      value !== undefined &&
      ((PASSED as readonly string[]).includes(name) || name.startsWith("XDG_") || name.startsWith("OPENSHELL_")),
  );
  return { ...(Object.fromEntries(kept) as Record<string, string>), ...ALLOCATOR };
}

export interface DaemonOptions {
  /** JavaScript file of the program. */
  readonly program: string;
  readonly args: readonly string[];
  /** Already reduced by {@link daemonEnvironment}. */
  readonly env: Readonly<Record<string, string>>;
  /** Descriptor that its stdout and stderr go to: a log. */
  readonly output: number;
  /** The Node to run it with; this process's own by default. */
  readonly node?: string;
  /** Further options for Node, before the program. */
  readonly nodeOptions?: readonly string[];
}

/**
 * Starts it detached, with a pipe as its descriptor 3 (`child.stdio[3]`): for a secret to it, or a word of readiness
 * from it. The caller decides when to `unref`.
 */
export function spawnDaemon(options: DaemonOptions): ChildProcess {
  const node = options.node ?? process.execPath;
  // The shell sets the limits between fork and exec, which Node cannot, and replaces itself.
  const prepare = 'ulimit -c 0 && umask 077 && exec "$@"';
  const argv = [node, "--disable-sigusr1", ...(options.nodeOptions ?? []), options.program, ...options.args];
  return spawn("/bin/sh", ["-c", prepare, "openshell", ...argv], {
    cwd: "/",
    detached: true,
    env: options.env,
    stdio: ["ignore", options.output, options.output, "pipe"],
  });
}
