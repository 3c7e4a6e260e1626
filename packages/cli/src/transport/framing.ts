import { MAX_FRAME_BYTES } from "./limits.ts";

/** One message of a stream: a flags byte, a length of 4 bytes, the message (gRPC and the Connect protocol alike). */
export interface Frame {
  readonly flags: number;
  readonly data: Uint8Array;
}

export function encodeFrame(message: Uint8Array, flags = 0): Uint8Array {
  const frame = Buffer.allocUnsafe(5 + message.length);
  frame[0] = flags;
  frame.writeUInt32BE(message.length, 1);
  frame.set(message, 5);
  return frame;
}

/** Cuts a byte stream into messages; linear in the bytes, whatever the chunks. */
export class FrameSplitter {
  #chunks: Buffer[] = [];
  #buffered = 0;

  /** Messages that are complete now. Throws RangeError for one larger than {@link MAX_FRAME_BYTES}. */
  *push(chunk: Uint8Array): Generator<Frame, void, void> {
    this.#chunks.push(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length));
    this.#buffered += chunk.length;
    for (;;) {
      if (this.#buffered < 5) return;
      const head = this.#peek(5);
      const length = head.readUInt32BE(1);
      if (length > MAX_FRAME_BYTES) throw new RangeError(`message of ${length} bytes exceeds ${MAX_FRAME_BYTES}`);
      if (this.#buffered < 5 + length) return;
      const frame = this.#take(5 + length);
      yield { flags: frame[0]!, data: frame.subarray(5) };
    }
  }

  /** True when the stream may end here. */
  get empty(): boolean {
    return this.#buffered === 0;
  }

  #peek(length: number): Buffer {
    const first = this.#chunks[0]!;
    if (first.length < length) this.#chunks = [Buffer.concat(this.#chunks)];
    return this.#chunks[0]!;
  }

  #take(length: number): Buffer {
    let first = this.#chunks[0]!;
    if (first.length < length) {
      first = Buffer.concat(this.#chunks);
      this.#chunks = [first];
    }
    this.#buffered -= length;
    if (first.length === length) this.#chunks.shift();
    else this.#chunks[0] = first.subarray(length);
    return first.subarray(0, length);
  }
}
