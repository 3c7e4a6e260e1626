import { systemCode } from "./errors.ts";

/** Files that are not there, and files of processes that ended meanwhile (proc_pid(5)). */
const ABSENT: ReadonlySet<string | undefined> = new Set(["ENOENT", "ENOTDIR", "ESRCH"]);

/** What is hidden from this user, as by the `hidepid` option of /proc: for it, the same as absent. */
const HIDDEN: ReadonlySet<string | undefined> = new Set(["EACCES", "EPERM"]);

/**
 * What `read` gives; undefined when what it reads does not exist or is hidden from this user. Any other failure is thrown: who has no descriptors left
 * has not seen that a file is missing, or that a process has ended.
 */
export function unlessAbsent<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    const code = systemCode(error);
    if (ABSENT.has(code) || HIDDEN.has(code)) return undefined;
    throw error;
  }
}
