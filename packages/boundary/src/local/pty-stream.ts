import { Duplex } from "node:stream";
import { ReadStream } from "node:tty";

/**
 * The master end of a pseudo-terminal as an ordinary duplex stream.
 *
 * The kernel reports the end of a terminal as EIO, and only after everything written was read; here that is a normal
 * end. Takes the descriptor over.
 */
export class PtyStream extends Duplex {
  readonly #tty: ReadStream;

  constructor(fd: number) {
    super({ allowHalfOpen: true });
    this.#tty = new ReadStream(fd);
    this.#tty.on("data", (data) => {
      if (!this.push(data)) this.#tty.pause();
    });
    this.#tty.on("end", () => this.push(null));
    this.#tty.on("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "EIO") this.push(null);
      else this.destroy(error);
    });
    this.#tty.on("drain", () => this.#resumeWriting());
    this.#tty.pause();
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
    this.#resumeWriting();
    callback(error);
  }
}
