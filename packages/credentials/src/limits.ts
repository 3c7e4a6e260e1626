/** Bounds of credential handling. */
export const CredentialLimit = {
  /** Credential generations whose identities and values are remembered after they were replaced. */
  generations: 8,
  /** Values in one provider environment. */
  values: 512,
  /** Bytes of one value; larger than any key, token or PEM file that fits a header. */
  valueBytes: 64 * 1024,
  /** Shorter values are not searched for in responses and logs: they would match by chance. */
  searchedBytes: 6,
  /** Endpoints one value may be bound to. */
  endpoints: 256,
} as const;
