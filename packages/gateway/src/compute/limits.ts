/** Limits of the sandbox life cycle. Times in milliseconds. */

/** A main process has this long between SIGTERM and SIGKILL. */
export const STOP_GRACE_MS = 10_000;
/** After the grace the driver ends what is left; the supervisor's own report is waited for so much longer. */
export const STOP_REPORT_MS = 2_000;
/** A running sandbox whose supervisor is away for longer shows it in its phase; shorter absences are re-attachments. */
export const DISCONNECT_GRACE_MS = 2_000;
/** Start-up that gets no configuration accepted within this window fails; a configuration change arms it anew. */
export const PROVISIONING_LIMIT_MS = 300_000;
/** Attempts to attach to a sandbox go on for so long: its init ends it after as long without a host. */
export const REATTACH_LIMIT_MS = 30_000;
/** First and last wait between attempts of an operation that failed for a passing reason. */
export const RETRY_FIRST_MS = 250;
export const RETRY_LAST_MS = 30_000;
/**
 * Waits of the restart policy: none after a first quick run, then this long, doubling up to the limit. A run that took at
 * least the last of these begins again without a wait.
 */
export const RESTART_FIRST_MS = 1_000;
export const RESTART_LAST_MS = 180_000;
export const STEADY_RUN_MS = 10_000;
/** A start that was cut off before the main process ran is repeated so often: more than that, and something ends every start. */
export const MAX_INTERRUPTED_STARTS = 3;
/** DeleteSandbox answers COMPLETED when the work is done so soon, else ACCEPTED; it goes on in both cases. */
export const DELETE_WAIT_MS = 20_000;
/** Sandboxes taken up at once when the gateway starts. */
export const RECOVERY_CONCURRENCY = 16;
/** Rows read at once. */
export const RECOVERY_PAGE = 500;
/** Log lines and platform events kept in memory for one sandbox. */
export const LOG_LINES = 2_000;
export const PLATFORM_EVENTS = 50;
/** Bytes of log text kept for one sandbox. */
export const LOG_BYTES = 1024 * 1024;
/** Lines kept of all sandboxes together, some 450 bytes each beside their text. */
export const ALL_LOG_LINES = 100_000;
/** Characters of their messages. */
export const ALL_LOG_BYTES = 64 * 1024 * 1024;
/** Characters of one log line; the rest is cut. */
export const LOG_LINE_CHARACTERS = 8_192;
/** Structured fields kept of one log line. */
export const LOG_FIELDS = 32;
/** Items that one watcher may lag behind before it is told that it missed some. */
export const WATCH_QUEUE = 1_024;
/** Streams that may watch one sandbox. */
export const MAX_WATCHERS = 64;
/** A sandbox that goes by itself stays so long after whoever was attached to it left: the log tells why a command failed. */
export const EPHEMERAL_GRACE_MS = 500;
