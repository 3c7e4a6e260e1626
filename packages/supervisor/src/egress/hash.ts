import { Worker } from "node:worker_threads";

/** Digests an open executable away from the event loop. Never closes the descriptor. */
export interface ExecutableHasher extends AsyncDisposable {
  /** SHA-256 in hex. Rejects when the file cannot be read or is longer than `size` bytes. */
  hash(fd: number, size: number): Promise<string>;
}

// Runs inside the worker. Text, so that a bundle needs no second entry file.
const WORKER = `
const { parentPort } = require("node:worker_threads");
const { createHash } = require("node:crypto");
const { readSync } = require("node:fs");
const buffer = Buffer.allocUnsafe(1 << 20);
parentPort.on("message", ({ id, fd, size }) => {
  try {
    const hash = createHash("sha256");
    let position = 0;
    for (;;) {
      const count = readSync(fd, buffer, 0, buffer.length, position);
      if (count === 0) break;
      position += count;
      if (position > size) throw new Error("the file grew");
      hash.update(count === buffer.length ? buffer : buffer.subarray(0, count));
    }
    parentPort.postMessage({ id, digest: hash.digest("hex") });
  } catch (error) {
    parentPort.postMessage({ id, failure: String(error.code || error.message) });
  }
});
`;

interface Answer {
  readonly id: number;
  readonly digest?: string;
  readonly failure?: string;
}

interface Job {
  readonly resolve: (digest: string) => void;
  readonly reject: (error: Error) => void;
}

/** One thread a host, started with the first executable; it does not keep the process alive. */
export class WorkerHasher implements ExecutableHasher {
  #worker: Worker | undefined;
  #next = 0;
  readonly #jobs = new Map<number, Job>();

  hash(fd: number, size: number): Promise<string> {
    this.#worker ??= this.#start();
    const worker = this.#worker;
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      this.#jobs.set(id, { resolve, reject });
      worker.postMessage({ id, fd, size });
    });
  }

  #start(): Worker {
    const worker = new Worker(WORKER, { eval: true });
    worker.unref();
    worker.on("message", (answer: Answer) => {
      const job = this.#jobs.get(answer.id);
      this.#jobs.delete(answer.id);
      if (answer.digest !== undefined) job?.resolve(answer.digest);
      else job?.reject(new Error(`The executable could not be read: ${answer.failure}`));
    });
    worker.on("error", (error) => this.#failAll(error instanceof Error ? error : new Error(String(error))));
    worker.on("exit", () => {
      this.#worker = undefined;
      this.#failAll(new Error("The hashing thread ended"));
    });
    return worker;
  }

  #failAll(error: Error): void {
    const jobs = [...this.#jobs.values()];
    this.#jobs.clear();
    for (const job of jobs) job.reject(error);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#worker?.terminate();
  }
}
