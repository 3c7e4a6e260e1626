import { readFileSync } from "node:fs";
import { unlessAbsent } from "./absent.ts";

/**
 * A process, told apart from every other one before or after it: pids are used again, so the start time belongs to the
 * identity, and both begin anew with each boot.
 */
export interface ProcessIdentity {
  readonly pid: number;
  /** Clock ticks from boot to its start, decimal: field 22 of /proc/PID/stat (proc_pid_stat(5)). */
  readonly startTime: string;
  /** /proc/sys/kernel/random/boot_id. */
  readonly bootId: string;
}

let bootId: string | undefined;

/** The identity of the running boot, which no process outlives: read once. */
export function currentBootId(): string {
  bootId ??= readFileSync("/proc/sys/kernel/random/boot_id", "latin1").trim();
  return bootId;
}

/** The process with this pid, or undefined when there is none or it has ended and only its status is left. */
export function identifyProcess(pid: number): ProcessIdentity | undefined {
  const startTime = startTimeOf(pid);
  return startTime === undefined ? undefined : { pid, startTime, bootId: currentBootId() };
}

/** True while exactly this process runs. */
export function isAlive(identity: ProcessIdentity): boolean {
  return identity.pid > 0 && identity.bootId === currentBootId() && startTimeOf(identity.pid) === identity.startTime;
}

function startTimeOf(pid: number): string | undefined {
  const stat = unlessAbsent(() => readFileSync(`/proc/${pid}/stat`, "latin1"));
  if (stat === undefined) return undefined;
  // The second field is the name in brackets and may hold anything; the rest follows its last bracket.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const state = fields[0];
  return state === "Z" || state === "X" ? undefined : fields[19];
}
