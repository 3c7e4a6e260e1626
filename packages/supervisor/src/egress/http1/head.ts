import { isUtf8 } from "node:buffer";
import { MAX_CONTENT_LENGTH, MAX_FIELDS } from "../limits.ts";
import { Fields, isToken, tokenList } from "./fields.ts";

/**
 * Strict parsing of HTTP/1 heads (RFC 9112). Whatever two readers could understand differently is refused: that is what
 * request smuggling is made of. The bytes of a head are never passed on; it is written anew from what is parsed here.
 */

export class HttpParseError extends Error {
  /** Stable name of the broken rule, for events and tests. */
  readonly rule: string;

  constructor(rule: string, message: string) {
    super(message);
    this.name = "HttpParseError";
    this.rule = rule;
  }
}

export type Framing =
  | { readonly kind: "none" }
  | { readonly kind: "length"; readonly length: number }
  | { readonly kind: "chunked" }
  | { readonly kind: "until_close" };

export interface RequestHead {
  readonly method: string;
  readonly target: string;
  /** Minor version: HTTP/1.0 or HTTP/1.1. */
  readonly minor: 0 | 1;
  readonly fields: Fields;
  readonly host: string | undefined;
  readonly framing: Framing;
  /** Lower-case options of the Connection field. */
  readonly connection: readonly string[];
  readonly keepAlive: boolean;
}

export interface ResponseHead {
  readonly status: number;
  readonly reason: string;
  readonly minor: 0 | 1;
  readonly fields: Fields;
  readonly framing: Framing;
  readonly connection: readonly string[];
  /** The connection may carry another message after this one, as far as the head says. */
  readonly keepAlive: boolean;
}

/** Index after the empty line that ends a head; -1 when there is none yet. `from` is where new bytes begin. */
export function findHeadEnd(bytes: Buffer, from = 0): number {
  const index = bytes.indexOf("\r\n\r\n", Math.max(0, from - 3), "latin1");
  return index === -1 ? -1 : index + 4;
}

/** True when a head that is still incomplete can never become valid: a bare line feed or a NUL says that early. */
export function isHopeless(bytes: Buffer): boolean {
  if (bytes.length > 0 && (bytes[0] === 0x0d || bytes[0] === 0x0a)) return true;
  const feed = bytes.indexOf(0x0a);
  return (feed !== -1 && (feed === 0 || bytes[feed - 1] !== 0x0d)) || bytes.includes(0);
}

// Bytes that may stand in a head at all; CR and LF only as a pair.
const FOREIGN = /[^\t\r\n\x20-\x7e\x80-\xff]|\r(?!\n)|(?<!\r)\n/;

function lines(bytes: Buffer): string[] {
  const text = bytes.toString("latin1", 0, bytes.length - 4);
  if (FOREIGN.test(text) || text.endsWith("\r")) {
    throw new HttpParseError("octets", "The head contains a control character or a bare line end");
  }
  if (!isUtf8(bytes)) throw new HttpParseError("encoding", "The head is not UTF-8");
  return text.split("\r\n");
}

function parseFields(all: readonly string[]): Fields {
  if (all.length - 1 > MAX_FIELDS) throw new HttpParseError("field_count", "The head has too many fields");
  const fields = new Fields();
  for (let i = 1; i < all.length; i += 1) {
    const line = all[i]!;
    const colon = line.indexOf(":");
    if (colon <= 0) {
      const folded = line.startsWith(" ") || line.startsWith("\t");
      throw new HttpParseError(folded ? "folding" : "field_line", "A field line has no name");
    }
    const name = line.slice(0, colon);
    // Covers folding (leading blank) and a blank before the colon as well: a blank is no token character.
    if (!isToken(name)) throw new HttpParseError("field_name", "A field name is not a token");
    fields.add(name, trimBlanks(line, colon + 1));
  }
  return fields;
}

function trimBlanks(line: string, from: number): string {
  let start = from;
  let end = line.length;
  while (start < end && isBlank(line.charCodeAt(start))) start += 1;
  while (end > start && isBlank(line.charCodeAt(end - 1))) end -= 1;
  return line.slice(start, end);
}

function isBlank(code: number): boolean {
  return code === 0x20 || code === 0x09;
}

