import { once } from "node:events";
import { basename, dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { Worker } from "node:worker_threads";
import { systemClock } from "@openshell/base";
import type { Command, CommandResults, Row } from "./command.ts";
import { Commits } from "./commits.ts";
import { StoreError } from "./errors.ts";
import type { Batch, BatchOutcome } from "./writer-core.ts";
import type { ReserveState, WriterData, WriterReply, WriterRequest } from "./writer-thread.ts";

/** Writes that may wait. At some 100,000 a second of group commit this is a tenth of a second of work. */
export const MAX_WAITING_WRITES = 10_000;
/** Writes of one group: bounds how long the first of them waits for the last, and what one message copies. */
export const MAX_GROUP = 512;
/** Parameter bytes of one group (one write may be larger), and of all that waits: bounds memory, as the counts bound time. */
export const MAX_GROUP_BYTES = 8 * 1024 * 1024;
export const MAX_WAITING_BYTES = 64 * 1024 * 1024;
/** The writer has this long to open the file. Milliseconds. */
const OPEN_LIMIT_MS = 10_000;

/** Space that is kept on the disk of the database for ending sandboxes when it is full. */
export interface ReserveUse {
  /** The file that holds it. */
  readonly path: string;
  readonly onChange: (state: ReserveState) => void;
}

interface Waiting {
  readonly batch: Batch;
  readonly bytes: number;
  readonly done: (outcome: BatchOutcome) => void;
  readonly failed: (error: unknown) => void;
}

/**
 * The main thread's end of the writer. One group is under way at a time; what arrives meanwhile forms the next one, so
 * the size of groups follows the load: a lone write pays one fsync, a thousand at once share a few.
 */
export class Writer implements AsyncDisposable {
  /** Commits of the thread; a write that was acknowledged is counted. */
  readonly commits: Commits;
  readonly #worker: Worker;
  readonly #failure = Promise.withResolvers<never>();
  #waiting: Waiting[] = [];
  #waitingBytes = 0;
  #group: readonly Waiting[] = [];
  #lost: StoreError | undefined;
  #closed: Promise<void> | undefined;
  #drained: (() => void) | undefined;

  private constructor(worker: Worker, commits: Commits) {
    this.#worker = worker;
    this.commits = commits;
    // Whoever cares waits on `failed`; an unobserved failure still reaches every write as a rejection.
    this.#failure.promise.catch(() => {});
    worker.on("error", (error) => this.#lose(error));
    worker.on("exit", () => this.#lose(new Error("the writer thread has ended")));
    // A thread that idles must not keep a process alive that has nothing else to do.
    worker.unref();
  }

  /** Starts the thread and waits until it has the file open. */
  static async open(path: string, reserve?: ReserveUse): Promise<Writer> {
    const commits = new Commits();
    const worker = new Worker(writerEntry(), {
      workerData: { path, commits: commits.shared, reserve: reserve?.path } satisfies WriterData,
      name: "store-writer",
      // Options that were meant for this process's own main file (--eval, --cpu-prof) are none of the thread's.
      execArgv: [],
      // Rows live outside the heap or shortly: a small young generation saves megabytes.
      resourceLimits: { maxYoungGenerationSizeMb: 4 },
    });
    await started(worker);
    const writer = new Writer(worker, commits);
    worker.on("message", (reply: WriterReply) => {
      if ("reserve" in reply) reserve?.onChange(reply.reserve);
      else writer.#receive(reply);
    });
    return writer;
  }

  /** Rejects once when the thread is lost. */
  get failed(): Promise<never> {
    return this.#failure.promise;
  }

  /** What prevents further writes, if anything. */
  get lost(): StoreError | undefined {
    return this.#lost;
  }

  async write<const Commands extends readonly Command<unknown>[]>(
    ...commands: Commands
  ): Promise<CommandResults<Commands>> {
    const batch = commands.flatMap((command) => command.statements);
    const outcome = await this.#submit(batch);
    if (!outcome.ok) throw refused(outcome);
    let offset = 0;
    return commands.map((command) => {
      const rows: readonly (readonly Row[])[] = outcome.rows.slice(offset, offset + command.statements.length);
      offset += command.statements.length;
      return command.result(rows);
    }) as CommandResults<Commands>;
  }

  /** Lets the thread look whether other processes have committed; {@link commits} counts it. */
  look(): void {
    if (this.#lost === undefined && this.#closed === undefined) this.#post({ look: true });
  }

  /** Waits for what was submitted, closes the file, ends the thread. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed ??= this.#close();
    await this.#closed;
  }

  #submit(batch: Batch): Promise<BatchOutcome> {
    if (this.#lost !== undefined) return Promise.reject(this.#lost);
    if (this.#closed !== undefined) return Promise.reject(new StoreError("store_closed", "the store is closed"));
    if (batch.length === 0) return Promise.resolve({ ok: true, rows: [] });
    const bytes = sizeOf(batch);
    if (this.#waiting.length >= MAX_WAITING_WRITES || this.#waitingBytes + bytes > MAX_WAITING_BYTES) {
      const error = new StoreError("store_overloaded", `${this.#waiting.length} writes wait for the disk`, {
        next: "Try again later",
      });
      return Promise.reject(error);
    }
    return new Promise((done, failed) => {
      this.#waiting.push({ batch, bytes, done, failed });
      this.#waitingBytes += bytes;
      // Everything that the current turn of the event loop submits goes into one group.
      if (this.#waiting.length === 1 && this.#group.length === 0) queueMicrotask(() => this.#send());
    });
  }

  #send(): void {
    if (this.#group.length > 0 || this.#waiting.length === 0 || this.#lost !== undefined) return;
    let count = 0;
    let bytes = 0;
    do bytes += this.#waiting[count++]!.bytes;
    while (count < Math.min(MAX_GROUP, this.#waiting.length) && bytes + this.#waiting[count]!.bytes <= MAX_GROUP_BYTES);
    this.#group = this.#waiting.slice(0, count);
    this.#waiting = this.#waiting.slice(count);
    this.#waitingBytes -= bytes;
    this.#worker.ref();
    this.#post({ batches: this.#group.map((waiting) => waiting.batch) });
  }

  #receive(reply: WriterReply): void {
    if (!("outcomes" in reply)) return;
    const group = this.#group;
    this.#group = [];
    this.#worker.unref();
    for (const [index, waiting] of group.entries()) waiting.done(reply.outcomes[index]!);
    this.#send();
    if (this.#group.length === 0) this.#drained?.();
  }

  #post(request: WriterRequest): void {
    this.#worker.postMessage(request);
  }

  #lose(cause: unknown): void {
    if (this.#lost !== undefined) return;
    const wanted = this.#closed !== undefined;
    this.#lost = new StoreError("store_closed", wanted ? "the store is closed" : "the store's writer was lost", {
      next: wanted ? "" : "Restart the gateway",
      cause,
    });
    for (const waiting of [...this.#group, ...this.#waiting]) waiting.failed(this.#lost);
    this.#group = [];
    this.#waiting = [];
    this.#waitingBytes = 0;
    this.#drained?.();
    if (!wanted) this.#failure.reject(this.#lost);
  }

  async #close(): Promise<void> {
    if (this.#group.length > 0 || this.#waiting.length > 0) {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#drained = resolve;
      await promise;
    }
    if (this.#lost !== undefined) return;
    const ended = new Promise((resolve) => this.#worker.once("exit", resolve));
    this.#worker.ref();
    this.#post({ close: true });
    await ended;
  }
}

/** Resolves when the thread says that the file is open; leaves no listener behind. */
async function started(worker: Worker): Promise<void> {
  const stop = new AbortController();
  const { signal } = stop;
  try {
    await Promise.race([
      once(worker, "message", { signal }),
      once(worker, "exit", { signal }).then(() =>
        Promise.reject(new Error("the writer thread ended while it started")),
      ),
      systemClock
        .sleep(OPEN_LIMIT_MS, { signal })
        .then(() => Promise.reject(new Error("the writer thread did not start"))),
    ]);
  } finally {
    stop.abort();
  }
}

/** Bytes of a batch's parameters, roughly: what crosses to the thread. */
function sizeOf(batch: Batch): number {
  let bytes = 0;
  for (const { parameters } of batch) {
    for (const value of parameters)
      bytes += typeof value === "string" || value instanceof Uint8Array ? value.length : 8;
  }
  return bytes;
}

function refused(outcome: BatchOutcome & { readonly ok: false }): StoreError {
  const { code, subject, detail } = outcome;
  const cause = new Error(detail);
  switch (code) {
    case "store_conflict":
      return new StoreError(code, `the ${subject} was changed by somebody else`, {
        next: "Read it again",
        subject,
        cause,
      });
    case "store_already_exists":
      return new StoreError(code, `the ${subject} already exists`, { subject, cause });
    case "store_not_found":
      return new StoreError(code, `the ${subject} does not exist`, { subject, cause });
    case "store_limit_reached":
      return new StoreError(code, `the limit for ${subject} is reached`, { subject, cause });
    case "store_full":
      return new StoreError(code, "the disk of the gateway's state folder is full; nothing was stored", {
        next: "Free some space there, or stop or delete the sandbox that fills it, then try again",
        subject,
        cause,
      });
    case "store_busy":
      return new StoreError(code, "another program keeps the gateway's database to itself; nothing was stored", {
        next: "End that program (a backup, say), then try again",
        subject,
        cause,
      });
    default:
      return new StoreError(code, "the database refused the write", {
        next: "Check the free space of the disk and the gateway log",
        subject,
        cause,
      });
  }
}

/** The thread's program: this folder's source in development, a bundle of its own beside the gateway's otherwise. */
function writerEntry(): URL {
  if (import.meta.url.endsWith(".ts")) return new URL("./writer-thread.ts", import.meta.url);
  const folder = dirname(fileURLToPath(import.meta.url));
  // Code that is loaded on demand sits one folder below the programs.
  const programs = basename(folder) === "chunks" ? dirname(folder) : folder;
  return pathToFileURL(join(programs, "store-writer.mjs"));
}
