/**
 * The protobuf wire format as far as the command line needs it on its fast paths: varints, length-delimited fields, and
 * skipping of the rest. https://protobuf.dev/programming-guides/encoding/
 */

/** Builds one message; fields go out in the order of the calls. Default values are left out, as proto3 does. */
export class ProtoWriter {
  readonly #parts: Uint8Array[] = [];
  #length = 0;

  uint(field: number, value: number): this {
    if (value === 0) return this;
    this.#push(varint(field * 8));
    this.#push(varint(value));
    return this;
  }

  bool(field: number, value: boolean): this {
    return this.uint(field, value ? 1 : 0);
  }

  string(field: number, value: string): this {
    return value === "" ? this : this.bytes(field, Buffer.from(value, "utf8"));
  }

  /** Also when empty: an element of a list, a message, a member of a oneof. */
  bytes(field: number, value: Uint8Array): this {
    this.#push(varint(field * 8 + 2));
    this.#push(varint(value.length));
    this.#push(value);
    return this;
  }

  message(field: number, value: ProtoWriter): this {
    return this.bytes(field, value.finish());
  }

  finish(): Uint8Array {
    const result = new Uint8Array(this.#length);
    let offset = 0;
    for (const part of this.#parts) {
      result.set(part, offset);
      offset += part.length;
    }
    return result;
  }

  #push(bytes: Uint8Array): void {
    this.#parts.push(bytes);
    this.#length += bytes.length;
  }
}

/** Non-negative whole numbers up to 2^53. */
function varint(value: number): Uint8Array {
  const bytes: number[] = [];
  let rest = value;
  while (rest >= 128) {
    bytes.push((rest % 128) + 128);
    rest = Math.floor(rest / 128);
  }
  bytes.push(rest);
  return Uint8Array.from(bytes);
}

/** One field: a varint as a number (two's complement of 64 bits for negative ones), or the bytes of a length-delimited one; undefined for fixed-width fields. */
export interface ProtoField {
  readonly field: number;
  readonly data: number | Uint8Array | undefined;
}

/** Iterates over the fields of a message. Throws RangeError on malformed bytes. */
export class ProtoReader {
  readonly #bytes: Uint8Array;
  #offset = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  *[Symbol.iterator](): Generator<ProtoField, void, void> {
    while (this.#offset < this.#bytes.length) {
      const tag = this.#varint();
      const field = Math.floor(tag / 8);
      if (field === 0) throw new RangeError("field number 0");
      switch (tag % 8) {
        case 0:
          yield { field, data: this.#varint() };
          break;
        case 1:
          this.#take(8);
          yield { field, data: undefined };
          break;
        case 2:
          yield { field, data: this.#take(this.#varint()) };
          break;
        case 5:
          this.#take(4);
          yield { field, data: undefined };
          break;
        default:
          throw new RangeError(`wire type ${tag % 8}`);
      }
    }
  }

  #take(length: number): Uint8Array {
    const end = this.#offset + length;
    if (end > this.#bytes.length) throw new RangeError("message ends within a field");
    const part = this.#bytes.subarray(this.#offset, end);
    this.#offset = end;
    return part;
  }

  #varint(): number {
    let value = 0;
    let scale = 1;
    for (let index = 0; index < 10; index += 1) {
      const byte = this.#bytes[this.#offset];
      if (byte === undefined) throw new RangeError("message ends within a number");
      this.#offset += 1;
      value += (byte & 0x7f) * scale;
      if (byte < 128) return value;
      scale *= 128;
    }
    throw new RangeError("number of more than 10 bytes");
  }
}
