import type { Channel } from "../channel.ts";
import { CHUNK_LINE_BYTES, TRAILER_BYTES } from "../limits.ts";
import { Fields, isToken } from "./fields.ts";
import { type Framing, HttpParseError } from "./head.ts";

/** Body of one message, pulled piece by piece from its connection; never takes a byte of what follows. */
export interface Body {
  /** The next piece, `null` after the last. Rejects when the framing is broken or the connection ends early. */
  next(limitMs: number): Buffer | null | Promise<Buffer | null>;
  /** Of a chunked body, once `next` gave `null`; framing and routing fields are left out. */
  readonly trailers: Fields | undefined;
  /** Nothing is left to read. */
  readonly done: boolean;
}

export function openBody(channel: Channel, framing: Framing): Body {
  switch (framing.kind) {
    case "none":
      return new LengthBody(channel, 0);
    case "length":
      return new LengthBody(channel, framing.length);
    case "chunked":
      return new ChunkedBody(channel);
    case "until_close":
      return new UntilCloseBody(channel);
  }
}

class LengthBody implements Body {
  readonly trailers = undefined;
  readonly #channel: Channel;
  #left: number;

  constructor(channel: Channel, length: number) {
    this.#channel = channel;
    this.#left = length;
  }

  get done(): boolean {
    return this.#left === 0;
  }

