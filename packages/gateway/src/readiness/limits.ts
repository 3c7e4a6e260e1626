/** Limits of readiness evidence. Times in milliseconds. */

/** A host renews the evidence of all its sandboxes this often. */
export const REPORT_INTERVAL_MS = 5_000;
/** Evidence that was not renewed for so long says nothing any more. */
export const OBSERVATION_TTL_MS = 15_000;
/** Attempts when the sandbox changes while a change of its providers is being stored. */
export const ATTACH_ATTEMPTS = 5;
/** Providers that a sandbox may have. */
export const MAX_ATTACHED_PROVIDERS = 32;
