import { parentPort, workerData } from "node:worker_threads";
import { diskUsage } from "./disk-usage.ts";

/** What a measurement is asked: several sandboxes at once, since a thread costs more than a small tree. */
export interface MeasureRequest {
  /** Folders of each sandbox. */
  readonly trees: readonly (readonly string[])[];
  readonly enoughBytes: number;
}

const { trees, enoughBytes } = workerData as MeasureRequest;
parentPort!.postMessage(
  trees.map((folders) => {
    const { bytes, entries, unseen } = diskUsage(folders, enoughBytes);
    return { bytes, entries, unseen };
  }),
);
