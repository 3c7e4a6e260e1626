/** Limits of relays. Times in milliseconds. */

/** Relays that a host was asked to open and has not: in the whole gateway, and for one sandbox. */
export const MAX_PENDING_RELAYS = 4_096;
export const MAX_PENDING_RELAYS_PER_SANDBOX = 512;
/** From RelayOpen to the host's Relay stream. */
export const RELAY_OPEN_TIMEOUT_MS = 10_000;
/** Frames towards the host that wait for its stream; then whoever sends waits too. */
export const RELAY_DOWNLINK_QUEUE = 8;
/** Standard input travels in frames of at most this size. */
export const STDIN_FRAME_BYTES = 256 * 1024;
/** A host enforces `execution_timeout`; when it says nothing for so much longer, it counts as gone. */
export const TIMEOUT_GRACE_MS = 15_000;
/** Output of a main process that has ended is offered to attached or announced clients for so long. */
export const MAIN_OUTPUT_GRACE_MS = 30_000;
