import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { basename } from "node:path";
import { runProcesses } from "../../tests/support/leaks.ts";

/** Parts of the product by what they are; `agent` is everything that runs inside, and no cost of ours. */
export type Role = "gateway" | "host" | "init";

export interface PartProcess {
  readonly pid: number;
  readonly role: Role;
}

/** Processes of the product below this run's subreaper. There is one gateway at a time in a run. */
export function partProcesses(): readonly PartProcess[] {
  const found: PartProcess[] = [];
  for (const { pid } of runProcesses()) {
    const role = roleOf(pid);
    if (role !== undefined) found.push({ pid, role });
  }
  return found;
}

/** Of a process that runs; of one that ended, none. */
export function argumentsOf(pid: number): readonly string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
  } catch {
    return [];
  }
}

function roleOf(pid: number): Role | undefined {
  try {
    if (basename(readlinkSync(`/proc/${pid}/exe`)) === "openshell-init") return "init";
    const argv = argumentsOf(pid);
    if (argv.some((word) => basename(word) === "gateway.mjs")) return "gateway";
    if (argv.some((word) => basename(word) === "host.mjs")) return "host";
  } catch {
    // It ended, or is not ours to look into.
  }
  return undefined;
}

/** Memory by role, MB. */
export type Memory = Readonly<Record<Role, number>> & { readonly total: number; readonly processes: number };

/**
 * Proportional set size: private pages, and shared ones divided by the processes that map them
 * (https://docs.kernel.org/filesystems/proc.html, smaps_rollup).
 */
export function memory(parts: readonly PartProcess[] = partProcesses()): Memory {
  const sums = { gateway: 0, host: 0, init: 0 };
  for (const { pid, role } of parts) sums[role] += pss(pid);
  return { ...sums, total: sums.gateway + sums.host + sums.init, processes: parts.length };
}

function pss(pid: number): number {
  try {
    const line = /^Pss:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, "utf8"));
    return Number(line?.[1] ?? 0) / 1000;
  } catch {
    return 0;
  }
}

/** CPU time that the processes' threads have used so far, milliseconds, by role. */
export function cpu(parts: readonly PartProcess[] = partProcesses()): Readonly<Record<Role, number>> {
  const sums = { gateway: 0, host: 0, init: 0 };
  for (const { pid, role } of parts) sums[role] += cpuOf(pid);
  return sums;
}

/** Nanosecond figures of schedstat: the ticks of /proc/PID/stat are too coarse for an idle process. */
export function cpuOf(pid: number): number {
  let total = 0;
  try {
    for (const task of readdirSync(`/proc/${pid}/task`)) {
      const [running] = readFileSync(`/proc/${pid}/task/${task}/schedstat`, "utf8").split(" ");
      total += Number(running) / 1e6;
    }
  } catch {
    // It ended.
  }
  return total;
}

/** CPU time of the children that this process has waited for, milliseconds, in ticks of 10. */
export function cpuOfEndedChildren(): number {
  const stat = readFileSync("/proc/self/stat", "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[13]) + Number(fields[14])) * 10;
}
