/**
 * Writer for the little-endian structures that the kernel takes (netlink, BPF). Grows as needed, up to a limit that no
 * program or batch of ours comes near: a larger one is a mistake of the caller.
 */
export const MAX_COMPILED_BYTES = 64 * 1024;

/** Appends integers and bytes; `finish()` returns exactly what was written. */
export class ByteWriter {
  #buffer = new Uint8Array(256);
  #view = new DataView(this.#buffer.buffer);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  u8(value: number): this {
    const at = this.#reserve(1);
    this.#view.setUint8(at, value);
    return this;
  }

  u16(value: number): this {
    const at = this.#reserve(2);
    this.#view.setUint16(at, value, true);
    return this;
  }

  u32(value: number): this {
    const at = this.#reserve(4);
    this.#view.setUint32(at, value, true);
    return this;
  }

  i32(value: number): this {
    const at = this.#reserve(4);
    this.#view.setInt32(at, value, true);
    return this;
  }

  i16(value: number): this {
    const at = this.#reserve(2);
    this.#view.setInt16(at, value, true);
    return this;
  }

  /** Network byte order. */
  u16be(value: number): this {
    const at = this.#reserve(2);
    this.#view.setUint16(at, value, false);
    return this;
  }

  /** Network byte order. */
  u32be(value: number): this {
    const at = this.#reserve(4);
    this.#view.setUint32(at, value, false);
    return this;
  }

  bytes(value: Uint8Array): this {
    const at = this.#reserve(value.length);
    this.#buffer.set(value, at);
    return this;
  }

  /** Zero bytes up to the next multiple of `alignment`. */
  align(alignment: number): this {
    while (this.#length % alignment !== 0) this.u8(0);
    return this;
  }

  /** Overwrites two bytes written before, for lengths known only afterwards. */
  patchU16(at: number, value: number): void {
    this.#view.setUint16(at, value, true);
  }

  /** Overwrites four bytes written before. */
  patchU32(at: number, value: number): void {
    this.#view.setUint32(at, value, true);
  }

  finish(): Uint8Array {
    return this.#buffer.slice(0, this.#length);
  }

  #reserve(count: number): number {
    const at = this.#length;
    const wanted = at + count;
    if (wanted > MAX_COMPILED_BYTES) throw new RangeError(`compiled structure exceeds ${MAX_COMPILED_BYTES} bytes`);
    if (wanted > this.#buffer.length) {
      const larger = new Uint8Array(Math.max(wanted, this.#buffer.length * 2));
      larger.set(this.#buffer);
      this.#buffer = larger;
      this.#view = new DataView(larger.buffer);
    }
    this.#length = wanted;
    return at;
  }
}
