/**
 * Streaming search of a response for the credentials its request carried. An allowed host that received a value could
 * send it back; the value is replaced before the sandbox sees it, also when it is cut by chunk borders.
 *
 * The search compares a window as long as the shortest pattern and skips by its last byte (Horspool's algorithm for
 * several patterns), so long credentials cost a fraction of a comparison a byte. Only bytes that could be the start of a
 * pattern are held back, so streams are not delayed.
 */

import { searchedForms } from "./binding.ts";
import { toByteText } from "./byte-text.ts";
import type { UsedCredential } from "./endpoint.ts";
import { CredentialLimit } from "./limits.ts";

export interface ScrubberOptions {
  /** Replace by `*` of the same length, for bodies whose length was announced already. Default: by the placeholder. */
  readonly keepLength?: boolean;
}

interface Pattern {
  readonly bytes: Uint8Array;
  readonly replacement: Uint8Array;
  readonly text: string;
  readonly replacementText: string;
}

const EMPTY = new Uint8Array(0);

export class ResponseScrubber {
  /** Longest first: where two match, the longer one is meant. */
  readonly #patterns: readonly Pattern[];
  readonly #shortest: number;
  readonly #longest: number;
  /** By byte: how far the window may move. */
  readonly #skip: Uint16Array | Uint32Array;
  #held = EMPTY;
  #replacements = 0;

  constructor(used: readonly UsedCredential[], options: ScrubberOptions = {}) {
    const encoder = new TextEncoder();
    const patterns = new Map<string, Pattern>();
    for (const credential of used) {
      for (const text of searchedForms(credential.secret.reveal())) {
        const bytes = encoder.encode(text);
        const replacementText = options.keepLength === true ? "*".repeat(bytes.length) : credential.placeholder;
        patterns.set(text, { bytes, text, replacementText, replacement: encoder.encode(replacementText) });
      }
    }
    this.#patterns = [...patterns.values()].sort((a, b) => b.bytes.length - a.bytes.length);
    this.#longest = this.#patterns[0]?.bytes.length ?? 0;
    this.#shortest = this.#patterns.at(-1)?.bytes.length ?? 0;
    this.#skip = new Uint32Array(256).fill(Math.max(this.#shortest, 1));
    for (const { bytes } of this.#patterns) {
      for (let at = 0; at < this.#shortest - 1; at += 1) {
        const byte = bytes[at] as number;
        this.#skip[byte] = Math.min(this.#skip[byte] as number, this.#shortest - 1 - at);
      }
    }
  }

  /** False when the request carried nothing that can be searched for: the response needs no pass through here. */
  get active(): boolean {
    return this.#patterns.length > 0;
  }

  /** Values replaced so far, in body and head; above 0 the caller raises a HIGH finding. */
  get replacements(): number {
    return this.#replacements;
  }

  /** Bytes that may be passed on now, in order. Pieces share memory with `chunk`. */
  push(chunk: Uint8Array): Uint8Array[] {
    if (!this.active) return [chunk];
    const bytes = this.#held.length === 0 ? chunk : concat(this.#held, chunk);
    const output: Uint8Array[] = [];
    const from = this.#replaceWhole(bytes, output, false);
    const keep = this.#partialFrom(bytes, from);
    if (keep > from) output.push(bytes.subarray(from, keep));
    this.#held = bytes.slice(keep);
    return output;
  }

  /** The rest after the last chunk. */
  end(): Uint8Array[] {
    const bytes = this.#held;
    this.#held = EMPTY;
    const output: Uint8Array[] = [];
    const from = this.#replaceWhole(bytes, output, true);
    if (from < bytes.length) output.push(bytes.subarray(from));
    return output;
  }

  /** A header value, as text or as byte text, or another short text. */
  scrubText(text: string): string {
    let result = text;
    for (const pattern of this.#patterns) {
      for (const form of new Set([pattern.text, toByteText(pattern.text)])) {
        if (!result.includes(form)) continue;
        const parts = result.split(form);
        this.#replacements += parts.length - 1;
        result = parts.join(pattern.replacementText);
      }
    }
    return result;
  }

  /** Emits everything before and including the last complete match; returns where the unsearched rest begins. */
  #replaceWhole(bytes: Uint8Array, output: Uint8Array[], last: boolean): number {
    let from = 0;
    let at = 0;
    const width = this.#shortest;
    while (width > 0 && at + width <= bytes.length) {
      const pattern = this.#matchAt(bytes, at, last);
      if (pattern === "undecided") return from;
      if (pattern !== undefined) {
        if (at > from) output.push(bytes.subarray(from, at));
        output.push(pattern.replacement);
        this.#replacements += 1;
        at += pattern.bytes.length;
        from = at;
      } else at += this.#skip[bytes[at + width - 1] as number] as number;
    }
    return from;
  }

  /** The longest pattern at `at`; `undecided` when a longer one than any complete match may still follow. */
  #matchAt(bytes: Uint8Array, at: number, last: boolean): Pattern | "undecided" | undefined {
    for (const pattern of this.#patterns) {
      const length = Math.min(pattern.bytes.length, bytes.length - at);
      if (!startsWith(bytes, at, pattern.bytes, length)) continue;
      if (length === pattern.bytes.length) return pattern;
      if (!last) return "undecided";
    }
    return undefined;
  }

  /** First position from which the rest of `bytes` is the beginning of some pattern, or the end. */
  #partialFrom(bytes: Uint8Array, from: number): number {
    const start = Math.max(from, bytes.length - this.#longest + 1);
    for (let at = start; at < bytes.length; at += 1) {
      const length = bytes.length - at;
      for (const pattern of this.#patterns) {
        if (pattern.bytes.length > length && startsWith(bytes, at, pattern.bytes, length)) return at;
      }
    }
    return bytes.length;
  }
}

function startsWith(bytes: Uint8Array, at: number, pattern: Uint8Array, length: number): boolean {
  for (let index = 0; index < length; index += 1) {
    if (bytes[at + index] !== pattern[index]) return false;
  }
  return true;
}

function concat(a: Uint8Array, b: Uint8Array): Uint8Array {
  const joined = new Uint8Array(a.length + b.length);
  joined.set(a);
  joined.set(b, a.length);
  return joined;
}

/** Whether a value is long enough to be searched for; shorter ones would match by chance. */
export function isSearchable(value: string): boolean {
  return new TextEncoder().encode(value).length >= CredentialLimit.searchedBytes;
}
