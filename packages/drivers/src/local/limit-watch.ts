import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Clock } from "@openshell/base";

/** How often the kernel's counters are read: a limit that is met is told within so long. A look costs about 30 µs a sandbox. */
const INTERVAL_MS = 5_000;

/** What a cgroup limits whose meetings the kernel counts. */
export type CountedLimit = "processes" | "memory";

/**
 * Files with counters, below a cgroup's folder, and the word before the number. Before Linux 6.11 a refused fork counts in
 * the cgroup of the process that tried (init's `workload`), later in the one whose limit it was (cgroup-v2.rst, "PID").
 */
const COUNTERS: readonly { readonly limit: CountedLimit; readonly file: string; readonly word: string }[] = [
  { limit: "processes", file: "pids.events", word: "max" },
  { limit: "processes", file: "workload/pids.events", word: "max" },
  { limit: "memory", file: "memory.events", word: "oom_kill" },
  { limit: "memory", file: "memory.oom_control", word: "oom_kill" },
];

export interface WatchedLimits {
  readonly sandboxId: string;
  readonly generation: bigint;
  /** The sandbox's cgroups. */
  readonly folders: readonly string[];
}

type Counts = Readonly<Record<CountedLimit, number>>;

/** Reads the kernel's counters of limits that processes of a sandbox met. What cannot be read counts as none. */
export function readCounters(folders: readonly string[], read: (path: string) => string = readText): Counts {
  const counts = { processes: 0, memory: 0 };
  for (const folder of folders) {
    for (const { limit, file, word } of COUNTERS) {
      const line = read(join(folder, file)).match(new RegExp(`^${word} (\\d+)$`, "m"));
      counts[limit] = Math.max(counts[limit], Number(line?.[1] ?? 0));
    }
  }
  return counts;
}

/**
 * Tells when a sandbox met its limit of processes or of memory, once for all that happened between two looks. Looks only
 * while something is watched; a sandbox that is let go of is looked at a last time, since its end may be the reason.
 */
export class LimitWatch implements AsyncDisposable {
  readonly #clock: Clock;
  readonly #onReached: (watched: WatchedLimits, limit: CountedLimit, times: number) => void;
  readonly #read: (path: string) => string;
  readonly #watched = new Map<string, { readonly watched: WatchedLimits; counts: Counts }>();
  readonly #stop = new AbortController();
  #polling: Promise<void> | undefined;

  constructor(
    clock: Clock,
    onReached: (watched: WatchedLimits, limit: CountedLimit, times: number) => void,
    read: (path: string) => string = readText,
  ) {
    this.#clock = clock;
    this.#onReached = onReached;
    this.#read = read;
  }

  /** What was counted before is not told: a gateway that was restarted said it already. */
  add(watched: WatchedLimits): void {
    if (watched.folders.length === 0) return;
    if (this.#watched.get(watched.sandboxId)?.watched.generation === watched.generation) return;
    this.#watched.set(watched.sandboxId, { watched, counts: readCounters(watched.folders, this.#read) });
    this.#ensurePolling();
  }

  /** Before the sandbox's cgroups are removed. */
  remove(sandboxId: string): void {
    this.#look(sandboxId);
    this.#watched.delete(sandboxId);
  }

  /** Looks once, now. */
  check(): void {
    for (const sandboxId of this.#watched.keys()) this.#look(sandboxId);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await this.#polling;
  }

  #look(sandboxId: string): void {
    const entry = this.#watched.get(sandboxId);
    if (entry === undefined) return;
    const counts = readCounters(entry.watched.folders, this.#read);
    for (const limit of ["processes", "memory"] as const) {
      const times = counts[limit] - entry.counts[limit];
      if (times > 0) this.#onReached(entry.watched, limit, times);
    }
    entry.counts = counts;
  }

  #ensurePolling(): void {
    if (this.#polling !== undefined || this.#stop.signal.aborted || this.#watched.size === 0) return;
    this.#polling = this.#poll().finally(() => {
      this.#polling = undefined;
      this.#ensurePolling();
    });
  }

  async #poll(): Promise<void> {
    while (this.#watched.size > 0) {
      try {
        await this.#clock.sleep(INTERVAL_MS, { signal: this.#stop.signal, unref: true });
      } catch {
        return;
      }
      this.check();
    }
  }
}

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
