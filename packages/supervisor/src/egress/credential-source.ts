import {
  type CredentialGeneration,
  containsMarker,
  REDACTED,
  redactPlaceholders,
  type UsedCredential,
} from "@openshell/credentials";
import type { DenialCode } from "./denial-code.ts";
import { Fields } from "./http1/fields.ts";

/** What the data path asks about credentials. The answers of one object come from one generation. */
export interface CredentialSource {
  /** Replaces the placeholders of one request; decided only after the request itself was allowed. */
  rewrite(request: CredentialRequest): CredentialResult;
  /** Credentials that were injected earlier may still be used there. Asked about requests in flight after a change. */
  allows(identity: string, endpoint: CredentialEndpoint): boolean;
  /** Text that may carry placeholders or key names, made fit for events and errors. */
  redact(text: string): string;
}

export interface CredentialEndpoint {
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
}

export interface CredentialRequest extends CredentialEndpoint {
  readonly query: string | undefined;
  readonly fields: Fields;
}

export type CredentialResult =
  /** Nothing to replace. `scanBody`: credentials may be used here, so a placeholder in the body must not get through. */
  | { readonly kind: "none"; readonly scanBody: boolean }
  | {
      readonly kind: "injected";
      readonly fields: Fields;
      readonly path: string;
      readonly query: string | undefined;
      /** What the response is searched for. */
      readonly used: readonly UsedCredential[];
      /** Stable over rotations; part of the pool key. */
      readonly identity: string;
      readonly scanBody: boolean;
    }
  | {
      readonly kind: "denied";
      readonly status: number;
      /** credential_endpoint_mismatch | credential_unavailable | … */
      readonly code: DenialCode;
      /** Without secrets and without key names. */
      readonly message: string;
      readonly next: string;
    };

/** The credentials of one generation, as the data path sees them. `now` is the wall clock, for expiry. */
export function createCredentialSource(generation: CredentialGeneration, now: () => number): CredentialSource {
  return {
    redact,
    rewrite(request) {
      const credentials = generation.forEndpoint(endpointRequest(request, now()));
      const target = request.query === undefined ? request.path : `${request.path}?${request.query}`;
      if (!mayHoldPlaceholder(request.fields) && !containsMarker(target)) {
        return { kind: "none", scanBody: credentials.credentialed };
      }
      const { fields } = request;
      const head = credentials.rewriteHeaders(fields.names.map((name, index) => [name, fields.values[index]!]));
      if (!head.ok) return { kind: "denied", ...head };
      const line = credentials.rewriteTarget(target);
      if (!line.ok) return { kind: "denied", ...line };
      if (head.replaced + line.replaced === 0) return { kind: "none", scanBody: credentials.credentialed };
      const rewritten = new Fields();
      for (const [name, value] of head.value) rewritten.add(name, value);
      const mark = line.value.indexOf("?");
      const used = [...head.used, ...line.used];
      return {
        kind: "injected",
        fields: rewritten,
        path: mark === -1 ? line.value : line.value.slice(0, mark),
        query: mark === -1 ? undefined : line.value.slice(mark + 1),
        used,
        identity: [...new Set(used.map(({ placeholder }) => placeholder))].sort().join(" "),
        scanBody: true,
      };
    },
    allows(identity, endpoint) {
      const credentials = generation.forEndpoint(endpointRequest(endpoint, now()));
      return credentials.rewriteHeaders(identity.split(" ").map((placeholder) => ["authorization", placeholder])).ok;
    },
  };
}

function endpointRequest(
  endpoint: CredentialEndpoint,
  now: number,
): Parameters<CredentialGeneration["forEndpoint"]>[0] {
  const { secure, allowUninspected, host, port, path, provider } = endpoint;
  return {
    scheme: secure ? "https" : "http",
    verifiedTls: secure,
    allowPlaintext: allowUninspected,
    host,
    port,
    path,
    provider,
    now,
  };
}

function mayHoldPlaceholder(fields: Fields): boolean {
  for (let i = 0; i < fields.length; i += 1) {
    if (containsMarker(fields.values[i]!) || containsMarker(fields.names[i]!)) return true;
    // Basic hides what it carries in base64.
    if (/^basic[ \t]/i.test(fields.values[i]!)) return true;
  }
  return false;
}

function redact(text: string): string {
  return containsMarker(text) ? redactPlaceholders(text, REDACTED) : text;
}

/** A sandbox without any credential: a placeholder still goes nowhere. */
export const NO_CREDENTIALS: CredentialSource = {
  redact,
  allows: () => false,
  rewrite(request) {
    const { path, query, fields } = request;
    if (!mayHoldPlaceholder(fields) && !containsMarker(path) && !containsMarker(query ?? "")) {
      return { kind: "none", scanBody: false };
    }
    if (!hasMarker(fields) && !containsMarker(path) && !containsMarker(query ?? ""))
      return { kind: "none", scanBody: false };
    return {
      kind: "denied",
      status: 500,
      code: "credential_unavailable",
      message: "the placeholder names no credential of this sandbox",
      next: "Attach the provider to the sandbox and start the process again.",
    };
  },
};

function hasMarker(fields: Fields): boolean {
  return fields.values.some(containsMarker) || fields.names.some(containsMarker);
}
