/**
 * Request targets in one spelling, so that what a rule sees is what the upstream gets. RFC 3986 §6.2.2 with everything
 * ambiguous refused: control bytes, raw non-ASCII, `#`, bad escapes, `..` above the root, dot segments that only appear
 * after (further) decoding, and `%2F` unless asked for.
 */
import { PolicyLimit } from "./limits.ts";

export interface CanonicalTarget {
  readonly ok: true;
  /** Starts with `/`; percent-escapes are upper case and only where needed. */
  readonly path: string;
  /** Without `?`, byte for byte as received; undefined when the target has none. */
  readonly query: string | undefined;
  /** The path contains a kept `%2F`. */
  readonly encodedSlash: boolean;
  /** Authority of an absolute-form target, as received. */
  readonly authority: string | undefined;
  /** Scheme of an absolute-form target, lower case. */
  readonly scheme: string | undefined;
}

export interface InvalidTarget {
  readonly ok: false;
  /** What is wrong, without quoting the target. */
  readonly reason: string;
}

export interface TargetOptions {
  /** Keep `%2F` in segments instead of refusing it. */
  readonly allowEncodedSlash?: boolean;
}

const invalid = (reason: string): InvalidTarget => ({ ok: false, reason });

/** Unreserved characters, sub-delims, `:` and `@`: what a segment may hold literally (RFC 3986 §3.3). */
const LITERAL = /^[A-Za-z0-9\-._~!$&'()*+,;=:@]$/;

/** Canonicalises an origin-form or absolute-form target; other forms are refused. */
export function canonicalTarget(target: string, options: TargetOptions = {}): CanonicalTarget | InvalidTarget {
  if (target.length > PolicyLimit.pathBytes) return invalid("request-target is too long");
  if (/[^\x21-\x7e]/.test(target)) return invalid("request-target contains a control or non-ASCII byte");
  if (target.includes("#")) return invalid("request-target contains a fragment");
  let rest = target;
  let scheme: string | undefined;
  let authority: string | undefined;
  const absolute = /^([A-Za-z][A-Za-z0-9+.-]*):\/\/([^/?]*)(.*)$/.exec(target);
  if (absolute !== null) {
    scheme = (absolute[1] as string).toLowerCase();
    authority = absolute[2] as string;
    rest = absolute[3] as string;
    if (rest === "" || rest.startsWith("?")) rest = `/${rest}`;
  }
  if (!rest.startsWith("/")) return invalid("request-target does not start with '/'");
  const mark = rest.indexOf("?");
  const query = mark < 0 ? undefined : rest.slice(mark + 1);
  const path = canonicalPath(mark < 0 ? rest : rest.slice(0, mark), options.allowEncodedSlash === true);
  return typeof path === "string" ? invalid(path) : { ok: true, ...path, query, authority, scheme };
}

function canonicalPath(raw: string, allowEncodedSlash: boolean): { path: string; encodedSlash: boolean } | string {
  const output: string[] = [];
  let encodedSlash = false;
  let directory = false;
  for (const segment of raw.slice(1).split("/")) {
    // Parameters are cut before dots are looked at: servers drop `;x` and then see `..`.
    const cut = segment.indexOf(";");
    const decoded = decodeSegment(cut < 0 ? segment : segment.slice(0, cut));
    if (typeof decoded === "string") return decoded;
    if (decoded.slash && !allowEncodedSlash) return "request-target contains an encoded '/' (%2F)";
    encodedSlash ||= decoded.slash;
    directory = false;
    if (decoded.text === "") directory = true;
    else if (decoded.text === ".") directory = true;
    else if (decoded.text === "..") {
      if (output.length === 0) return "request-target leaves the root with '..'";
      output.pop();
      directory = true;
    } else {
      if (decoded.text.includes("%") && hidesDotSegment(decoded.text)) {
        return "request-target hides a dot segment behind an encoded character";
      }
      output.push(decoded.text);
    }
  }
  const path = `/${output.join("/")}`;
  return { path: directory && output.length > 0 ? `${path}/` : path, encodedSlash };
}

/** Overlong UTF-8 of `.`, `/` and `\\`, as bytes: no encoder makes them, and lenient decoders take them (CAPEC-80). */
const OVERLONG: readonly (readonly [pattern: RegExp, character: string])[] = [
  [/\xc0\xae|\xe0\x80\xae|\xf0\x80\x80\xae/g, "."],
  [/\xc0\xaf|\xe0\x80\xaf|\xf0\x80\x80\xaf/g, "/"],
  [/\xc1\x9c|\xe0\x81\x9c|\xf0\x80\x81\x9c/g, "\\"],
];
/** Servers behind a proxy of their own decode twice; nobody decodes more often. */
const DECODE_ROUNDS = 3;

/** Would a dot segment appear once somebody decodes the segment again, or takes `\` for `/` as some servers do? */
function hidesDotSegment(segment: string): boolean {
  let text = segment;
  for (let round = 0; round < DECODE_ROUNDS && text.includes("%"); round += 1) {
    text = text.replaceAll(/%([0-9A-Fa-f]{2})/g, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
    for (const [pattern, character] of OVERLONG) text = text.replaceAll(pattern, character);
    if (text.split(/[/\\]/).some((part) => /^\.\.?(;|$)/.test(part))) return true;
  }
  return false;
}

/** One segment with needless escapes removed and the others in upper case; `%2F` stays. */
function decodeSegment(segment: string): { text: string; slash: boolean } | string {
  let text = "";
  let slash = false;
  for (let at = 0; at < segment.length; at += 1) {
    const character = segment[at] as string;
    if (character !== "%") {
      text += LITERAL.test(character) ? character : percent(character.charCodeAt(0));
      continue;
    }
    const digits = segment.slice(at + 1, at + 3);
    if (!/^[0-9A-Fa-f]{2}$/.test(digits)) return "request-target contains a malformed percent-escape";
    const code = Number.parseInt(digits, 16);
    if (code < 0x20 || code === 0x7f) return "request-target contains an encoded control byte";
    const plain = String.fromCharCode(code);
    if (code === 0x2f) {
      slash = true;
      text += "%2F";
    } else if (code === 0x3b) {
      // A decoded ';' would be cut as a parameter by the next reader; it stays escaped.
      text += "%3B";
    } else text += code < 0x80 && LITERAL.test(plain) ? plain : percent(code);
    at += 2;
  }
  return { text, slash };
}

function percent(code: number): string {
  return `%${code.toString(16).toUpperCase().padStart(2, "0")}`;
}

/**
 * Decoded pairs of a raw query, in order. `+` is a space, escapes are strict, the result must be UTF-8 (also a lone `%`
 * is refused): a query that two readers could read differently gives undefined.
 */
export function parseQuery(raw: string | undefined): [string, string][] | undefined {
  if (raw === undefined || raw === "") return [];
  const pairs: [string, string][] = [];
  for (const part of raw.split("&")) {
    if (part === "") continue;
    const equals = part.indexOf("=");
    const key = decodeComponent(equals < 0 ? part : part.slice(0, equals));
    const value = decodeComponent(equals < 0 ? "" : part.slice(equals + 1));
    if (key === undefined || value === undefined) return undefined;
    pairs.push([key, value]);
  }
  return pairs;
}

function decodeComponent(text: string): string | undefined {
  try {
    // Throws on malformed escapes and on bytes that are no UTF-8.
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    return undefined;
  }
}
