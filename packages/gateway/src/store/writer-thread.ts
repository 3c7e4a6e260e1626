import { parentPort, workerData } from "node:worker_threads";
import { Commits } from "./commits.ts";
import { type Batch, type BatchOutcome, WriterCore } from "./writer-core.ts";

/** Entry of the writer thread; a bundle of its own (`store-writer.mjs`). */

export interface WriterData {
  readonly path: string;
  /** Of the {@link Commits} that both threads share. */
  readonly commits: SharedArrayBuffer;
}

/** To the thread: a group to write, or the order to close. */
export type WriterRequest = { readonly batches: readonly Batch[] } | { readonly close: true };
/** From the thread. */
export type WriterReply =
  | { readonly opened: true }
  | { readonly outcomes: readonly BatchOutcome[] }
  | { readonly closed: true };

const port = parentPort;
if (port === null) throw new Error("the store's writer runs as a worker thread only");

const { path, commits } = workerData as WriterData;
const core = new WriterCore(path, new Commits(commits));
const reply = (message: WriterReply): void => port.postMessage(message);

port.on("message", (request: WriterRequest) => {
  if ("close" in request) {
    core.close();
    reply({ closed: true });
    port.close();
  } else {
    reply({ outcomes: core.run(request.batches) });
  }
});
reply({ opened: true });