  next(limitMs: number): Buffer | null | Promise<Buffer | null> {
    if (this.#left === 0) return null;
    const chunk = this.#channel.read(limitMs);
    return chunk instanceof Promise ? chunk.then((value) => this.#took(value)) : this.#took(chunk);
  }

  #took(chunk: Buffer | null): Buffer {
    if (chunk === null) throw new HttpParseError("body_end", "The connection ended inside the body");
    if (chunk.length <= this.#left) {
      this.#left -= chunk.length;
      return chunk;
    }
    const own = chunk.subarray(0, this.#left);
    this.#channel.unread(chunk.subarray(this.#left));
    this.#left = 0;
    return own;
  }
}

class UntilCloseBody implements Body {
  readonly trailers = undefined;
  readonly #channel: Channel;
  #done = false;

  constructor(channel: Channel) {
    this.#channel = channel;
  }

  get done(): boolean {
    return this.#done;
  }

  async next(limitMs: number): Promise<Buffer | null> {
    const chunk = await this.#channel.read(limitMs);
    if (chunk === null) this.#done = true;
    return chunk;
  }
}

/** Fields that a trailer must not smuggle in (RFC 9110 §6.5.1). */
const NOT_IN_TRAILERS = new Set([
  "authorization",
  "connection",
  "content-encoding",
  "content-length",
  "content-range",
  "content-type",
  "cookie",
  "expect",
  "host",
  "keep-alive",
  "max-forwards",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "range",
  "set-cookie",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
  "www-authenticate",
]);

const EMPTY = Buffer.alloc(0);
/** Chunks below this size are joined with those behind them that are there too. */
const SMALL_CHUNK = 512;
/** Thirteen hexadecimal digits stay exact. */
const CHUNK_SIZE_DIGITS = 13;

/** RFC 9112 §7.1. Line ends are CRLF only; chunk extensions are dropped; the caller frames anew. */
class ChunkedBody implements Body {
  trailers: Fields | undefined;
  readonly #channel: Channel;
  #pending: Buffer = EMPTY;
  /** Up to where `#pending` is used up. */
  #at = 0;
  #state: "size" | "data" | "data_end" | "trailers" | "done" = "size";
  #left = 0;
  #trailerBytes = 0;
  /** Found behind data that was given out first. */
  #broken: unknown;
  readonly #collected = new Fields();

  constructor(channel: Channel) {
    this.#channel = channel;
  }

  get done(): boolean {
    return this.#state === "done";
  }

  next(limitMs: number): Buffer | null | Promise<Buffer | null> {
    const piece = this.#advance();
    return piece === undefined ? this.#more(limitMs) : piece;
  }

  async #more(limitMs: number): Promise<Buffer | null> {
    for (;;) {
      const chunk = await this.#channel.read(limitMs);
      if (chunk === null) throw new HttpParseError("body_end", "The connection ended inside a chunked body");
      const rest = this.#pending.subarray(this.#at);
      this.#pending = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
      this.#at = 0;
      const piece = this.#advance();
      if (piece !== undefined) return piece;
    }
  }

  /** The next data that is there; undefined: more bytes are needed. */
  #advance(): Buffer | null | undefined {
    if (this.#broken !== undefined) throw this.#broken;
    if (this.#state !== "data" && !this.#frame()) return this.#state === "done" ? null : undefined;
    const from = this.#at;
    const size = Math.min(this.#left, this.#pending.length - from);
    if (size === 0) return undefined;
    this.#took(size);
    const first = this.#pending.subarray(from, this.#at);
    return size < SMALL_CHUNK && this.#at < this.#pending.length ? this.#gather(first) : first;
  }

  /** Small chunks that are there already become one piece: a body in chunks of a byte is not worth a write for each. */
  #gather(first: Buffer): Buffer {
    const pending = this.#pending;
    const whole = Buffer.allocUnsafe(first.length + pending.length - this.#at);
    let length = first.copy(whole);
    try {
      while (this.#frame()) {
        const size = Math.min(this.#left, pending.length - this.#at);
        if (size === 0 || size >= SMALL_CHUNK) break;
        for (let n = 0; n < size; n += 1) whole[length + n] = pending[this.#at + n]!;
        length += size;
        this.#took(size);
      }
    } catch (error) {
      this.#broken = error;
    }
    return whole.subarray(0, length);
  }

  #took(bytes: number): void {
    this.#at += bytes;
    this.#left -= bytes;
    if (this.#left === 0) this.#state = "data_end";
  }

  /** Takes what stands between data. True: data comes next; false: more bytes are needed, or the body is done. */
  #frame(): boolean {
    for (;;) {
      switch (this.#state) {
        case "size": {
          const size = this.#size();
          if (size === undefined) return false;
          this.#left = size;
          this.#state = size === 0 ? "trailers" : "data";
          break;
        }
        case "data":
          return true;
        case "data_end": {
          const [pending, at] = [this.#pending, this.#at];
          if (pending.length - at < 2) {
            if (pending.length - at === 1 && pending[at] !== 0x0d) throw chunkError();
            return false;
          }
          if (pending[at] !== 0x0d || pending[at + 1] !== 0x0a) throw chunkError();
          this.#at = at + 2;
          this.#state = "size";
          break;
        }
        case "trailers": {
          const line = this.#line(TRAILER_BYTES - this.#trailerBytes);
          if (line === undefined) return false;
          if (line === "") {
            this.#state = "done";
            this.trailers = this.#collected;
            this.#channel.unread(this.#pending.subarray(this.#at));
            this.#pending = EMPTY;
            this.#at = 0;
            return false;
          }
          this.#trailerBytes += line.length + 2;
          this.#trailer(line);
          break;
        }
        case "done":
          return false;
      }
    }
  }

  /** Of the next chunk. Digits and a line end, as nearly all are written, are read without making a text of them. */
  #size(): number | undefined {
    const pending = this.#pending;
    let [at, value] = [this.#at, 0];
    const latest = Math.min(pending.length, at + CHUNK_SIZE_DIGITS);
    for (; at < latest; at += 1) {
      const digit = hexDigit(pending[at]!);
      if (digit < 0) break;
      value = value * 16 + digit;
    }
    if (at > this.#at && pending[at] === 0x0d && pending[at + 1] === 0x0a) {
      this.#at = at + 2;
      return value;
    }
    const line = this.#line(CHUNK_LINE_BYTES);
    return line === undefined ? undefined : parseChunkSize(line);
  }

  #line(limit: number): string | undefined {
    const [pending, at] = [this.#pending, this.#at];
    const end = pending.indexOf(0x0a, at);
    if ((end === -1 ? pending.length : end) - at > limit)
      throw new HttpParseError("chunk_line", "A chunk line is too long");
    if (end === -1) return undefined;
    if (end === at || pending[end - 1] !== 0x0d)
      throw new HttpParseError("chunk_line", "A bare line feed in chunk framing");
    this.#at = end + 1;
    return pending.toString("latin1", at, end - 1);
  }

  #trailer(line: string): void {
    const colon = line.indexOf(":");
    const name = line.slice(0, Math.max(colon, 0));
    if (!isToken(name) || !/^[\t\x20-\x7e\x80-\xff]*$/.test(line)) {
      throw new HttpParseError("trailer", "A trailer field is malformed");
    }
    const key = name.toLowerCase();
    if (!NOT_IN_TRAILERS.has(key))
      this.#collected.add(name, line.slice(colon + 1).replace(/^[ \t]+|[ \t]+$/g, ""), key);
  }
}

function chunkError(): HttpParseError {
  return new HttpParseError("chunk_data", "A chunk is longer than its size says");
}

/** Value of an ASCII hexadecimal digit; −1 for any other octet. */
function hexDigit(octet: number): number {
  if (octet >= 0x30 && octet <= 0x39) return octet - 0x30;
  const letter = octet | 0x20;
  return letter >= 0x61 && letter <= 0x66 ? letter - 0x57 : -1;
}

/** Size with optional extensions. */
function parseChunkSize(line: string): number {
  const match = /^([0-9a-fA-F]{1,13})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?$/.exec(line);
  if (match === null) throw new HttpParseError("chunk_size", "A chunk size is malformed");
  return Number.parseInt(match[1]!, 16);
}
