import { Readable, type Transform } from "node:stream";
import { createBrotliDecompress, createGunzip, createInflate, createZstdDecompress } from "node:zlib";
import type { InjectedSecret } from "./credential-source.ts";
import type { Body } from "./http1/body.ts";
import type { Fields } from "./http1/fields.ts";
import { SCRUB_MIN_LENGTH } from "./limits.ts";

interface Needle {
  readonly bytes: Buffer;
  readonly latin1: string;
  readonly replacement: Buffer;
}

const EMPTY = Buffer.alloc(0);

/**
 * Replaces credentials that were injected into a request wherever the response holds them: in fields and in the body,
 * across the borders of pieces. Only a tail that could be the start of a credential is held back, so streams stay live.
 */
export class Scrubber {
  readonly #needles: readonly Needle[];
  #held: Buffer = EMPTY;
  /** Replacements so far. */
  found = 0;

  constructor(secrets: readonly InjectedSecret[]) {
    const needles = new Map<string, Needle>();
    for (const { value, placeholder } of secrets) {
      for (const spelling of spellings(value)) {
        const bytes = Buffer.from(spelling, "utf8");
        if (bytes.length < SCRUB_MIN_LENGTH) continue;
        needles.set(spelling, {
          bytes,
          latin1: bytes.toString("latin1"),
          replacement: Buffer.from(placeholder, "utf8"),
        });
      }
    }
    // Longest first: a credential that contains another one goes as a whole.
    this.#needles = [...needles.values()].sort((a, b) => b.bytes.length - a.bytes.length);
  }

  /** In place. */
  scrubFields(fields: Fields): void {
    for (let i = 0; i < fields.length; i += 1) fields.values[i] = this.scrubText(fields.values[i]!);
    for (let i = fields.length - 1; i >= 0; i -= 1) {
      // A name cannot hold a placeholder (a colon is no token character), so the whole line goes.
      if (this.scrubText(fields.names[i]!) !== fields.names[i]) fields.remove(fields.keys[i]!);
    }
  }

  /** Latin1 text of a head. */
  scrubText(text: string): string {
    let result = text;
    for (const needle of this.#needles) {
      if (!result.includes(needle.latin1)) continue;
      const parts = result.split(needle.latin1);
      this.found += parts.length - 1;
      result = parts.join(needle.replacement.toString("latin1"));
    }
    return result;
  }

  /** What may go on already. */
  push(piece: Buffer): Buffer {
    const all = this.#held.length === 0 ? piece : Buffer.concat([this.#held, piece]);
    const clean: Buffer[] = [];
    let from = 0;
    for (;;) {
      const hit = this.#next(all, from);
      if (hit === undefined) break;
      clean.push(all.subarray(from, hit.at), hit.needle.replacement);
      this.found += 1;
      from = hit.at + hit.needle.bytes.length;
    }
    const keep = this.#tail(all, from);
    this.#held = all.subarray(all.length - keep);
    const rest = all.subarray(from, all.length - keep);
    if (clean.length === 0) return rest;
    clean.push(rest);
    return Buffer.concat(clean);
  }

  /** The end: what was held back was no credential. */
  flush(): Buffer {
    const rest = this.#held;
    this.#held = EMPTY;
    return rest;
  }

  #next(bytes: Buffer, from: number): { readonly at: number; readonly needle: Needle } | undefined {
    let best: { at: number; needle: Needle } | undefined;
    for (const needle of this.#needles) {
      const at = bytes.indexOf(needle.bytes, from);
      if (at !== -1 && (best === undefined || at < best.at)) best = { at, needle };
    }
    return best;
  }

  /** Length of the longest end of `bytes` that is a proper start of a credential. */
  #tail(bytes: Buffer, from: number): number {
    let longest = 0;
    for (const { bytes: needle } of this.#needles) {
      const most = Math.min(needle.length - 1, bytes.length - from);
      for (let length = most; length > longest; length -= 1) {
        const start = bytes.length - length;
        if (bytes[start] === needle[0] && bytes.compare(needle, 0, length, start) === 0) {
          longest = length;
          break;
        }
      }
    }
    return longest;
  }
}

/** The forms in which servers echo a value: as it is, in JSON, in a URL, in base64. */
function spellings(value: string): Set<string> {
  const bytes = Buffer.from(value, "utf8");
  return new Set([
    value,
    JSON.stringify(value).slice(1, -1),
    encodeURIComponent(value),
    bytes.toString("base64"),
    bytes.toString("base64url"),
  ]);
}

/** Codings that can be undone piece by piece; undefined for others. An empty list needs no decoder. */
export function decodersFor(contentEncoding: readonly string[]): (() => Transform)[] | undefined {
  const decoders: (() => Transform)[] = [];
  const codings = contentEncoding
    .flatMap((value) => value.split(","))
    .map((value) => value.trim().toLowerCase())
    .filter((value) => value !== "" && value !== "identity");
  // A chain of codings is a decompression bomb, not a web page.
  if (codings.length > 2) return undefined;
  for (const coding of codings.reverse()) {
    if (coding === "gzip" || coding === "x-gzip") decoders.push(() => createGunzip());
    else if (coding === "deflate") decoders.push(() => createInflate());
    else if (coding === "br") decoders.push(() => createBrotliDecompress());
    else if (coding === "zstd") decoders.push(() => createZstdDecompress());
    else return undefined;
  }
  return decoders;
}

/** A body with its content codings undone. */
export function decodeBody(body: Body, decoders: readonly (() => Transform)[], limitMs: number): Body {
  async function* pieces(): AsyncGenerator<Buffer> {
    for (;;) {
      const piece = await body.next(limitMs);
      if (piece === null) return;
      yield piece;
    }
  }
  let stream: Readable = Readable.from(pieces(), { objectMode: false });
  for (const make of decoders) {
    const source = stream;
    const decoder = make();
    source.on("error", (error) => decoder.destroy(error));
    stream = source.pipe(decoder);
  }
  const iterator = stream[Symbol.asyncIterator]();
  let done = false;
  return {
    get trailers() {
      return body.trailers;
    },
    get done() {
      return done;
    },
    async next() {
      const result = await iterator.next();
      if (result.done) {
        done = true;
        return null;
      }
      return result.value as Buffer;
    },
  };
}

/** A body whose pieces went through `scrubber`. */
export function scrubBody(body: Body, scrubber: Scrubber): Body {
  let flushed = false;
  return {
    get trailers() {
      const { trailers } = body;
      if (trailers !== undefined) scrubber.scrubFields(trailers);
      return trailers;
    },
    get done() {
      return flushed;
    },
    async next(limitMs) {
      while (!flushed) {
        const piece = await body.next(limitMs);
        const clean = piece === null ? scrubber.flush() : scrubber.push(piece);
        if (piece === null) flushed = true;
        if (clean.length > 0) return clean;
      }
      return null;
    },
  };
}
