import type { Http2Stream } from "node:http2";
import { decompress } from "./compression.ts";
import { COMPRESSED, type Frame, FrameReader } from "./frame.ts";
import { WireLimits } from "./limits.ts";
import { StatusCode, StatusError } from "./status.ts";

/** Frames that have been read and are still held, at most. */
const KEPT_FRAMES = 64;

/** How the messages of a stream are read. */
export interface SourceOptions {
  readonly maxBytes: number;
  /** Asked for once the messages have been read: rejects with what the reader is to see in place of a plain end. */
  readonly atEnd?: () => Promise<void>;
}

/**
 * The messages that arrive on an HTTP/2 stream, one at a time. What waits for its reader is bounded: beyond
 * {@link WireLimits.readAheadBytes} the stream is paused, its window fills, and the sender waits.
 *
 * One reader; a second `next` before the first has settled is a mistake.
 */
export class MessageSource implements AsyncIterableIterator<Uint8Array, undefined> {
  readonly #stream: Http2Stream;
  readonly #options: SourceOptions;
  readonly #reader: FrameReader;
  #frames: Frame[] = [];
  /** Index of the next frame. */
  #head = 0;
  #waitingBytes = 0;
  #paused = false;
  #gzipped = false;
  #ended = false;
  /** The stream ended before everything was read that had come. */
  #cut = false;
  #failure: { readonly error: unknown } | undefined;
  #waiter: PromiseWithResolvers<IteratorResult<Uint8Array, undefined>> | undefined;

  constructor(stream: Http2Stream, options: SourceOptions) {
    this.#stream = stream;
    this.#options = options;
    this.#reader = new FrameReader(options.maxBytes);
    stream.on("data", (chunk: Buffer) => this.#onData(chunk));
    stream.on("end", () => this.#onEnd());
  }

  /** Whether messages may be gzipped: known once the other side's headers are. */
  set gzipped(value: boolean) {
    this.#gzipped = value;
  }

  /** True once everything has been read, or reading has failed. */
  get finished(): boolean {
    return this.#failure !== undefined || (this.#ended && this.#head === this.#frames.length);
  }

  /** Ends reading with an error, unless it has ended; messages that wait are dropped. */
  fail(error: unknown): void {
    if (this.finished) return;
    this.#failure = { error };
    this.#drop();
    this.#waiter?.reject(error);
    this.#waiter = undefined;
  }

  /** No more messages will come; those that wait are still read, then `atEnd` tells. */
  finish(): void {
    if (this.#failure !== undefined || this.#ended) return;
    this.#ended = true;
    this.#cut = this.#stream.readableLength > 0 || !this.#reader.idle;
    this.#waiter?.resolve(this.#finished());
    this.#waiter = undefined;
  }

  next(): Promise<IteratorResult<Uint8Array, undefined>> {
    if (this.#failure !== undefined) return Promise.reject(this.#failure.error);
    const frame = this.#take();
    if (frame !== undefined) return this.#deliver(frame);
    if (this.#ended) return this.#finished();
    this.#waiter = Promise.withResolvers();
    return this.#waiter.promise;
  }

  /** No more is wanted: the rest is read and dropped, so that the stream can close. */
  return(): Promise<IteratorResult<Uint8Array, undefined>> {
    this.fail(new StatusError(StatusCode.canceled, "the messages are no longer read"));
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #take(): Frame | undefined {
    if (this.#head === this.#frames.length) return undefined;
    const frame = this.#frames[this.#head++]!;
    // What has been read is let go of also while something always waits.
    if (this.#head === KEPT_FRAMES) {
      this.#frames.splice(0, this.#head);
      this.#head = 0;
    }
    this.#waitingBytes -= frame.data.length + WireLimits.frameBytes;
    if (this.#head === this.#frames.length) {
      this.#frames.length = 0;
      this.#head = 0;
      if (this.#paused) {
        this.#paused = false;
        this.#stream.resume();
      }
    }
    return frame;
  }

  #deliver(frame: Frame): Promise<IteratorResult<Uint8Array, undefined>> {
    if ((frame.flags & COMPRESSED) === 0) return Promise.resolve({ done: false, value: frame.data });
    return this.#inflate(frame);
  }

  async #inflate(frame: Frame): Promise<IteratorResult<Uint8Array, undefined>> {
    return { done: false, value: await decompress(frame, this.#gzipped, this.#options.maxBytes) };
  }

  async #finished(): Promise<IteratorResult<Uint8Array, undefined>> {
    await this.#options.atEnd?.();
    if (this.#cut)
      throw new StatusError(StatusCode.unavailable, "the connection was lost before all messages were read");
    return { done: true, value: undefined };
  }

  #onData(chunk: Buffer): void {
    if (this.#failure !== undefined) return;
    const before = this.#frames.length;
    try {
      this.#reader.push(chunk, this.#frames);
    } catch (error) {
      // Those before it are still good, but a call that broke the protocol has no use for them.
      this.fail(error);
      return;
    }
    for (let index = before; index < this.#frames.length; index++) {
      this.#waitingBytes += this.#frames[index]!.data.length + WireLimits.frameBytes;
    }
    const waiter = this.#waiter;
    if (waiter !== undefined) {
      const frame = this.#take();
      if (frame !== undefined) {
        this.#waiter = undefined;
        // Resolved with a plain object: a promise would cost its reader three more turns of the microtask queue.
        if ((frame.flags & COMPRESSED) === 0) waiter.resolve({ done: false, value: frame.data });
        else waiter.resolve(this.#inflate(frame));
      }
    }
    if (this.#waitingBytes > WireLimits.readAheadBytes && !this.#paused) {
      this.#paused = true;
      this.#stream.pause();
    }
  }

  #onEnd(): void {
    if (this.#failure !== undefined || this.#ended) return;
    // A reset ends the readable side as well: it is no end of messages, and whoever watches the stream calls `fail`.
    if (this.#stream.aborted || this.#stream.rstCode !== 0) return;
    if (!this.#reader.idle) {
      this.fail(new StatusError(StatusCode.internal, "the stream ended within a message"));
      return;
    }
    this.finish();
  }

  #drop(): void {
    this.#frames = [];
    this.#head = 0;
    this.#waitingBytes = 0;
    this.#stream.resume();
  }
}
