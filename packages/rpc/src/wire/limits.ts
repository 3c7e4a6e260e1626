/** Bounds of one gRPC call, either side. */
export const WireLimits = {
  /** One message, decoded; gRPC's own default. A larger one ends the call with RESOURCE_EXHAUSTED. */
  messageBytes: 4 * 1024 * 1024,
  /** Received messages that wait for their reader, in bytes; then the stream is not read, and its flow-control window fills. */
  readAheadBytes: 256 * 1024,
  /** What a received message counts for beside its bytes, so that empty ones are not free: about its object in memory. */
  frameBytes: 64,
  /** Messages that are inflated at once, all calls together: as many as Node has threads for it; each may hold 4 MiB. */
  inflations: 4,
  /** Bytes handed to the connection and not yet taken by it; then whoever sends waits. Below the 1 MiB window of a stream. */
  writeAheadBytes: 256 * 1024,
  /** Messages up to this size are copied behind their prefix: one write costs less than two. Beyond it the copy costs more. */
  copiedBytes: 4 * 1024,
  /** Characters of a status message; peers refuse header lists beyond 8 to 16 KiB. */
  statusMessage: 2_048,
  /** Base64 characters of `grpc-status-details-bin`; larger details are left out, since they would cost the status itself. */
  statusDetails: 8_192,
  /** A call whose deadline has passed and that cannot deliver its status is reset after this. Milliseconds. */
  expiredMs: 5_000,
} as const;
