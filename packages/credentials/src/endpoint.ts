/**
 * Placeholders of one request replaced by the credentials that its endpoint may have. All or nothing: on the first
 * placeholder that cannot be resolved the request fails as it is, with no part replaced.
 */
import { canonicalHost } from "@openshell/policy/ip.ts";
import { base64Decode, base64Encode } from "./base64.ts";
import { type Binding, percentEncode, type Target } from "./binding.ts";
import { toByteText } from "./byte-text.ts";
import { containsMarker, type Placeholder, parsePlaceholder, splitPlaceholders } from "./placeholder.ts";
import { Secret } from "./secret.ts";

export interface EndpointRequest {
  readonly scheme: "https" | "http";
  /** The upstream's certificate was verified. */
  readonly verifiedTls: boolean;
  /** The policy accepts credentials without TLS in so many words. */
  readonly allowPlaintext: boolean;
  readonly host: string;
  readonly port: number;
  /** Canonical path without query, before any replacement. */
  readonly path: string;
  /** Provider that the deciding policy endpoint binds, if it does. */
  readonly provider?: string | undefined;
  /** Wall clock, milliseconds, for expiry. */
  readonly now: number;
}

/** A credential that went upstream with this request, for the search of the response. */
export interface UsedCredential {
  readonly placeholder: string;
  readonly secret: Secret;
  /** Name of the environment variable: for the state of the process, not for logs. */
  readonly key: string;
  readonly provider: string;
}

export type CredentialFailureCode =
  /** Unknown, expired, replaced or unusable. */
  | "credential_unavailable"
  /** Bound to another endpoint: a HIGH finding. */
  | "credential_endpoint_mismatch"
  /** Plain http, and the policy does not accept that. */
  | "credential_requires_tls"
  /** A marker at a place where nothing is replaced. */
  | "invalid_credential_placeholder";

/** Texts carry no key, value or placeholder: they go to the agent and into logs. */
export interface CredentialFailure {
  readonly ok: false;
  readonly code: CredentialFailureCode;
  /** HTTP status for the client. */
  readonly status: 400 | 403 | 500;
  readonly message: string;
  readonly next: string;
}

export type Rewritten<T> =
  | { readonly ok: true; readonly value: T; readonly replaced: number; readonly used: readonly UsedCredential[] }
  | CredentialFailure;

/** Values are byte text: one character of U+0000–U+00FF a byte, as they are read and written on the wire. */
export type HeaderList = readonly (readonly [name: string, value: string])[];

/** Headers that frame or route a request never carry a credential. */
const NEVER = new Set([
  "host",
  "content-length",
  "transfer-encoding",
  "connection",
  "keep-alive",
  "te",
  "trailer",
  "upgrade",
  "expect",
  "proxy-connection",
  "proxy-authorization",
]);

export class EndpointCredentials {
  readonly #bindings: ReadonlyMap<string, Binding>;
  readonly #request: EndpointRequest;
  readonly #target: Target;

