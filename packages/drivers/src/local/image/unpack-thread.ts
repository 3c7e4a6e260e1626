import { parentPort, workerData } from "node:worker_threads";
import { describeError, RuntimeError } from "@openshell/base";
import type { RuntimeErrorCode } from "@openshell/base/catalogue/runtime.ts";
import { type UnpackedImage, type UnpackRequest, unpackArchive } from "./unpack-archive.ts";

/** From the thread: how far it is, then one of the other two. */
export type UnpackReply =
  | { readonly kind: "unpacked"; readonly bytes: number; readonly of: "archive" | "layers" }
  | { readonly kind: "done"; readonly image: UnpackedImage }
  | { readonly kind: "failed"; readonly code: RuntimeErrorCode; readonly message: string; readonly next: string };

/** Bytes between two reports. */
const REPORT_BYTES = 4 << 20;

/** A thread of its own: hundreds of thousands of small synchronous file operations would hold up everybody else. */
async function main(): Promise<void> {
  const post = (reply: UnpackReply): void => parentPort!.postMessage(reply);
  let reported = 0;
  try {
    const image = await unpackArchive(workerData as UnpackRequest, (bytes, of) => {
      if (Math.abs(bytes - reported) < REPORT_BYTES) return;
      reported = bytes;
      post({ kind: "unpacked", bytes, of });
    });
    post({ kind: "done", image });
  } catch (error) {
    const known = error instanceof RuntimeError;
    post({
      kind: "failed",
      code: known ? error.code : "image_unavailable",
      message: known ? error.message : `the image cannot be unpacked: ${describeError(error)}`,
      next: known ? error.next : "",
    });
  }
}

await main();
