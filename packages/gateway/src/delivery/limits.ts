/** Limits of live configuration delivery. Times in milliseconds. */

/** A supervisor that has not answered an update by then is cut off; its next session begins with a complete bootstrap. */
export const ACK_TIMEOUT_MS = 60_000;
/** A change may wait so long for its acknowledgement before the caller is answered anyway; the outcome is recorded later. */
export const APPLY_WAIT_MS = 5_000;
/** Longest wait for an outcome that a caller may ask for. */
export const MAX_APPLY_WAIT_MS = 60_000;
/** Calls that may wait for outcomes; those beyond are answered at once, as if their time were over. */
export const MAX_OUTCOME_WAITERS = 4_096;
/** Whatever was lost, refused or never announced is looked at again this often; the first time after one to two intervals. */
export const RECONCILE_INTERVAL_MS = 30_000;
/** Looks for sessions whose reconcile is due, an interval: they are spread over it. */
export const RECONCILE_TICKS = 30;
/** Snapshots built at once. Reads of the store are quick, so that more would only interleave them. */
export const BUILD_PERMITS = 8;
/** Of these, kept free of changes that concern many sandboxes: a change of one does not wait behind them. */
export const RESERVED_PERMITS = 2;
/** Building goes on for so long before everything else of the process gets a turn. */
export const BUILD_SLICE_MS = 5;
/** A snapshot that could not be read by then is given up for now. */
export const BUILD_LIMIT_MS = 20_000;
/** Waits after a snapshot that could not be built or an outcome that could not be stored; a new change ends them early. */
export const BUILD_RETRY_FIRST_MS = 1_000;
export const BUILD_RETRY_LAST_MS = 30_000;
