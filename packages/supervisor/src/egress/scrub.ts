import { Readable, type Transform } from "node:stream";
import { createBrotliDecompress, createGunzip, createInflate, createZstdDecompress } from "node:zlib";
import { RuntimeError } from "@openshell/base";
import { BodyMarkerScanner, type ResponseScrubber } from "@openshell/credentials";
import type { Body } from "./http1/body.ts";
import type { Fields } from "./http1/fields.ts";

/** Bodies of credentialed requests and their responses: what must not go out, and what must not come back. */

/** In place. Names are searched as well: a name cannot hold a placeholder (a colon is no token character), so its line goes. */
export function scrubFields(fields: Fields, scrubber: ResponseScrubber): void {
  for (let i = fields.length - 1; i >= 0; i -= 1) {
    fields.values[i] = scrubber.scrubText(fields.values[i]!);
    if (scrubber.scrubText(fields.names[i]!) !== fields.names[i]) fields.remove(fields.keys[i]!);
  }
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

/** A body in which every credential is replaced. */
export function scrubBody(body: Body, scrubber: ResponseScrubber): Body {
  const ready: Uint8Array[] = [];
  let ended = false;
  return {
    get trailers() {
      const { trailers } = body;
      if (trailers !== undefined) scrubFields(trailers, scrubber);
      return trailers;
    },
    get done() {
      return ended && ready.length === 0;
    },
    async next(limitMs) {
      for (;;) {
        const piece = ready.shift();
        if (piece !== undefined) return asBuffer(piece);
        if (ended) return null;
        const read = await body.next(limitMs);
        if (read === null) ended = true;
        ready.push(...(read === null ? scrubber.end() : scrubber.push(read)));
      }
    },
  };
}

/** A request body that breaks off before the first placeholder in it: there it would not be replaced. */
export function guardBody(body: Body, onMarker: () => void): Body {
  const scanner = new BodyMarkerScanner();
  let ended = false;
  return {
    get trailers() {
      return body.trailers;
    },
    get done() {
      return ended;
    },
    async next(limitMs) {
      while (!ended) {
        const piece = await body.next(limitMs);
        const clean = piece === null ? scanner.end() : scanner.push(piece);
        if (scanner.found) {
          onMarker();
          throw new RuntimeError(
            "credential_placeholder_in_request_body",
            "The request body contains a credential placeholder, and bodies are not rewritten here",
            { next: "Send the credential in a header." },
          );
        }
        if (piece === null) ended = true;
        if (clean.length > 0) return asBuffer(clean);
      }
      return null;
    },
  };
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
}
