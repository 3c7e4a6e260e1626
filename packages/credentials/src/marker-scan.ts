/** Streaming search for placeholder markers in request bodies, raw or percent-encoded in any part. */
import { ALIAS_MARKER, MARKER } from "./placeholder.ts";

const MARKERS = [MARKER, ALIAS_MARKER].map((text) => new TextEncoder().encode(text));

/** The longest spelling of a marker: every character as `%XX`. At most this many bytes are held back. */
export const MARKER_TAIL_BYTES = 3 * Math.max(...MARKERS.map((marker) => marker.length));

const PERCENT = 0x25;

export class BodyMarkerScanner {
  #held = new Uint8Array(0);
  #found = false;

  /** A marker was seen: nothing further is let through. */
  get found(): boolean {
    return this.#found;
  }

  /** Bytes that may be sent on: everything but what could be the start of a marker. Empty once a marker was found. */
  push(chunk: Uint8Array): Uint8Array {
    if (this.#found) return new Uint8Array(0);
    const bytes = this.#held.length === 0 ? chunk : concat(this.#held, chunk);
    for (let at = 0; at < bytes.length; at += 1) {
      const byte = bytes[at] as number;
      // 'o', 'O' or '%': what a marker starts with.
      if (byte !== 0x6f && byte !== 0x4f && byte !== PERCENT) continue;
      const match = matchAt(bytes, at);
      if (match === "none") continue;
      if (match === "whole") {
        this.#found = true;
        this.#held = new Uint8Array(0);
        return bytes.subarray(0, at);
      }
      this.#held = bytes.slice(at);
      return bytes.subarray(0, at);
    }
    this.#held = new Uint8Array(0);
    return bytes;
  }

  /** The rest, when the body ended without a marker. */
  end(): Uint8Array {
    const rest = this.#held;
    this.#held = new Uint8Array(0);
    return rest;
  }
}

type Match = "none" | "partial" | "whole";

function matchAt(bytes: Uint8Array, start: number): Match {
  let result: Match = "none";
  for (const marker of MARKERS) {
    const match = matchMarker(bytes, start, marker);
    if (match === "whole") return match;
    if (match === "partial") result = match;
  }
  return result;
}

function matchMarker(bytes: Uint8Array, start: number, marker: Uint8Array): Match {
  let at = start;
  for (const expected of marker) {
    if (at >= bytes.length) return "partial";
    let value = bytes[at] as number;
    let width = 1;
    if (value === PERCENT) {
      const high = hexAt(bytes, at + 1);
      const low = hexAt(bytes, at + 2);
      if (high === undefined) return "partial";
      if (high < 0 || (low !== undefined && low < 0) || high !== expected >> 4) return "none";
      if (low === undefined) return "partial";
      value = high * 16 + low;
      width = 3;
    }
    if (value !== expected) return "none";
    at += width;
  }
  return "whole";
}

/** -1: no hex digit; undefined: beyond the end. */
function hexAt(bytes: Uint8Array, at: number): number | undefined {
  const byte = bytes[at];
  if (byte === undefined) return undefined;
  if (byte >= 0x30 && byte <= 0x39) return byte - 0x30;
  const lower = byte | 0x20;
  return lower >= 0x61 && lower <= 0x66 ? lower - 0x57 : -1;
}

function concat(a: Uint8Array, b: Uint8Array): Uint8Array {
  const joined = new Uint8Array(a.length + b.length);
  joined.set(a);
  joined.set(b, a.length);
  return joined;
}