/** `bytes` is the head with its empty line. */
export function parseRequestHead(bytes: Buffer): RequestHead {
  const all = lines(bytes);
  const parts = all[0]!.split(" ");
  if (parts.length !== 3) throw new HttpParseError("request_line", "The request line is not METHOD TARGET VERSION");
  const [method, target, version] = parts as [string, string, string];
  if (!isToken(method) || method.length > 32) throw new HttpParseError("method", "The method is not a token");
  if (target === "") throw new HttpParseError("target", "The request target is empty");
  const minor = parseVersion(version);
  const fields = parseFields(all);
  const hosts = fields.getAll("host");
  if (hosts.length > 1) throw new HttpParseError("host", "More than one Host field");
  if (minor === 1 && hosts.length === 0) throw new HttpParseError("host", "HTTP/1.1 needs a Host field");
  const connection = connectionOptions(fields);
  for (const option of connection) {
    if (option === "host" || option === "content-length" || option === "transfer-encoding") {
      throw new HttpParseError("connection", "The Connection field names a framing field");
    }
  }
  const framing = messageFraming(fields, minor) ?? { kind: "none" };
  return {
    method,
    target,
    minor,
    fields,
    host: hosts[0],
    framing,
    connection,
    keepAlive: persists(connection, minor),
  };
}

/** `method` is the request's: it decides whether there is a body (RFC 9112 §6.3). */
export function parseResponseHead(bytes: Buffer, method: string): ResponseHead {
  const all = lines(bytes);
  const match = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: (.*))?$/.exec(all[0]!);
  if (match === null) throw new HttpParseError("status_line", "The status line is malformed");
  const minor = match[1] === "1" ? 1 : 0;
  const status = Number(match[2]);
  const fields = parseFields(all);
  const connection = connectionOptions(fields);
  const declared = messageFraming(fields, minor);
  const bodiless = method === "HEAD" || status < 200 || status === 204 || status === 304;
  const framing: Framing = bodiless ? { kind: "none" } : (declared ?? { kind: "until_close" });
  return {
    status,
    reason: match[3] ?? "",
    minor,
    fields,
    framing,
    connection,
    keepAlive: framing.kind !== "until_close" && persists(connection, minor),
  };
}

function parseVersion(text: string): 0 | 1 {
  if (text === "HTTP/1.1") return 1;
  if (text === "HTTP/1.0") return 0;
  throw new HttpParseError("version", "The version is neither HTTP/1.0 nor HTTP/1.1");
}

function connectionOptions(fields: Fields): string[] {
  if (!fields.has("connection")) return [];
  const options = tokenList(fields.getAll("connection"));
  if (options === undefined) throw new HttpParseError("connection", "The Connection field is not a list of tokens");
  return options;
}

function persists(connection: readonly string[], minor: 0 | 1): boolean {
  if (connection.includes("close")) return false;
  return minor === 1 || connection.includes("keep-alive");
}

function messageFraming(fields: Fields, minor: 0 | 1): Framing | undefined {
  const encodings = fields.getAll("transfer-encoding");
  const lengths = fields.getAll("content-length");
  if (encodings.length > 0) {
    if (lengths.length > 0) throw new HttpParseError("framing", "Both Transfer-Encoding and Content-Length");
    // RFC 9112 §6.1: a Transfer-Encoding in an HTTP/1.0 message is faulty framing.
    if (minor === 0) throw new HttpParseError("framing", "Transfer-Encoding in HTTP/1.0");
    if (encodings.length !== 1 || encodings[0]!.toLowerCase() !== "chunked") {
      throw new HttpParseError("framing", "A Transfer-Encoding other than a single chunked");
    }
    return { kind: "chunked" };
  }
  if (lengths.length === 0) return undefined;
  const [first] = lengths;
  for (const value of lengths) {
    if (!/^\d{1,16}$/.test(value)) throw new HttpParseError("framing", "Content-Length is not a number");
    if (value !== first) throw new HttpParseError("framing", "Content-Length fields differ");
  }
  const length = Number(first);
  if (length > MAX_CONTENT_LENGTH) throw new HttpParseError("framing", "Content-Length is too large");
  return { kind: "length", length };
}
