import { REPORT_INTERVAL_MS } from "../readiness/limits.ts";

/** Limits of supervisor sessions. Times in milliseconds. */

/** The revision of the supervisor protocol this gateway speaks: changes are pushed. */
export const PROTOCOL_REVISION = 2;
/** Oldest revision still spoken; supervisors of 0 and 1 poll for changes. */
export const OLDEST_PROTOCOL_REVISION = 0;
/** Messages waiting for one session's stream; more means that the peer does not read, and the session ends. Above the relays that may be pending. */
export const SESSION_QUEUE = 1024;
/** Messages waiting for one host's stream: attaches of all its sandboxes come in one burst after a reconnect. */
export const HOST_QUEUE = 4096;
/** First frame of any stream after it was opened. */
export const HELLO_TIMEOUT_MS = 5_000;
/** From SessionAccepted's candidate to StartupConfigPrepared. */
export const PREPARE_TIMEOUT_MS = 45_000;
/** A bootstrap is read within this. */
export const BOOTSTRAP_BUILD_MS = 45_000;
/** A start whose configuration was refused waits so long for another one. */
export const REPAIR_WINDOW_MS = 5 * 60_000;
/** From SessionAccepted to BootstrapResult. */
export const BOOTSTRAP_TIMEOUT_MS = 60_000;
/** A host says this often that it lives, and that what it showed of its sandboxes still holds. */
export const HEARTBEAT_INTERVAL_MS = REPORT_INTERVAL_MS;
/** A host that was silent for so long is treated as gone. */
export const HEARTBEAT_LIMIT_MS = 45_000;
/** A sandbox token is good for this long. */
export const TOKEN_LIFETIME_MS = 60 * 60_000;
/** Tokens with less life than this are replaced; looked at once every {@link TOKEN_RENEWAL_TICK_MS}. */
export const TOKEN_RENEW_BEFORE_MS = 30 * 60_000;
export const TOKEN_RENEWAL_TICK_MS = 10 * 60_000;
/** A candidate, or a snapshot, larger than this is refused. */
export const MAX_CONFIG_BYTES = 3 * 1024 * 1024;
/** Characters of a failure's message that is stored or shown. */
export const MAX_FAILURE_TEXT = 1024;
/** Calls that may wait for the session of one sandbox. */
export const MAX_SESSION_WAITERS = 1024;
/** Sandboxes one host may say that it holds. */
export const MAX_HELD_SANDBOXES = 10_000;
