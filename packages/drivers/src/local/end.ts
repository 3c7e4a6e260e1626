import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Clock } from "@openshell/base";
import { DriverError, type ProcessRecord } from "../driver.ts";
import { isAlive, type ProcessTable } from "./process-table.ts";

/** Killing init ends everything in its pid namespace within milliseconds; a process stuck in the kernel can take longer. */
const END_LIMIT_MS = 5_000;
const FIRST_PAUSE_MS = 1;
const LONGEST_PAUSE_MS = 50;

/** Kills the processes and waits until they are gone. Throws `stop_failed` after 5 s. */
export async function endProcesses(
  table: ProcessTable,
  records: readonly ProcessRecord[],
  clock: Clock,
): Promise<void> {
  const deadline = clock.monotonic() + END_LIMIT_MS;
  for (const record of records) if (isAlive(table, record)) table.kill(record.pid, "SIGKILL");
  for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(pause * 2, LONGEST_PAUSE_MS)) {
    const left = records.filter((record) => isAlive(table, record));
    if (left.length === 0) return;
    if (clock.monotonic() >= deadline) {
      throw new DriverError("stop_failed", `processes ${left.map((record) => record.pid).join(", ")} do not end`, {
        retryable: true,
        next: "Retry; a process that waits for a device or a network file system ends when that answers",
      });
    }
    await clock.sleep(pause);
  }
}

/** A version 1 freezer holds even SIGKILL back until it thaws. */
export function thaw(cgroups: readonly string[]): void {
  // The launcher makes `workload` for the agent's processes; init freezes that one alone.
  for (const folder of cgroups.flatMap((path) => [path, join(path, "workload")])) {
    const state = join(folder, "freezer.state");
    if (!existsSync(state)) continue;
    try {
      writeFileSync(state, "THAWED");
    } catch {
      // Not ours to thaw, or gone meanwhile: waiting for the end decides.
    }
  }
}
