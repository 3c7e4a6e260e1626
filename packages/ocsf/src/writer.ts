/**
 * Append-only log files of one kind in one folder: `<prefix>.<YYYY-MM-DD>[.<n>]<suffix>`. Writers never wait: lines go
 * to a bounded queue that one writer empties; what does not fit is counted and dropped.
 */
import { constants } from "node:fs";
import { type FileHandle, mkdir, open, readdir, stat, unlink } from "node:fs/promises";
import { join } from "node:path";
import type { Clock } from "@openshell/base/clock.ts";

export interface RotatingFileOptions {
  /** Made, 0700, when it is missing and its parent exists. */
  readonly directory: string;
  readonly prefix: string;
  /** With its dot: `.jsonl`, `.log`. */
  readonly suffix: string;
  readonly maxFileBytes: number;
  /** All files of this kind together; the oldest go first. */
  readonly maxTotalBytes: number;
  readonly maxQueueBytes: number;
  readonly clock: Clock;
  /** Told once for each failure of the file system; the lines concerned are lost and counted. */
  readonly onError: (error: unknown) => void;
}

/** Bytes of one write call. */
const BATCH_BYTES = 256 * 1024;

export class RotatingFile implements AsyncDisposable {
  readonly #options: RotatingFileOptions;
  readonly #pattern: RegExp;
  #queue: string[] = [];
  #queuedBytes = 0;
  #dropped = 0;
  #writing: Promise<void> | undefined;
  #file: { handle: FileHandle; name: string; day: string; size: number } | undefined;
  #closed = false;

  constructor(options: RotatingFileOptions) {
    this.#options = options;
    this.#pattern = new RegExp(
      `^${escapeRegExp(options.prefix)}\\.(\\d{4}-\\d{2}-\\d{2})(?:\\.(\\d+))?${escapeRegExp(options.suffix)}$`,
    );
  }

  /** Lines lost since the last call, to full queues and failed writes. */
  takeDropped(): number {
    const dropped = this.#dropped;
    this.#dropped = 0;
    return dropped;
  }

  /** Queues a line (without its line end); false when it was dropped. */
  append(line: string): boolean {
    // UTF-8 takes at most three bytes a UTF-16 unit; the bound need not be exact.
    const bytes = line.length + 1;
    if (this.#closed || this.#queuedBytes + bytes > this.#options.maxQueueBytes) {
      this.#dropped += 1;
      return false;
    }
    this.#queue.push(line);
    this.#queuedBytes += bytes;
    this.#writing ??= this.#drain();
    return true;
  }

  /** Resolves when everything queued so far is in the file. */
  async flush(): Promise<void> {
    while (this.#writing !== undefined) await this.#writing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    await this.flush();
    await this.#file?.handle.close();
    this.#file = undefined;
  }

  async #drain(): Promise<void> {
    // Lines of one turn of the event loop go out together.
    await new Promise(setImmediate);
    while (this.#queue.length > 0) {
      const batch: string[] = [];
      let characters = 0;
      while (this.#queue.length > batch.length && characters < BATCH_BYTES) {
        const line = this.#queue[batch.length] as string;
        batch.push(line);
        characters += line.length + 1;
      }
      this.#queue = this.#queue.slice(batch.length);
      this.#queuedBytes -= characters;
      try {
        await this.#write(Buffer.from(`${batch.join("\n")}\n`, "utf8"));
      } catch (error) {
        this.#dropped += batch.length;
        await this.#file?.handle.close().catch(() => {});
        this.#file = undefined;
        this.#options.onError(error);
      }
    }
    this.#writing = undefined;
  }

  async #write(data: Buffer): Promise<void> {
    const day = new Date(this.#options.clock.now()).toISOString().slice(0, 10);
    const current = this.#file;
    if (current === undefined || current.day !== day || current.size + data.length > this.#options.maxFileBytes) {
      await this.#rotate(day, data.length);
    }
    const file = this.#file;
    if (file === undefined) throw new Error("no log file is open");
    let written = 0;
    while (written < data.length) {
      const { bytesWritten } = await file.handle.write(data, written);
      written += bytesWritten;
    }
    file.size += data.length;
  }

  /** Opens the day's newest file that has room, or the next one, after making room in the folder. */
  async #rotate(day: string, needed: number): Promise<void> {
    await this.#file?.handle.close();
    this.#file = undefined;
    await this.#makeFolder();
    const existing = await this.#list();
    const today = existing.filter((entry) => entry.day === day);
    let number = today.reduce((highest, entry) => Math.max(highest, entry.number), -1);
    const newest = today.find((entry) => entry.number === number);
    if (newest === undefined || newest.size + needed > this.#options.maxFileBytes) number += 1;
    const { prefix, suffix, directory } = this.#options;
    const name = `${prefix}.${day}${number === 0 ? "" : `.${number}`}${suffix}`;
    await this.#makeRoom(existing.filter((entry) => entry.name !== name));
    // No link is followed: the folder is ours, but a mistake in its rights must not become a write elsewhere.
    const flags = constants.O_APPEND | constants.O_CREAT | constants.O_WRONLY | constants.O_NOFOLLOW;
    const handle = await open(join(directory, name), flags, 0o600);
    this.#file = { handle, name, day, size: (await handle.stat()).size };
  }

  /** Made by the first line. Its parent is not: once that is removed, the sandbox is gone and must not come back as a folder. */
  async #makeFolder(): Promise<void> {
    try {
      await mkdir(this.#options.directory, { mode: 0o700 });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    }
  }

  async #makeRoom(others: readonly { name: string; size: number }[]): Promise<void> {
    let total = others.reduce((sum, entry) => sum + entry.size, 0);
    for (const entry of others) {
      if (total + this.#options.maxFileBytes <= this.#options.maxTotalBytes) return;
      await unlink(join(this.#options.directory, entry.name));
      total -= entry.size;
    }
  }

  /** Our files, oldest first. */
  async #list(): Promise<{ name: string; day: string; number: number; size: number }[]> {
    const entries: { name: string; day: string; number: number; size: number }[] = [];
    for (const name of await readdir(this.#options.directory)) {
      const match = this.#pattern.exec(name);
      if (match === null) continue;
      const { size } = await stat(join(this.#options.directory, name));
      entries.push({ name, day: match[1] as string, number: Number(match[2] ?? 0), size });
    }
    return entries.sort((a, b) => (a.day < b.day ? -1 : a.day > b.day ? 1 : a.number - b.number));
  }
}

function escapeRegExp(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
