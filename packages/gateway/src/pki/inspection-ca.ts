import type { Secret } from "../auth/secret.ts";

/** The CA that signs the certificates which a workspace's sandboxes see in inspected TLS. */
export interface InspectionCaMaterial {
  readonly certificatePem: string;
  /** PKCS#8. Goes to the hosts of the workspace and nowhere else. */
  readonly privateKeyPem: Secret;
}

export interface InspectionCas {
  /** The CA of a workspace; made and stored (encrypted) at the first call. Concurrent calls get the same one. */
  of(workspace: string): Promise<InspectionCaMaterial>;
}
