/** Limits of live configuration delivery. Times in milliseconds. */

/** A supervisor that has not answered an update by then is cut off; its next session begins with a complete bootstrap. */
export const ACK_TIMEOUT_MS = 60_000;
/** A change may wait so long for its acknowledgement before the caller is answered anyway; the outcome is recorded later. */
export const APPLY_WAIT_MS = 5_000;
/** Whatever was lost or refused is looked at again this often. */
export const RECONCILE_INTERVAL_MS = 30_000;
/** Sessions looked at in one go, and the pause before the next ones. */
export const RECONCILE_BATCH = 16;
export const RECONCILE_PAUSE_MS = 20;
/** Waits after a snapshot that could not be built. */
export const BUILD_RETRY_FIRST_MS = 1_000;
export const BUILD_RETRY_LAST_MS = 30_000;
