import { promisify } from "node:util";
import { COMPRESSED, type Frame, tooLarge } from "./frame.ts";
import { WireLimits } from "./limits.ts";
import { StatusCode, StatusError } from "./status.ts";

/** Message encodings that are understood, as `grpc-accept-encoding` names them. */
export const ACCEPTED_ENCODINGS = "gzip,identity";

/** Whether a peer accepts gzip, by its `grpc-accept-encoding`. */
export function acceptsGzip(accepted: string | string[] | undefined): boolean {
  return accepted !== undefined && /(^|,)\s*gzip\s*(,|$)/.test(String(accepted));
}

/** Whether messages may be gzipped, by `grpc-encoding`. @throws StatusError with `unknown` for any other encoding */
export function readEncoding(encoding: string | string[] | undefined, unknown: number): boolean {
  if (encoding === undefined || encoding === "identity") return false;
  if (encoding === "gzip") return true;
  throw new StatusError(unknown, `unknown grpc-encoding ${JSON.stringify(encoding)}: use ${ACCEPTED_ENCODINGS}`);
}

/** Compresses a message off the main thread. */
export async function gzip(message: Uint8Array): Promise<Uint8Array> {
  const { gzip } = await import("node:zlib");
  return promisify(gzip)(message);
}

/** The bytes of a message. A compressed one is inflated off the main thread and never beyond the limit. */
export function decompress(frame: Frame, gzipped: boolean, maxBytes: number): Uint8Array | Promise<Uint8Array> {
  if ((frame.flags & COMPRESSED) === 0) return frame.data;
  if (!gzipped) throw new StatusError(StatusCode.internal, "a compressed message came without a grpc-encoding");
  return inflate(frame.data, maxBytes);
}

/** Inflations under way, and those that wait for one to end. */
let inflating = 0;
const waiting: (() => void)[] = [];

async function inflate(data: Uint8Array, maxBytes: number): Promise<Uint8Array> {
  if (data.length === 0) return data;
  if (inflating === WireLimits.inflations) await new Promise<void>((resolve) => waiting.push(resolve));
  else inflating++;
  const { gunzip } = await import("node:zlib");
  try {
    return await promisify(gunzip)(data, { maxOutputLength: Math.max(1, maxBytes) });
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === "ERR_BUFFER_TOO_LARGE") throw tooLarge(undefined, maxBytes);
    throw new StatusError(StatusCode.invalidArgument, "a message is not gzip as its grpc-encoding says", { cause });
  } finally {
    const next = waiting.shift();
    if (next === undefined) inflating--;
    else next();
  }
}
