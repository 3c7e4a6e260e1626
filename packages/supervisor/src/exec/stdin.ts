import { RuntimeError } from "@openshell/base";
import type { SandboxProcess } from "@openshell/boundary";

/**
 * Writes to a process's stdin. `write` resolves when the kernel took enough that the writer may go on, so the caller's
 * stream is held back; a process that closed its stdin swallows the rest silently, as a pipe does for `yes | head`.
 */
export class StdinWriter {
  readonly #process: SandboxProcess;
  readonly #limit: number;
  #closed = false;

  constructor(process: SandboxProcess, limit: number) {
    this.#process = process;
    this.#limit = limit;
    this.#process.stdin.on("error", () => {
      this.#closed = true;
    });
  }

  async write(data: Uint8Array): Promise<void> {
    const { stdin } = this.#process;
    if (this.#closed || data.length === 0 || !stdin.writable) return;
    if (stdin.writableLength + data.length > this.#limit) {
      throw new RuntimeError(
        "stdin_overflow",
        `more than ${this.#limit / 1024 / 1024} MiB of input wait for a process that does not read`,
        {
          next: "Part of the input was consumed; send it in a file instead",
        },
      );
    }
    if (stdin.write(data)) return;
    await new Promise<void>((resolve) => {
      const done = (): void => {
        stdin.removeListener("drain", done);
        stdin.removeListener("close", done);
        stdin.removeListener("error", done);
        resolve();
      };
      stdin.once("drain", done);
      stdin.once("close", done);
      stdin.once("error", done);
    });
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#process.closeStdin().catch(() => {});
  }
}
