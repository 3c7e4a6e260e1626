/** One credential with the places where it may be used. */

import { HostTrie, isHostPattern } from "@openshell/policy/host-pattern.ts";
import { canonicalHost } from "@openshell/policy/ip.ts";
import { compilePathSelector, type PathSelector } from "@openshell/policy/path-selector.ts";
import { base64Encode } from "./base64.ts";
import { hash64 } from "./hash64.ts";
import { CredentialLimit } from "./limits.ts";
import { formatPlaceholder } from "./placeholder.ts";
import type { Secret } from "./secret.ts";
import type { ProviderValue } from "./snapshot.ts";

interface Place {
  readonly host: string;
  readonly pattern: HostTrie | undefined;
  readonly port: number;
  readonly path: PathSelector;
}

export interface Target {
  readonly host: string;
  readonly port: number;
  /** Canonical path without query. */
  readonly path: string;
  /** Provider that the deciding policy endpoint binds. */
  readonly provider: string | undefined;
}

export class Binding {
  readonly name: string;
  readonly provider: string;
  readonly secret: Secret;
  readonly epoch: string;
  readonly handle: string | undefined;
  readonly placeholder: string;
  readonly expiresAt: number | undefined;
  readonly #places: readonly Place[];

  constructor(value: ProviderValue) {
    this.name = value.name;
    this.provider = value.provider;
    this.secret = value.value;
    this.handle = value.handle;
    this.expiresAt = value.expiresAt;
    this.#places = value.endpoints.map(({ host, port, path }) => {
      const name = canonicalHost(host);
      const pattern = isHostPattern(name) ? new HostTrie() : undefined;
      pattern?.add(name, 0);
      return { host: name, pattern, port, path: compilePathSelector(path) };
    });
    // The epoch follows from what the credential is and where it may go, not from a counter: a supervisor that starts
    // anew gives it the same one, so placeholders of running processes stay valid over rotations and restarts.
    const boundary = this.#places.map((place) => `${place.host} ${place.port} ${place.path.source}`).sort();
    this.epoch = hash64([value.provider, value.name, value.identity, ...boundary]);
    this.placeholder = formatPlaceholder(value.name, this.epoch, value.handle);
  }

  covers(target: Target): boolean {
    if (this.#places.length === 0) return this.provider !== "" && target.provider === this.provider;
    return this.#places.some(
      (place) =>
        place.port === target.port &&
        (place.pattern === undefined ? place.host === target.host : place.pattern.find(target.host).length > 0) &&
        place.path.matches(target.path),
    );
  }

  /** Control characters would end or break a field line (RFC 9110 §5.5); an expired value must not be used. */
  isResolvable(now: number): boolean {
    if (this.expiresAt !== undefined && this.expiresAt <= now) return false;
    return !/[\x00-\x08\x0a-\x1f\x7f]/.test(this.secret.reveal());
  }

  /** Spellings under which the value could show up in a text. */
  searchedForms(): string[] {
    return searchedForms(this.secret.reveal());
  }
}

export function bindingOf(value: ProviderValue): Binding {
  return new Binding(value);
}

/**
 * The value itself, percent-encoded in both cases and as in forms, as inside a JSON string with and without escaped
 * slashes, in base64 and in hexadecimal; too short ones are left out.
 */
export function searchedForms(value: string): string[] {
  if (new TextEncoder().encode(value).length < CredentialLimit.searchedBytes) return [];
  const json = JSON.stringify(value).slice(1, -1);
  const percent = percentEncode(value);
  const lower = percent.replaceAll(/%[0-9A-F]{2}/g, (encoded) => encoded.toLowerCase());
  const plain = [value, json, json.replaceAll("/", "\\/"), percent, lower, percent.replaceAll("%20", "+")];
  return [...new Set([...plain, ...binaryForms(value)])];
}

/**
 * Base64, of both alphabets, of any text that holds the value: depending on what comes before, in one of three
 * alignments, of which the digits are searched that the value alone decides. And hexadecimal, as debuggers print it.
 */
function binaryForms(value: string): string[] {
  const bytes = new TextEncoder().encode(value);
  const forms = [0, 1, 2].map((before) =>
    base64Encode("\0".repeat(before) + value).slice(
      Math.ceil((before * 8) / 6),
      Math.floor(((before + bytes.length) * 8) / 6),
    ),
  );
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [...forms, ...forms.map((form) => form.replaceAll("+", "-").replaceAll("/", "_")), hex, hex.toUpperCase()];
}

/** RFC 3986: everything but unreserved characters, as UTF-8. */
export function percentEncode(value: string): string {
  let encoded = "";
  for (const byte of new TextEncoder().encode(value)) {
    const character = String.fromCharCode(byte);
    encoded += /[A-Za-z0-9\-._~]/.test(character) ? character : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }
  return encoded;
}
