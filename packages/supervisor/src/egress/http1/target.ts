import { canonicalTarget as canonical, parseQuery } from "@openshell/policy/canonical-target.ts";
import { type Authority, parseAuthority } from "../host-name.ts";
import { MAX_TARGET_LENGTH } from "../limits.ts";
import { HttpParseError } from "./head.ts";

/** A request target in its one canonical form. */
export interface CanonicalTarget {
  /** What goes upstream and what policy decides on. */
  readonly path: string;
  /** After `?`, byte for byte; undefined without one. */
  readonly query: string | undefined;
  readonly encodedSlash: boolean;
  /** Of an absolute-form target. */
  readonly scheme: "http" | "https" | undefined;
  readonly authority: Authority | undefined;
}

// Nothing to normalise: no escapes, no parameters, no empty or dot segments.
const PLAIN = /^(?:\/(?![./])[A-Za-z0-9\-._~!$&'()*+,=:@]*)+$/;

/**
 * Origin form and absolute form; others throw HttpParseError with a `target_*` rule. Encoded slashes are kept and
 * reported: who allows them is the policy's business.
 */
export function canonicalTarget(raw: string): CanonicalTarget {
  if (raw.length <= MAX_TARGET_LENGTH && PLAIN.test(raw)) {
    return { path: raw, query: undefined, encodedSlash: false, scheme: undefined, authority: undefined };
  }
  const target = canonical(raw, { allowEncodedSlash: true });
  if (!target.ok) throw new HttpParseError("target_form", target.reason);
  const { path, query, encodedSlash, scheme } = target;
  if (scheme === undefined) return { path, query, encodedSlash, scheme, authority: undefined };
  if (scheme !== "http" && scheme !== "https")
    throw new HttpParseError("target_scheme", "the URI scheme is not http or https");
  // User information has no place in a request target (RFC 9110 §4.2.4); parseAuthority takes no `@`.
  const authority = parseAuthority(target.authority ?? "", scheme === "https" ? 443 : 80);
  if (authority === undefined) throw new HttpParseError("target_form", "the URI has no valid host");
  return { path, query, encodedSlash, scheme, authority };
}

/** Decoded pairs in order: `+` is a space, escapes are strict, the result is UTF-8. Throws HttpParseError. */
export function decodeQuery(query: string | undefined): readonly (readonly [string, string])[] {
  const pairs = parseQuery(query);
  if (pairs === undefined)
    throw new HttpParseError("query_encoding", "the query is not well-formed percent-encoded UTF-8");
  return pairs;
}
