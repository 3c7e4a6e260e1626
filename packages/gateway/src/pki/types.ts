/** A certificate and its key. Held in local variables and 0600 files only; never logged. */
export interface KeyPairPem {
  readonly certificatePem: string;
  /** PKCS#8. */
  readonly privateKeyPem: string;
}

/** Days of validity. */
export const Validity = {
  /** Control-plane and inspection CAs: as long as an installation may live without anybody thinking of it. */
  authority: 3_650,
  /** Server and client certificates; renewed at a start when less than a third is left. */
  leaf: 730,
} as const;
