import { parentPort, workerData } from "node:worker_threads";
import { diskUsage } from "./disk-usage.ts";

/** What a measurement is asked. */
export interface MeasureRequest {
  readonly folders: readonly string[];
  readonly enoughBytes: number;
}

const { folders, enoughBytes } = workerData as MeasureRequest;
parentPort!.postMessage(diskUsage(folders, enoughBytes));
