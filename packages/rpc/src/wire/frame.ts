import { WireLimits } from "./limits.ts";
import { StatusCode, StatusError } from "./status.ts";

/** Bytes before a message: a flags byte and its length (PROTOCOL-HTTP2.md, Length-Prefixed-Message). */
export const PREFIX_BYTES = 5;
/** The flag of a message that is compressed as `grpc-encoding` says. */
export const COMPRESSED = 1;

/** Parts of a message, as they came, that are joined into one: each has an object that may be larger than its bytes. */
const JOINED_PARTS = 256;

/** One message as it travelled. */
export interface Frame {
  readonly flags: number;
  /** May be a view into a larger buffer. */
  readonly data: Uint8Array;
}

/** Writes the prefix of a message into `target`. */
export function writePrefix(target: Uint8Array, length: number, flags: number): void {
  target[0] = flags;
  target[1] = length >>> 24;
  target[2] = length >>> 16;
  target[3] = length >>> 8;
  target[4] = length;
}

/** A message behind its prefix, in one buffer. */
export function encodeFrame(message: Uint8Array, flags = 0): Buffer {
  const frame = Buffer.allocUnsafe(PREFIX_BYTES + message.length);
  writePrefix(frame, message.length, flags);
  frame.set(message, PREFIX_BYTES);
  return frame;
}

/**
 * Cuts a byte stream into messages: linear in the bytes whatever the chunks, and without a copy for messages that lie
 * within one chunk. Memory is taken as bytes arrive, not as a prefix announces them.
 */
export class FrameReader {
  readonly #maxBytes: number;
  readonly #known: number;
  readonly #prefix = new Uint8Array(PREFIX_BYTES);
  #prefixed = 0;
  /** Of the message that is being read. */
  #length = 0;
  #flags = 0;
  #parts: Uint8Array[] = [];
  /** How many of the parts were joined already: every byte is copied once for it, at most. */
  #joined = 0;
  #received = 0;

  /** @param known flags that may be set; Connect's protocol has others than gRPC */
  constructor(maxBytes: number = WireLimits.messageBytes, known: number = COMPRESSED) {
    this.#maxBytes = maxBytes;
    this.#known = known;
  }

  /** True between two messages: the stream may end here. */
  get idle(): boolean {
    return this.#prefixed === 0;
  }

  /** Appends the messages that are complete with this chunk to `frames`. @throws StatusError RESOURCE_EXHAUSTED, INTERNAL */
  push(chunk: Uint8Array, frames: Frame[]): void {
    let offset = 0;
    while (offset < chunk.length || (this.#prefixed === PREFIX_BYTES && this.#length === 0)) {
      if (this.#prefixed < PREFIX_BYTES) {
        this.#prefix[this.#prefixed++] = chunk[offset++]!;
        if (this.#prefixed === PREFIX_BYTES) this.#begin();
        continue;
      }
      const taken = Math.min(this.#length - this.#received, chunk.length - offset);
      const part = chunk.subarray(offset, offset + taken);
      offset += taken;
      this.#received += taken;
      if (this.#received < this.#length) {
        this.#parts.push(part);
        if (this.#parts.length - this.#joined === JOINED_PARTS) {
          this.#parts.push(Buffer.concat(this.#parts.splice(this.#joined++)));
        }
        return;
      }
      frames.push({ flags: this.#flags, data: this.#parts.length === 0 ? part : this.#join(part) });
      this.#parts = [];
      this.#joined = 0;
      this.#received = 0;
      this.#prefixed = 0;
    }
  }

  #begin(): void {
    const [flags, a, b, c, d] = this.#prefix as unknown as readonly [number, number, number, number, number];
    if ((flags & ~this.#known) !== 0)
      throw new StatusError(StatusCode.internal, `a message has the unknown flags ${flags}`);
    this.#length = ((a << 24) | (b << 16) | (c << 8) | d) >>> 0;
    this.#flags = flags;
    if (this.#length > this.#maxBytes) throw tooLarge(this.#length, this.#maxBytes);
  }

  #join(last: Uint8Array): Uint8Array {
    this.#parts.push(last);
    return Buffer.concat(this.#parts, this.#length);
  }
}

/** The error for a message beyond the limit. `bytes` undefined: more than could be read. */
export function tooLarge(bytes: number | undefined, limit: number): StatusError {
  const size = bytes === undefined ? "a message" : `a message of ${bytes} bytes`;
  return new StatusError(
    StatusCode.resourceExhausted,
    `${size} exceeds the limit of ${limit} bytes: send less at once`,
  );
}
