import { systemCode } from "./errors.ts";

/** Files that are not there, and files of processes that ended meanwhile (proc_pid(5)). */
const ABSENT: ReadonlySet<string | undefined> = new Set(["ENOENT", "ENOTDIR", "ESRCH"]);

/**
 * What `read` gives; undefined when what it reads does not exist. Any other failure is thrown: who has no descriptors left
 * has not seen that a file is missing, or that a process has ended.
 */
export function unlessAbsent<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    if (ABSENT.has(systemCode(error))) return undefined;
    throw error;
  }
}
