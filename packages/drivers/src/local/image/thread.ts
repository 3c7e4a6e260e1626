import { Worker } from "node:worker_threads";
import { DriverError, type DriverErrorCode } from "../../driver.ts";
import { threadEntry } from "../thread-entry.ts";
import type { OnUnpacked, UnpackedImage, UnpackRequest } from "./unpack-archive.ts";
import type { UnpackReply } from "./unpack-thread.ts";

/** Unpacks an archive; `signal` ends it at once, whatever is left in the folder is the caller's to remove. */
export type Unpack = (request: UnpackRequest, onBytes: OnUnpacked, signal: AbortSignal) => Promise<UnpackedImage>;

/** A thread that says nothing for so long is ended: it is told to report every few megabytes. Milliseconds. */
const SILENCE_MS = 180_000;

/** `unpackArchive` in a thread of its own. */
export const unpackInThread: Unpack = async (request, onBytes, signal) => {
  signal.throwIfAborted();
  const worker = new Worker(threadEntry(import.meta.url, "./unpack-thread.ts", "image-unpack"), {
    workerData: request,
    name: "image-unpack",
    execArgv: [],
  });
  const { promise, resolve, reject } = Promise.withResolvers<UnpackedImage>();
  const silent = new DriverError(
    "image_unavailable",
    `unpacking the image made no progress for ${SILENCE_MS / 1000} s`,
  );
  let silence = setTimeout(() => reject(silent), SILENCE_MS);
  const onAbort = (): void => reject(signal.reason);
  signal.addEventListener("abort", onAbort, { once: true });
  worker.on("message", (reply: UnpackReply) => {
    clearTimeout(silence);
    silence = setTimeout(() => reject(silent), SILENCE_MS);
    if (reply.kind === "unpacked") onBytes(reply.bytes, reply.of);
    else if (reply.kind === "done") resolve(reply.image);
    else reject(new DriverError(reply.code as DriverErrorCode, reply.message, { next: reply.next }));
  });
  worker.on("error", reject);
  worker.on("exit", () => reject(new DriverError("image_unavailable", "the thread that unpacks images ended early")));
  try {
    return await promise;
  } finally {
    clearTimeout(silence);
    signal.removeEventListener("abort", onAbort);
    await worker.terminate();
  }
};
