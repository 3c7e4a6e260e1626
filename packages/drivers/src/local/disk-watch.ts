import { statfs } from "node:fs/promises";
import { Worker } from "node:worker_threads";
import type { Clock } from "@openshell/base";
import type { DiskUsage } from "./disk-usage.ts";
import type { MeasureRequest } from "./disk-usage-thread.ts";
import { threadEntry } from "./thread-entry.ts";

/** How often the file system is asked how full it is: one system call. Milliseconds. */
const CHECK_MS = 5_000;
/** A started sandbox is first measured after so long, so that one that was stopped for its size can be cleaned up. */
export const FIRST_MEASURE_MS = 30_000;
/** A size is believed for so long at most, even when the file system did not grow: others may have freed what one took. */
const BELIEVED_MS = 300_000;
/** After a measurement nothing is measured for this many times what it took: at most a twentieth of one CPU. */
const REST_FACTOR = 19;

/** Adds up what each sandbox's folders take; stops early beyond `enoughBytes`. */
export type Measure = (request: MeasureRequest, signal: AbortSignal) => Promise<readonly DiskUsage[]>;
/** Bytes in use on the file system that holds a folder. */
export type UsedBytes = (folder: string) => Promise<number>;

/** A sandbox whose files are watched. */
export interface DiskWatched {
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly folders: readonly string[];
}

interface Entry extends DiskWatched {
  /** Monotonic; not measured before. */
  readonly firstAt: number;
  measured: { readonly bytes: number; readonly used: number; readonly at: number } | undefined;
}

/**
 * Notices when a sandbox's files take more than its limit, and tells once. Files are added up only when the file system has
 * grown enough since the last time for the limit to be within reach, those that are due together, in a thread.
 */
export class DiskWatch implements AsyncDisposable {
  readonly #options: {
    readonly clock: Clock;
    readonly limitBytes: number;
    readonly onExceeded: (watched: DiskWatched, bytes: number) => void;
    readonly measure: Measure;
    readonly usedBytes: UsedBytes;
  };
  readonly #entries = new Map<string, Entry>();
  readonly #stop = new AbortController();
  #running: Promise<void> | undefined;
  #restUntil = 0;

  /** `limitBytes` 0: nothing is watched. */
  constructor(options: {
    readonly clock: Clock;
    readonly limitBytes: number;
    readonly onExceeded: (watched: DiskWatched, bytes: number) => void;
    readonly measure?: Measure;
    readonly usedBytes?: UsedBytes;
  }) {
    this.#options = { measure: measureInThread, usedBytes: usedOnDisk, ...options };
  }

  add(watched: DiskWatched): void {
    if (this.#options.limitBytes === 0) return;
    if (this.#entries.get(watched.sandboxId)?.generation === watched.generation) return;
    const firstAt = this.#options.clock.monotonic() + FIRST_MEASURE_MS;
    this.#entries.set(watched.sandboxId, { ...watched, firstAt, measured: undefined });
    this.#running ??= this.#run().finally(() => {
      this.#running = undefined;
    });
  }

  remove(sandboxId: string): void {
    this.#entries.delete(sandboxId);
  }

  /** Looks once: measures what has to be measured. */
  async check(): Promise<void> {
    const { clock, limitBytes, measure, onExceeded, usedBytes } = this.#options;
    const now = clock.monotonic();
    const grown = [...this.#entries.values()].filter(({ firstAt }) => now >= firstAt);
    if (grown.length === 0 || now < this.#restUntil) return;
    // All lie on the file system of the gateway's state.
    const used = await usedBytes(grown[0]!.folders[0]!);
    const due = grown.filter(({ measured }) => {
      if (measured === undefined || now - measured.at >= BELIEVED_MS) return true;
      return used - measured.used > limitBytes - measured.bytes;
    });
    if (due.length === 0) return;
    const sizes = await measure(
      { trees: due.map(({ folders }) => folders), enoughBytes: limitBytes },
      this.#stop.signal,
    );
    this.#restUntil = clock.monotonic() + REST_FACTOR * (clock.monotonic() - now);
    for (const [index, entry] of due.entries()) {
      if (this.#entries.get(entry.sandboxId) !== entry) continue;
      const { bytes } = sizes[index]!;
      if (bytes > limitBytes) {
        this.#entries.delete(entry.sandboxId);
        onExceeded(entry, bytes);
      } else entry.measured = { bytes, used, at: now };
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    while (this.#entries.size > 0 && !this.#stop.signal.aborted) {
      try {
        await this.#options.clock.sleep(CHECK_MS, { signal: this.#stop.signal, unref: true });
        await this.check();
      } catch {
        // A file system that does not answer now is asked again.
      }
    }
  }
}

async function usedOnDisk(folder: string): Promise<number> {
  const { blocks, bfree, bsize } = await statfs(folder);
  return (blocks - bfree) * bsize;
}

const measureInThread: Measure = async (request, signal) => {
  signal.throwIfAborted();
  const entry = threadEntry(import.meta.url, "./disk-usage-thread.ts", "disk-usage");
  const worker = new Worker(entry, { workerData: request, name: "disk-usage", execArgv: [] });
  worker.unref();
  const { promise, resolve, reject } = Promise.withResolvers<readonly DiskUsage[]>();
  const onAbort = (): void => reject(signal.reason);
  signal.addEventListener("abort", onAbort, { once: true });
  worker.on("message", resolve).on("error", reject);
  worker.on("exit", () => reject(new Error("the thread that measures ended early")));
  try {
    return await promise;
  } finally {
    signal.removeEventListener("abort", onAbort);
    await worker.terminate();
  }
};
