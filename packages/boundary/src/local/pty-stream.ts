import { closeSync } from "node:fs";
import { Duplex } from "node:stream";
import { ReadStream } from "node:tty";

/**
 * The master end of a pseudo-terminal as an ordinary duplex stream.
 *
 * The kernel reports the end of a terminal as EIO, and only after everything written was read; here that is a normal
 * end. A program may close its streams before it exits (cat does): closing the master then would send it SIGHUP and
 * change its exit status, so a second descriptor stays open until `release`, or until the stream is destroyed early,
 * where the hang-up is meant. Takes both descriptors over.
 */
export class PtyStream extends Duplex {
  readonly #tty: ReadStream;
  #kept: number | undefined;
  #ended = false;

  constructor(fd: number, kept: number) {
    super({ allowHalfOpen: true });
    this.#tty = new ReadStream(fd);
    this.#kept = kept;
    this.#tty.on("data", (data) => {
      if (!this.push(data)) this.#tty.pause();
    });
    const end = (): void => {
      this.#ended = true;
      this.push(null);
    };
    this.#tty.on("end", end);
    this.#tty.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "EIO") end();
      else this.destroy(error);
    });
    this.#tty.on("drain", () => this.#resumeWriting());
    this.#tty.pause();
  }

  /** The master end while it is open, for its window size. */
  get terminalFd(): number | undefined {
    return this.#kept;
  }

  /** The process has ended: nobody is left to hang up on. */
  release(): void {
    if (this.#kept !== undefined) closeSync(this.#kept);
    this.#kept = undefined;
  }

  #writeDone: (() => void) | undefined;

  #resumeWriting(): void {
    const done = this.#writeDone;
    this.#writeDone = undefined;
    done?.();
  }

  override _read(): void {
    this.#tty.resume();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, callback: (error?: Error | null) => void): void {
    if (this.#tty.destroyed) {
      callback();
      return;
    }
    // A terminal whose program ended takes no more; that is not the writer's error.
    if (this.#tty.write(chunk)) callback();
    else this.#writeDone = callback;
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#tty.destroy();
    if (!this.#ended) this.release();
    this.#resumeWriting();
    callback(error);
  }
}
