import { BoundedQueue } from "@openshell/base/queue.ts";

export interface OutputChunk {
  readonly stream: "stdout" | "stderr";
  readonly data: Uint8Array;
}

interface Reader {
  readonly queue: BoundedQueue<OutputChunk>;
}

export interface OutputLogOptions {
  /** Bytes kept for whoever attaches later. */
  readonly limitBytes: number;
  /** Chunks that an attachment may lag behind before it holds the process back. */
  readonly readerChunks: number;
}

/**
 * What the main process wrote: the newest bytes for those who attach later, and live chunks for those who are attached.
 *
 * While an attachment is awaited nothing is thrown away: `append` waits instead, so the process blocks on its pipe as it
 * would on a terminal that is slow. Otherwise the oldest output makes room. An attached reader that lags slows the
 * process down too: bytes that an attachment saw begin are never missing in the middle.
 */
export class OutputLog {
  readonly #options: OutputLogOptions;
  readonly #chunks: OutputChunk[] = [];
  readonly #readers = new Set<Reader>();
  readonly #room: (() => void)[] = [];
  #bytes = 0;
  #dropped = 0;
  #awaited: boolean;
  #ended = false;

  constructor(options: OutputLogOptions, awaited: boolean) {
    this.#options = options;
    this.#awaited = awaited;
  }

  /** Bytes that a later attachment cannot see any more. */
  get dropped(): number {
    return this.#dropped;
  }

  /** The wait for an attachment is over: the oldest output may be dropped from now on. */
  stopAwaiting(): void {
    this.#awaited = false;
    this.#trim();
    for (const wake of this.#room.splice(0)) wake();
  }

  async append(chunk: OutputChunk): Promise<void> {
    while (this.#awaited && this.#bytes + chunk.data.length > this.#options.limitBytes && this.#bytes > 0) {
      await new Promise<void>((resolve) => this.#room.push(resolve));
    }
    this.#chunks.push(chunk);
    this.#bytes += chunk.data.length;
    if (!this.#awaited) this.#trim();
    for (const reader of [...this.#readers]) await reader.queue.push(chunk);
  }

  /** The process and all its output are done. */
  end(): void {
    this.#ended = true;
    for (const reader of this.#readers) reader.queue.close();
  }

  /** Everything kept, then everything that follows; ends after the last byte or when `signal` aborts. */
  async *read(signal?: AbortSignal): AsyncGenerator<OutputChunk> {
    const replay = [...this.#chunks];
    const reader: Reader = { queue: new BoundedQueue<OutputChunk>(this.#options.readerChunks) };
    const leave = (): void => reader.queue.close();
    signal?.addEventListener("abort", leave, { once: true });
    if (this.#ended) reader.queue.close();
    else this.#readers.add(reader);
    this.stopAwaiting();
    try {
      yield* replay;
      yield* reader.queue;
    } finally {
      signal?.removeEventListener("abort", leave);
      this.#readers.delete(reader);
      reader.queue.close();
    }
  }

  #trim(): void {
    while (this.#bytes > this.#options.limitBytes && this.#chunks.length > 1) {
      const oldest = this.#chunks.shift() as OutputChunk;
      this.#bytes -= oldest.data.length;
      this.#dropped += oldest.data.length;
    }
  }
}