  constructor(bindings: ReadonlyMap<string, Binding>, request: EndpointRequest) {
    this.#bindings = bindings;
    this.#request = request;
    this.#target = {
      host: canonicalHost(request.host),
      port: request.port,
      path: request.path,
      provider: request.provider,
    };
  }

  /** Some credential may be used here: the bodies of such requests are scanned for markers. */
  get credentialed(): boolean {
    for (const binding of this.#bindings.values()) if (binding.covers(this.#target)) return true;
    return false;
  }

  /**
   * Replaces a placeholder that is a header's whole value, or the one word after a scheme (`Bearer …`), or part of the
   * user or password of Basic. A marker anywhere else fails the request.
   */
  rewriteHeaders(headers: HeaderList): Rewritten<[string, string][]> {
    const used = new Map<string, UsedCredential>();
    const result: [string, string][] = [];
    let replaced = 0;
    for (const [name, value] of headers) {
      const basic = /^(basic)[ \t]+([A-Za-z0-9+/]+={0,2})[ \t]*$/i.exec(value);
      const decoded = basic === null ? undefined : base64Decode(basic[2] as string);
      const hasMarker = containsMarker(value) || containsMarker(name);
      const inBasic = decoded !== undefined && containsMarker(decoded);
      if (!hasMarker && !inBasic) {
        result.push([name, value]);
        continue;
      }
      if (NEVER.has(name.toLowerCase()) || containsMarker(name)) return misplaced();
      const rewritten = inBasic ? this.#basic(basic?.[1] as string, decoded, used) : this.#header(value, used);
      if (typeof rewritten !== "string") return rewritten;
      replaced += 1;
      result.push([name, rewritten]);
    }
    return { ok: true, value: result, replaced, used: [...used.values()] };
  }

  /**
   * Replaces placeholders inside path segments and query values of a canonical target (`/path?query`). The result is
   * percent-encoded; a value that could change the meaning of a path is refused.
   */
  rewriteTarget(target: string): Rewritten<string> {
    const used = new Map<string, UsedCredential>();
    if (!containsMarker(target)) return { ok: true, value: target, replaced: 0, used: [] };
    const mark = target.indexOf("?");
    const path = mark < 0 ? target : target.slice(0, mark);
    const segments: string[] = [];
    let replaced = 0;
    for (const segment of path.split("/")) {
      const rewritten = this.#inside(segment, used, isPathSafe);
      if (typeof rewritten !== "string") return rewritten;
      if (rewritten !== segment) replaced += 1;
      segments.push(rewritten);
    }
    if (mark < 0) return this.#finish(segments.join("/"), replaced, used);
    const pairs: string[] = [];
    for (const pair of target.slice(mark + 1).split("&")) {
      const equals = pair.indexOf("=");
      const name = equals < 0 ? pair : pair.slice(0, equals);
      if (containsMarker(name)) return misplaced();
      if (equals < 0) {
        pairs.push(pair);
        continue;
      }
      const value = pair.slice(equals + 1);
      const rewritten = this.#inside(value, used, () => true);
      if (typeof rewritten !== "string") return rewritten;
      if (rewritten !== value) replaced += 1;
      pairs.push(`${name}=${rewritten}`);
    }
    return this.#finish(`${segments.join("/")}?${pairs.join("&")}`, replaced, used);
  }

  #finish(value: string, replaced: number, used: ReadonlyMap<string, UsedCredential>): Rewritten<string> {
    return containsMarker(value) ? misplaced() : { ok: true, value, replaced, used: [...used.values()] };
  }

  #header(value: string, used: Map<string, UsedCredential>): string | CredentialFailure {
    const trimmed = value.trim();
    const space = /^([^ \t]+)[ \t]+([^ \t]+)$/.exec(trimmed);
    const candidate = space === null ? trimmed : (space[2] as string);
    const placeholder = parsePlaceholder(candidate);
    if (placeholder === undefined || (space !== null && containsMarker(space[1] as string))) return misplaced();
    const secret = this.#resolve(placeholder, used);
    if (typeof secret !== "string") return secret;
    return space === null ? toByteText(secret) : `${space[1]} ${toByteText(secret)}`;
  }

  #basic(scheme: string, decoded: string, used: Map<string, UsedCredential>): string | CredentialFailure {
    let text = "";
    // Canonical placeholders contain colons, so they are found before user and password are told apart.
    for (const piece of splitPlaceholders(decoded)) {
      const parts = piece.placeholder === undefined ? piece.text.split(":") : [piece.text];
      for (const [index, part] of parts.entries()) {
        if (index > 0) text += ":";
        const placeholder = piece.placeholder ?? parsePlaceholder(part);
        const resolved = placeholder === undefined ? part : this.#resolve(placeholder, used);
        if (typeof resolved !== "string") return resolved;
        text += resolved;
      }
    }
    if (containsMarker(text)) return misplaced();
    const encoded = base64Encode(text);
    // The encoded pair is as good as the password: it is searched for in the response as well.
    const first = [...used.values()][0];
    if (first !== undefined) used.set(`basic ${encoded}`, { ...first, secret: new Secret(encoded) });
    return `${scheme} ${encoded}`;
  }

  /** Placeholders anywhere in a percent-encoded component. */
  #inside(
    component: string,
    used: Map<string, UsedCredential>,
    isSafe: (secret: string) => boolean,
  ): string | CredentialFailure {
    if (!containsMarker(component)) return component;
    const plain = decodeUnreserved(component);
    const whole = parsePlaceholder(plain);
    const pieces = whole === undefined ? splitPlaceholders(plain) : [{ text: plain, placeholder: whole }];
    let result = "";
    for (const piece of pieces) {
      if (piece.placeholder === undefined) {
        result += piece.text;
        continue;
      }
      const secret = this.#resolve(piece.placeholder, used);
      if (typeof secret !== "string") return secret;
      if (!isSafe(secret)) return unavailable("the credential cannot be used in a path");
      result += percentEncode(secret);
    }
    return result;
  }

  #resolve(placeholder: Placeholder, used: Map<string, UsedCredential>): string | CredentialFailure {
    const binding = this.#bindings.get(placeholder.key);
    if (binding === undefined) return unavailable("the placeholder names no credential of this sandbox");
    const { epoch, handle } = placeholder;
    // Without an epoch anybody who knows a name would get whatever has that name now.
    const current = handle === undefined ? epoch !== undefined && epoch === binding.epoch : handle === binding.handle;
    if (!current) return unavailable("the placeholder belongs to a credential that was replaced");
    if (!binding.covers(this.#target)) {
      return {
        ok: false,
        code: "credential_endpoint_mismatch",
        status: 403,
        message: "the credential is bound to another endpoint",
        next: "Send it only to the endpoints of its provider, or bind the provider to this endpoint in the policy",
      };
    }
    const { scheme, verifiedTls, allowPlaintext } = this.#request;
    if (!(scheme === "https" && verifiedTls) && !allowPlaintext) {
      return {
        ok: false,
        code: "credential_requires_tls",
        status: 403,
        message: "credentials are sent over verified TLS only",
        next: "Use https, or set allow_uninspected_credentials: true on the endpoint",
      };
    }
    if (!binding.isResolvable(this.#request.now)) return unavailable("the credential has expired or cannot be sent");
    used.set(binding.name, {
      placeholder: binding.placeholder,
      secret: binding.secret,
      key: binding.name,
      provider: binding.provider,
    });
    return binding.secret.reveal();
  }
}

/** A marker that is still in a request head after rewriting; the head must not be sent. */
export function headLeftover(head: string): CredentialFailure | undefined {
  return containsMarker(head) ? misplaced() : undefined;
}

function misplaced(): CredentialFailure {
  return {
    ok: false,
    code: "invalid_credential_placeholder",
    status: 400,
    message: "a credential placeholder stands where none is replaced",
    next: "Use it as the whole value of a header, after a scheme such as Bearer, or in Basic authentication",
  };
}

function unavailable(message: string): CredentialFailure {
  return {
    ok: false,
    code: "credential_unavailable",
    status: 500,
    message,
    next: "Check the provider with `openshell provider get`; start the process again if the credential was replaced",
  };
}

/** A secret in a path must stay one segment in every reader's eyes. */
function isPathSafe(secret: string): boolean {
  return secret !== "." && secret !== ".." && !/[/\\?#\r\n\0]/.test(secret);
}

/** Escapes of characters that need none, so that a percent-encoded marker is seen; others stay as they are. */
function decodeUnreserved(text: string): string {
  return text.replaceAll(/%([0-9A-Fa-f]{2})/g, (encoded, hex: string) => {
    const character = String.fromCharCode(Number.parseInt(hex, 16));
    return /[A-Za-z0-9\-._~:]/.test(character) ? character : encoded;
  });
}
