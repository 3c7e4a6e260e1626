import { closeSync, constants, fstatSync, openSync, renameSync, writeSync } from "node:fs";

/** Bounds of one log file and its predecessors. */
export interface RotationLimits {
  /** Bytes of one file. */
  readonly fileBytes: number;
  /** Files kept beside the current one: `name.1` is the youngest. */
  readonly oldFiles: number;
}

/** Text that waits for the end of the event-loop turn; beyond it is written at once. Bytes. */
const BUFFER_BYTES = 256 * 1024;

/**
 * A file (0600) that lines are appended to, bounded in size. Lines of one turn of the event loop are written together,
 * synchronously: what was logged before a crash is in the file, and memory stays bounded whatever the disk does. A disk
 * that takes nothing loses lines; how many is written once it takes lines again.
 */
export class RotatingFile implements Disposable {
  readonly #path: string;
  readonly #limits: RotationLimits;
  #fd: number;
  #size: number;
  #buffer: string[] = [];
  #buffered = 0;
  #scheduled = false;
  #lost = 0;
  #closed = false;

  private constructor(path: string, limits: RotationLimits, fd: number) {
    this.#path = path;
    this.#limits = limits;
    this.#fd = fd;
    this.#size = fstatSync(fd).size;
  }

  static open(path: string, limits: RotationLimits): RotatingFile {
    return new RotatingFile(path, limits, openLog(path));
  }

  /** Takes one or more whole lines. The signature is what pino asks of a destination. */
  write(lines: string): void {
    if (this.#closed) return;
    this.#buffer.push(lines);
    this.#buffered += lines.length;
    if (this.#buffered > BUFFER_BYTES) this.flush();
    else if (!this.#scheduled) {
      this.#scheduled = true;
      setImmediate(() => this.flush());
    }
  }

  /** Writes what waits. */
  flush(): void {
    this.#scheduled = false;
    if (this.#buffer.length === 0 || this.#closed) return;
    const text = this.#buffer.join("");
    const lines = this.#buffer.length;
    this.#buffer = [];
    this.#buffered = 0;
    try {
      if (this.#size > this.#limits.fileBytes) this.#rotate();
      const note =
        this.#lost === 0 ? "" : `{"level":"warn","msg":"${this.#lost} log writes were lost to a full disk"}\n`;
      this.#size += writeAll(this.#fd, note + text);
      this.#lost = 0;
    } catch {
      this.#lost += lines;
    }
  }

  [Symbol.dispose](): void {
    if (this.#closed) return;
    this.flush();
    this.#closed = true;
    closeSync(this.#fd);
  }

  /**
   * The new file is opened before anything changes: where that fails nothing was renamed, and the old descriptor, whose
   * number would be another's once it was closed, stays in use.
   */
  #rotate(): void {
    const { oldFiles } = this.#limits;
    const next = `${this.#path}.next`;
    const fresh = openLog(next);
    const move = (from: string, to: string): void => {
      try {
        renameSync(from, to);
      } catch {
        // Not there yet.
      }
    };
    for (let index = oldFiles; index >= 1; index--)
      move(index === 1 ? this.#path : `${this.#path}.${index - 1}`, `${this.#path}.${index}`);
    move(next, this.#path);
    closeSync(this.#fd);
    this.#fd = fresh;
    this.#size = fstatSync(fresh).size;
  }
}

function openLog(path: string): number {
  const { O_WRONLY, O_CREAT, O_APPEND, O_NOFOLLOW, O_NONBLOCK } = constants;
  // A pipe in its place would have it wait for a reader; on a regular file O_NONBLOCK means nothing.
  return openSync(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK, 0o600);
}

function writeAll(fd: number, text: string): number {
  const bytes = Buffer.from(text);
  let written = 0;
  while (written < bytes.length) written += writeSync(fd, bytes, written);
  return written;
}
