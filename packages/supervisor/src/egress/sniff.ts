import { CLIENT_HELLO_BYTES } from "./limits.ts";

/** What the first bytes of a connection are. */
export type Sniffed =
  | { readonly kind: "more" }
  | { readonly kind: "tls"; readonly hello: ClientHello }
  | { readonly kind: "http1" }
  | { readonly kind: "h2" }
  | { readonly kind: "other" };

export interface ClientHello {
  /** As sent; undefined without the extension. */
  readonly serverName: string | undefined;
  /** Undefined without the extension. */
  readonly alpn: readonly string[] | undefined;
}

const H2_PREFACE = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const MORE: Sniffed = { kind: "more" };
const OTHER: Sniffed = { kind: "other" };

/** Decides as soon as the bytes can mean only one thing. */
export function sniff(bytes: Buffer): Sniffed {
  if (bytes.length === 0) return MORE;
  if (bytes[0] === 0x16) return sniffTls(bytes);
  const text = bytes.toString("latin1", 0, Math.min(bytes.length, 40));
  if (H2_PREFACE.startsWith(text.slice(0, H2_PREFACE.length))) {
    return text.length >= H2_PREFACE.length ? { kind: "h2" } : MORE;
  }
  if (text.startsWith(H2_PREFACE)) return { kind: "h2" };
  // METHOD SP target: a token, a blank, then a path, `*`, an authority or a URI.
  if (/^[A-Za-z][!#$%&'*+\-.^_`|~0-9A-Za-z]{0,31} [\x21-\x7e]/.test(text)) return { kind: "http1" };
  if (/^[A-Za-z][!#$%&'*+\-.^_`|~0-9A-Za-z]{0,31} ?$/.test(text)) return MORE;
  return OTHER;
}

function sniffTls(bytes: Buffer): Sniffed {
  if (bytes.length >= 2 && bytes[1] !== 0x03) return OTHER;
  if (bytes.length >= 3 && bytes[2]! > 0x04) return OTHER;
  // A ClientHello may span records (large key shares), so gather handshake bytes over all of them.
  const parts: Buffer[] = [];
  let gathered = 0;
  let offset = 0;
  while (offset + 5 <= bytes.length) {
    if (bytes[offset] !== 0x16 || bytes[offset + 1] !== 0x03) return OTHER;
    const length = bytes.readUInt16BE(offset + 3);
    if (length === 0 || length > 16_384) return OTHER;
    const part = bytes.subarray(offset + 5, Math.min(offset + 5 + length, bytes.length));
    parts.push(part);
    gathered += part.length;
    offset += 5 + length;
    if (gathered >= 4) {
      const handshake = parts.length === 1 ? parts[0]! : Buffer.concat(parts);
      if (handshake[0] !== 0x01) return OTHER;
      const size = handshake.readUIntBE(1, 3);
      if (size > CLIENT_HELLO_BYTES) return OTHER;
      if (handshake.length >= 4 + size) {
        const hello = parseClientHello(handshake.subarray(4, 4 + size));
        return hello === undefined ? OTHER : { kind: "tls", hello };
      }
    }
  }
  return bytes.length > CLIENT_HELLO_BYTES + 1024 ? OTHER : MORE;
}

/** Cursor that answers undefined instead of reading past the end. */
class Reader {
  readonly #bytes: Buffer;
  #offset = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get done(): boolean {
    return this.#offset >= this.#bytes.length;
  }

  uint(size: 1 | 2): number | undefined {
    if (this.#offset + size > this.#bytes.length) return undefined;
    const value = this.#bytes.readUIntBE(this.#offset, size);
    this.#offset += size;
    return value;
  }

  take(length: number | undefined): Buffer | undefined {
    if (length === undefined || this.#offset + length > this.#bytes.length) return undefined;
    const part = this.#bytes.subarray(this.#offset, this.#offset + length);
    this.#offset += length;
    return part;
  }
}

/** RFC 8446 §4.1.2, with server_name (RFC 6066) and ALPN (RFC 7301). Undefined when malformed. */
function parseClientHello(bytes: Buffer): ClientHello | undefined {
  const reader = new Reader(bytes);
  if (reader.take(34) === undefined) return undefined;
  if (reader.take(reader.uint(1)) === undefined) return undefined;
  if (reader.take(reader.uint(2)) === undefined) return undefined;
  if (reader.take(reader.uint(1)) === undefined) return undefined;
  if (reader.done) return { serverName: undefined, alpn: undefined };
  const extensions = reader.take(reader.uint(2));
  if (extensions === undefined || !reader.done) return undefined;
  const list = new Reader(extensions);
  let serverName: string | undefined;
  let alpn: string[] | undefined;
  while (!list.done) {
    const type = list.uint(2);
    const body = list.take(list.uint(2));
    if (type === undefined || body === undefined) return undefined;
    if (type === 0) {
      if (serverName !== undefined) return undefined;
      const names = new Reader(body);
      names.uint(2);
      if (names.uint(1) !== 0) return undefined;
      const name = names.take(names.uint(2));
      if (name === undefined || !names.done) return undefined;
      serverName = name.toString("latin1");
    } else if (type === 16) {
      if (alpn !== undefined) return undefined;
      const protocols = new Reader(body);
      protocols.uint(2);
      alpn = [];
      while (!protocols.done) {
        const protocol = protocols.take(protocols.uint(1));
        if (protocol === undefined) return undefined;
        alpn.push(protocol.toString("latin1"));
      }
    }
  }
  return { serverName, alpn };
}
