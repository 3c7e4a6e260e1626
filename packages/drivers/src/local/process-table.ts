import { readdirSync, readFileSync } from "node:fs";
import { unlessAbsent } from "@openshell/base/absent.ts";
import type { ProcessRecord } from "../driver.ts";

/** What the driver asks about processes; tests answer from memory. */
export interface ProcessTable {
  /** This boot of the machine. */
  readonly bootId: string;
  /**
   * Start time of a living process (field 22 of /proc/PID/stat); undefined when it is gone or only waits to be reaped.
   * Throws when that cannot be seen, for want of descriptors say: the process may well live.
   */
  startTime(pid: number): bigint | undefined;
  /** Processes that carry this title (argv[0]): a sandbox's launcher, init, and what init forked and not yet replaced. */
  withTitle(title: string): readonly number[];
  kill(pid: number, signal: NodeJS.Signals): void;
}

/** Identifies the process for the record; undefined when it is gone. */
export function recordOf(table: ProcessTable, pid: number): ProcessRecord | undefined {
  const startTime = table.startTime(pid);
  return startTime === undefined ? undefined : { bootId: table.bootId, pid, startTime };
}

/** True while exactly this process lives: a reused pid or another boot is not it. */
export function isAlive(table: ProcessTable, record: ProcessRecord): boolean {
  return record.bootId === table.bootId && table.startTime(record.pid) === record.startTime;
}

/** The machine's, through /proc. */
export function systemProcessTable(): ProcessTable {
  return {
    bootId: readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim(),
    startTime: (pid) => parseStartTime(readText(`/proc/${pid}/stat`)),
    withTitle: (title) =>
      readdirSync("/proc")
        .filter((name) => /^[0-9]+$/.test(name) && carriesTitle(name, title))
        .map(Number),
    kill(pid, signal) {
      try {
        process.kill(pid, signal);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
      }
    },
  };
}

/** The name (field 2) may hold anything, so fields are counted from its closing bracket. */
export function parseStartTime(stat: string | undefined): bigint | undefined {
  const fields = stat?.slice(stat.lastIndexOf(")") + 2).split(" ");
  const [state, started] = [fields?.[0], fields?.[19]];
  if (state === undefined || started === undefined || state === "Z" || state === "X") return undefined;
  return BigInt(started);
}

function carriesTitle(pid: string, title: string): boolean {
  if (readText(`/proc/${pid}/cmdline`)?.split("\0", 1)[0] !== title) return false;
  // Anybody on the machine can read a title and take it; only root may end other people's processes.
  const owner = /^Uid:\t([0-9]+)/m.exec(readText(`/proc/${pid}/status`) ?? "")?.[1];
  return process.getuid!() === 0 || owner === String(process.getuid!());
}

function readText(path: string): string | undefined {
  return unlessAbsent(() => readFileSync(path, "utf8"));
}
