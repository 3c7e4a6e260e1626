/**
 * What the data path asks a compiled policy, and what it gets back. One compiled policy is one immutable generation;
 * every answer names the rule and the reason, so that events, errors and `policy explain` cost nothing extra.
 */

/** The process behind a connection. Every owner of the socket is asked about; all must be allowed. */
export interface ProcessIdentity {
  /** Real path inside the sandbox. */
  readonly exe: string;
  /** Executables of its ancestors, nearest first. */
  readonly ancestors: readonly string[];
}

export interface ConnectionQuery {
  /** Lower-case host name without trailing dot, or an IP literal in canonical form (IPv6 without brackets). */
  readonly host: string;
  readonly port: number;
  readonly process: ProcessIdentity;
}

export type ConnectionDecision = ConnectionAllowed | Denied;

export interface ConnectionAllowed {
  readonly allowed: true;
  /** Smallest matching rule key. */
  readonly policy: string;
  /** `skip`: raw bytes, no inspection. `auto`: TLS is inspected, HTTP is parsed. */
  readonly tls: "auto" | "skip";
  /** CIDRs that every resolved address must be in; undefined: the default destination rules. */
  readonly allowedIps: readonly string[] | undefined;
  /** The host is named literally by the rule, so private addresses are meant (sandbox.md §2.4). */
  readonly exactHost: boolean;
  /** True when some matching endpoint has an L7 protocol: requests must be asked about with `request()`. */
  readonly inspected: boolean;
  /** An endpoint accepted plain http with credentials in so many words. */
  readonly allowUninspectedCredentials: boolean;
  /** Opaque handle of the matching endpoints, for `request()`; equality of two handles of two generations is told by `sameGrant`. */
  readonly grant: unknown;
}

export interface Denied {
  readonly allowed: false;
  /** Stable: no_policy | endpoint_not_allowed | binary_not_allowed | deny_rule | not_permitted | path_not_matched */
  readonly code: string;
  /** In the reference's words (sandbox.md §1.9). */
  readonly reason: string;
  /** What to add to the policy, one line. */
  readonly next: string;
  /** The rule that denied or came nearest, else empty. */
  readonly policy: string;
}

export interface RequestQuery {
  readonly method: string;
  /** Canonical path, percent-encoding normalised (sandbox.md §2.7), without query. */
  readonly path: string;
  /** Decoded pairs in order. */
  readonly query: readonly (readonly [string, string])[];
  /** The raw target contained %2F in its path. */
  readonly encodedSlash: boolean;
}

export type RequestDecision = RequestAllowed | (Denied & { readonly audited: boolean });

export interface RequestAllowed {
  readonly allowed: true;
  readonly policy: string;
  /** An audit endpoint would have denied it: pass it on and record the reason. */
  readonly audited: boolean;
  readonly reason: string;
  /** Index of the endpoint inside its rule, for events. */
  readonly endpoint: number;
  /** Name of the provider this endpoint binds, if it does. */
  readonly credentialProvider: string | undefined;
  readonly requestBodyCredentialRewrite: boolean;
}
