/** Numbers of the supervisor outside egress, each with its reason. */
export const Limits = {
  /** Revision of the protocol in supervisor.proto that this host speaks. */
  protocolRevision: 2,
  /** Local reconnects: the gateway is on this machine, so a quarter of a second is long. Milliseconds. */
  reconnectMaximumMs: 250,
  reconnectMinimumMs: 20,
  /**
   * A host without sandboxes ends when no gateway has been there for this long: only a gateway could give it any, and one
   * that was killed before it knew the host by its hello would leave it behind. A gateway that is there starts another.
   */
  lonelyMs: 60_000,
  /** What a main process wrote and nobody has read yet; the reference keeps as much. */
  outputLogBytes: 1024 * 1024,
  /** How long output waits for an awaited attachment before the oldest may be lost. */
  awaitAttachmentMs: 30_000,
  /** Frames of one relay waiting for the gateway; with 64 KiB reads at most 1 MiB. */
  relayQueueFrames: 16,
  /** Input that a process has not taken yet; beyond it the relay fails instead of growing. */
  stdinPendingBytes: 4 * 1024 * 1024,
  /** After the exit: how long a grandchild may hold the output open before delivery counts as failed. */
  outputAfterExitMs: 30_000,
  /** Between SIGTERM and SIGKILL at a timeout. */
  timeoutGraceMs: 100,
  /** Relays of one sandbox at once. */
  relays: 256,
  /** Log lines waiting for the gateway; beyond it lines are dropped and counted. */
  logQueueLines: 1_024,
  logBatchLines: 256,
  logBatchBytes: 256 * 1024,
  /** Lines are sent together after this time, so that `logs -f` still feels immediate. */
  logFlushMs: 50,
  /** Sandboxes of one host. */
  sandboxes: 4_096,
  /** A third of how long the gateway believes an observation, so that two may be late. */
  heartbeatMs: 5_000,
  /** An update that takes longer is given up; nothing of it takes effect later. */
  applyTimeoutMs: 60_000,
} as const;
