import type { Rlimit } from "../../boundary.ts";

/** RLIMIT_* numbers, the same on x86_64 and aarch64 (asm-generic/resource.h). */
const RLIMIT_CORE = 4;
const RLIMIT_NPROC = 6;
const RLIMIT_NOFILE = 7;

/** Processes of one sandbox; the reference's limit. */
export const DEFAULT_PIDS = 2_048;
/** What programs that use select(2) survive. */
export const SOFT_OPEN_FILES = 1_024;
/** Enough for bundlers and language servers, far below what would hurt the machine. */
export const HARD_OPEN_FILES = 16_384;

/**
 * One byte instead of none: with a core_pattern that names a program the kernel ignores a limit of 0 and runs that program
 * on the host, as root, on what the agent chose to crash; 1 is the value for which it does not (fs/coredump.c). A core
 * file of one byte is not written either.
 */
const NO_CORE = 1n;

/**
 * Resource limits of every agent process. No core dumps, since they would hold what the agent handled; RLIMIT_NPROC
 * counts within the sandbox's user namespace (Linux 5.14), so it bounds a fork bomb even where no cgroup can be made.
 */
export function agentRlimits(pids: number = DEFAULT_PIDS): readonly Rlimit[] {
  return [
    { resource: RLIMIT_CORE, soft: NO_CORE, hard: NO_CORE },
    { resource: RLIMIT_NPROC, soft: BigInt(pids), hard: BigInt(pids) },
    { resource: RLIMIT_NOFILE, soft: BigInt(SOFT_OPEN_FILES), hard: BigInt(HARD_OPEN_FILES) },
  ];
}
