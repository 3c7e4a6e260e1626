import type { Fields } from "./http1/fields.ts";

/** What the data path asks about credentials. The answer of one call comes from one generation. */
export interface CredentialSource {
  /** Replaces the placeholders of one request; decided only after the request itself was allowed. */
  rewrite(request: CredentialRequest): CredentialResult;
  /** A credential that was injected earlier may still be used there. Asked about requests in flight after a change. */
  allows(identity: string, host: string, port: number, path: string): boolean;
  /** Text that may carry placeholders or key names, made fit for events and errors. */
  redact(text: string): string;
}

export interface CredentialRequest {
  readonly host: string;
  readonly port: number;
  /** Verified TLS to the destination; false is plain http. */
  readonly secure: boolean;
  /** The endpoint accepts credentials over plain http in so many words. */
  readonly allowUninspected: boolean;
  /** Provider that the endpoint binds, if it does. */
  readonly provider: string | undefined;
  /** Canonical. */
  readonly path: string;
  readonly query: string | undefined;
  readonly fields: Fields;
}

export type CredentialResult =
  | { readonly kind: "none" }
  | {
      readonly kind: "injected";
      readonly fields: Fields;
      readonly path: string;
      readonly query: string | undefined;
      /** What must not come back: every spelling that was written, with what stands for it. */
      readonly secrets: readonly InjectedSecret[];
      /** Stable over rotations; part of the pool key. */
      readonly identity: string;
    }
  | {
      readonly kind: "denied";
      readonly status: number;
      /** credential_endpoint_mismatch | credential_unavailable | … */
      readonly code: string;
      /** Without secrets and without key names. */
      readonly message: string;
      readonly next: string;
    };

export interface InjectedSecret {
  readonly value: string;
  readonly placeholder: string;
}

/** A sandbox without any credential. */
export const NO_CREDENTIALS: CredentialSource = {
  rewrite: () => ({ kind: "none" }),
  allows: () => false,
  redact: (text) => text,
};
