import { parentPort, workerData } from "node:worker_threads";
import { Commits } from "./commits.ts";
import { Reserve } from "./reserve.ts";
import { type Batch, type BatchOutcome, WriterCore } from "./writer-core.ts";

/** Entry of the writer thread; a bundle of its own (`store-writer.mjs`). */

export interface WriterData {
  readonly path: string;
  /** Of the {@link Commits} that both threads share. */
  readonly commits: SharedArrayBuffer;
  /** File that keeps space for ending sandboxes; undefined: none is kept. */
  readonly reserve: string | undefined;
}

export type ReserveState = "in use" | "whole";

/** The first look is after the start has made its writes. Milliseconds. */
const FIRST_LOOK_MS = 500;
/** Between two looks whether there is room for the reserve. Milliseconds. */
const LOOK_MS = 5_000;

/** To the thread: a group to write, to look whether other processes have committed, or the order to close. */
export type WriterRequest = { readonly batches: readonly Batch[] } | { readonly look: true } | { readonly close: true };
/** From the thread. */
export type WriterReply =
  | { readonly opened: true }
  | { readonly outcomes: readonly BatchOutcome[] }
  /** The space that is kept on the disk is in use, or whole again. */
  | { readonly reserve: ReserveState }
  | { readonly closed: true };

const port = parentPort;
if (port === null) throw new Error("the store's writer runs as a worker thread only");

const { path, commits, reserve } = workerData as WriterData;
const kept = reserve === undefined ? undefined : new Reserve(reserve);
const core = new WriterCore(path, new Commits(commits), undefined, kept);
const reply = (message: WriterReply): void => port.postMessage(message);

port.on("message", (request: WriterRequest) => {
  if ("close" in request) {
    clearTimeout(timer);
    core.close();
    reply({ closed: true });
    port.close();
  } else if ("look" in request) core.lookForOthers();
  else {
    const before = core.gaveReserve;
    reply({ outcomes: core.run(request.batches) });
    if (core.gaveReserve && !before) {
      reply({ reserve: "in use" });
      look(LOOK_MS);
    }
  }
});

let timer: NodeJS.Timeout | undefined;
/** Looks until the reserve is whole: it is used only by a write, and that begins anew. */
function look(afterMs: number): void {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const was = core.gaveReserve;
    if (!core.replenish()) look(LOOK_MS);
    else if (was) reply({ reserve: "whole" });
  }, afterMs);
  timer.unref();
}
if (kept !== undefined) look(FIRST_LOOK_MS);
reply({ opened: true });
