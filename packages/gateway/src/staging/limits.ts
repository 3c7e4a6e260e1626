/** Limits of staged archives. Times in milliseconds. */
export const StagingLimit = {
  /** A slot whose token nobody presented is given up; as OpenShell 0.1 does. */
  slotMs: 30 * 60_000,
  /** Slots at once, of a workspace and of the gateway: each may be filled up to the driver's limit. */
  slotsOfWorkspace: 16,
  slots: 64,
  /** Bytes of a token before it is encoded. */
  tokenBytes: 32,
  /** Linux's NAME_MAX. */
  fileNameBytes: 255,
} as const;
