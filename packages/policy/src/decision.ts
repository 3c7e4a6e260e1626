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
  /** Key of the rule that matched; the smallest one when several did. */
  readonly policy: string;
  /** `skip`: TLS is passed on unopened (refused when `inspected`). `auto`: TLS is inspected, HTTP is parsed. */
  readonly tls: "auto" | "skip";
  /** CIDRs that every resolved address must be in; undefined: the default destination rules. */
  readonly allowedIps: readonly string[] | undefined;
  /** The host is named literally by the rule, so private addresses are meant. */
  readonly exactHost: boolean;
  /** Some matching endpoint judges requests: each must be asked about with `request()`, bytes that are no HTTP are refused. */
  readonly inspected: boolean;
  /** Every matching endpoint accepts credentials without inspection or TLS in so many words (`allow_uninspected_credentials`). */
  readonly allowUninspectedCredentials: boolean;
  /** Middlewares that fail open, select the host and cannot run: the traffic passes without them, which is to be told. */
  readonly skippedMiddlewares: readonly string[];
  /** Opaque handle of the matching endpoints, for `request()` of the same generation. `sameGrant` compares decisions of two generations. */
  readonly grant: unknown;
}

/** Why something was refused; stable, part of events and error bodies. */
export type DenialCode =
  /** The policy has no network rule at all. */
  | "no_policy"
  /** No rule names this host and port. */
  | "endpoint_not_allowed"
  /** A rule names host and port, but not this executable or one of its ancestors. */
  | "binary_not_allowed"
  /** A deny rule matches the request. */
  | "deny_rule"
  /** No allow rule matches the request. */
  | "not_permitted"
  /** No endpoint of this host and port covers the request's path. */
  | "path_not_matched"
  /** `%2F` in the path of an endpoint that does not allow it. */
  | "encoded_slash"
  /** The endpoint's protocol is one that this release cannot judge, or it asks for signing. */
  | "unsupported_protocol"
  /** A middleware that fails closed selects the host, and this release cannot run it. */
  | "unsupported_middleware"
  /** The question itself is malformed (NUL in a host, a path that is not canonical, …). */
  | "invalid_query"
  /** The grant comes from another generation. */
  | "stale_policy";

export interface Denied {
  readonly allowed: false;
  readonly code: DenialCode;
  /** Says what was refused and why; text of the agent's choosing in it is escaped. */
  readonly reason: string;
  /** What to add to the policy, one line. */
  readonly next: string;
  /** The rule that denied or came nearest, else empty. */
  readonly policy: string;
}

export interface RequestQuery {
  readonly method: string;
  /** Canonical path without query, as `canonicalTarget` gives it. */
  readonly path: string;
  /** Decoded pairs in order. */
  readonly query: readonly (readonly [string, string])[];
  /** The raw target contained %2F in its path. */
  readonly encodedSlash: boolean;
}

export type RequestDecision = RequestAllowed | RequestDenied;

export interface RequestDenied extends Denied {
  /** Always false: a request that an audit endpoint refuses is allowed with `audited` set. */
  readonly audited: false;
  /** Index of the endpoint inside its rule, -1 when none covers the request. */
  readonly endpoint: number;
}

export interface RequestAllowed {
  readonly allowed: true;
  readonly policy: string;
  /** An audit endpoint would have denied it: pass it on and record the reason. */
  readonly audited: boolean;
  /** Why an audit endpoint would have refused; empty otherwise. */
  readonly reason: string;
  /** Index of the endpoint inside its rule, for events. */
  readonly endpoint: number;
  /** Name of the provider this endpoint binds, if it does. */
  readonly credentialProvider: string | undefined;
  readonly requestBodyCredentialRewrite: boolean;
}
