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

/** RFC 9112 §7.1. Line ends are CRLF only; chunk extensions are dropped; the caller frames anew. */
class ChunkedBody implements Body {
  trailers: Fields | undefined;
  readonly #channel: Channel;
  #pending: Buffer = EMPTY;
  #state: "size" | "data" | "data_end" | "trailers" | "done" = "size";
  #left = 0;
  #trailerBytes = 0;
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
      this.#pending = this.#pending.length === 0 ? chunk : Buffer.concat([this.#pending, chunk]);
      const piece = this.#advance();
      if (piece !== undefined) return piece;
    }
  }

  /** Undefined: more bytes are needed. */
  #advance(): Buffer | null | undefined {
    for (;;) {
      switch (this.#state) {
        case "size": {
          const line = this.#line(CHUNK_LINE_BYTES);
          if (line === undefined) return undefined;
          this.#left = parseChunkSize(line);
          this.#state = this.#left === 0 ? "trailers" : "data";
          break;
        }
        case "data": {
          if (this.#pending.length === 0) return undefined;
          const piece = this.#pending.subarray(0, this.#left);
          this.#pending = this.#pending.subarray(piece.length);
          this.#left -= piece.length;
          if (this.#left === 0) this.#state = "data_end";
          return piece;
        }
        case "data_end": {
          if (this.#pending.length < 2) {
            if (this.#pending.length === 1 && this.#pending[0] !== 0x0d) throw chunkError();
            return undefined;
          }
          if (this.#pending[0] !== 0x0d || this.#pending[1] !== 0x0a) throw chunkError();
          this.#pending = this.#pending.subarray(2);
          this.#state = "size";
          break;
        }
        case "trailers": {
          const line = this.#line(TRAILER_BYTES - this.#trailerBytes);
          if (line === undefined) return undefined;
          if (line === "") {
            this.#state = "done";
            this.trailers = this.#collected;
            this.#channel.unread(this.#pending);
            this.#pending = EMPTY;
            return null;
          }
          this.#trailerBytes += line.length + 2;
          this.#trailer(line);
          break;
        }
        case "done":
          return null;
      }
    }
  }

  #line(limit: number): string | undefined {
    const end = this.#pending.indexOf(0x0a);
    if (end === -1) {
      if (this.#pending.length > limit) throw new HttpParseError("chunk_line", "A chunk line is too long");
      return undefined;
    }
    if (end > limit) throw new HttpParseError("chunk_line", "A chunk line is too long");
    if (end === 0 || this.#pending[end - 1] !== 0x0d)
      throw new HttpParseError("chunk_line", "A bare line feed in chunk framing");
    const line = this.#pending.toString("latin1", 0, end - 1);
    this.#pending = this.#pending.subarray(end + 1);
    return line;
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

/** Size with optional extensions; thirteen hexadecimal digits stay exact. */
function parseChunkSize(line: string): number {
  const match = /^([0-9a-fA-F]{1,13})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?$/.exec(line);
  if (match === null) throw new HttpParseError("chunk_size", "A chunk size is malformed");
  return Number.parseInt(match[1]!, 16);
}
