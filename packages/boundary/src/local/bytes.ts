/** Little-endian writer and bounds-checked reader, the counterparts of native/init/bytes.c. */
export class ByteWriter {
  #buffer = Buffer.alloc(1024);
  #size = 0;

  #room(size: number): number {
    const at = this.#size;
    this.#size += size;
    if (this.#size > this.#buffer.length) {
      const grown = Buffer.alloc(Math.max(this.#size, 2 * this.#buffer.length));
      this.#buffer.copy(grown, 0, 0, at);
      this.#buffer = grown;
    }
    return at;
  }

  u8(value: number): this {
    const at = this.#room(1);
    this.#buffer.writeUInt8(value, at);
    return this;
  }

  u16(value: number): this {
    const at = this.#room(2);
    this.#buffer.writeUInt16LE(value, at);
    return this;
  }

  u32(value: number): this {
    const at = this.#room(4);
    this.#buffer.writeUInt32LE(value, at);
    return this;
  }

  u64(value: bigint): this {
    const at = this.#room(8);
    this.#buffer.writeBigUInt64LE(value, at);
    return this;
  }

  flag(value: boolean): this {
    return this.u8(value ? 1 : 0);
  }

  /** Length and raw bytes. */
  bytes(value: Uint8Array): this {
    this.u32(value.length);
    const at = this.#room(value.length);
    this.#buffer.set(value, at);
    return this;
  }

  /** Length, UTF-8 bytes and a zero, so that C uses it in place. Throws on an embedded zero: C would see another string. */
  string(value: string): this {
    if (value.includes("\0")) throw new RangeError("a string for init must not contain a zero byte");
    return this.bytes(Buffer.from(value)).u8(0);
  }

  /** A copy of what was written. */
  finish(): Buffer {
    return Buffer.from(this.#buffer.subarray(0, this.#size));
  }
}

/** Throws RangeError beyond the end; the caller turns that into a protocol error. */
export class ByteReader {
  readonly #buffer: Buffer;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get rest(): number {
    return this.#buffer.length - this.#at;
  }

  u8(): number {
    return this.#buffer.readUInt8(this.#step(1));
  }

  u16(): number {
    return this.#buffer.readUInt16LE(this.#step(2));
  }

  u32(): number {
    return this.#buffer.readUInt32LE(this.#step(4));
  }

  i32(): number {
    return this.#buffer.readInt32LE(this.#step(4));
  }

  u64(): bigint {
    return this.#buffer.readBigUInt64LE(this.#step(8));
  }

  flag(): boolean {
    return this.u8() !== 0;
  }

  bytes(): Buffer {
    const size = this.u32();
    const at = this.#step(size);
    return Buffer.from(this.#buffer.subarray(at, at + size));
  }

  /** A copy of everything not read yet. */
  remaining(): Buffer {
    return Buffer.from(this.#buffer.subarray(this.#step(this.rest)));
  }

  string(): string {
    const text = this.bytes().toString("utf8");
    if (this.u8() !== 0) throw new RangeError("string without its terminating zero");
    return text;
  }

  #step(size: number): number {
    const at = this.#at;
    if (size > this.#buffer.length - at) throw new RangeError("message ends too early");
    this.#at += size;
    return at;
  }
}
