/** Limits of calls. Times in milliseconds. */

/** Longest wait for a connection. */
export const CONNECT_TIMEOUT_MS = 10_000;
/** A gateway on the network is pinged while a command runs there; one that has vanished is noticed so. */
export const KEEPALIVE = { intervalMs: 20_000, timeoutMs: 20_000 } as const;
/** Longest wait for the answer of a unary call, unless the call says otherwise. */
export const CALL_TIMEOUT_MS = 30_000;
/** A delete is answered when it is done or has been accepted; the gateway itself waits up to 20 s. */
export const DELETE_TIMEOUT_MS = 45_000;
/** Largest unary answer. */
export const MAX_RESPONSE_BYTES = 32 * 1024 * 1024;
/** Largest message of a stream: gateways send output in far smaller ones. */
export const MAX_FRAME_BYTES = 16 * 1024 * 1024;
/** Bytes of one stream that may be under way towards us (HTTP/2 flow control). */
export const STREAM_WINDOW_BYTES = 1024 * 1024;
/** Standard input is sent in messages of at most this size. */
export const STDIN_FRAME_BYTES = 64 * 1024;
