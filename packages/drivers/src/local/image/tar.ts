import { escapeUntrusted } from "@openshell/base";
import { DriverError } from "../../driver.ts";
import { ImageLimit } from "./limits.ts";

/** What an archive says of one entry. Paths are bytes, one character (U+0000–U+00FF) each: names need not be UTF-8. */
export interface TarEntry {
  readonly kind: "file" | "directory" | "symlink" | "hardlink" | "device" | "fifo";
  /** Below the root: no leading slash, no `.`, no `..`; empty for the root itself. */
  readonly path: string;
  /** Of a symbolic link as it is, of a hard link below the root. */
  readonly target: string;
  /** Permission bits as the archive has them. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** Seconds. */
  readonly mtime: number;
  /** Bytes of content that follow. */
  readonly size: number;
}

const BLOCK = 512;
/** Of a refusal; more of it would be the archive's own words. Characters. */
const MAX_REASON = 500;
const KINDS: Readonly<Record<string, TarEntry["kind"]>> = {
  "\0": "file",
  "0": "file",
  "7": "file",
  "1": "hardlink",
  "2": "symlink",
  "3": "device",
  "4": "device",
  "5": "directory",
  "6": "fifo",
};
/** Headers that describe the entry after them: GNU's long name and link, POSIX's extended header. */
const LONG = { L: "path", K: "linkpath" } as const;

/** The refusal of an archive, with what of it is wrong. */
export function badArchive(
  what: string,
  next = "Make the archive again, for example with `docker export`",
): DriverError {
  return new DriverError("image_invalid", `the archive cannot be used: ${escapeUntrusted(what, MAX_REASON)}`, { next });
}

/** A path of an archive for people. */
export function shownPath(path: string): string {
  return escapeUntrusted(Buffer.from(path, "latin1").toString("utf8"), 200);
}

/**
 * Reads a tar archive (POSIX ustar and pax, GNU long names, old tar) entry by entry. The content of an entry must be
 * taken before the next one is asked for; what was not taken is skipped.
 */
export class TarReader {
  readonly #bytes: ByteSource;
  #left = 0;
  #padding = 0;

  constructor(chunks: AsyncIterable<Uint8Array>) {
    this.#bytes = new ByteSource(chunks);
  }

  /** The next entry; undefined at the end of the archive. Throws `image_invalid`. */
  async next(): Promise<TarEntry | undefined> {
    const described: Record<string, string> = {};
    for (;;) {
      await this.#skip();
      const header = await this.#bytes.exactly(BLOCK);
      if (header === undefined) throw badArchive("it ends before its end mark; it may have been cut off");
      if (header.every((byte) => byte === 0)) return undefined;
      checkSum(header);
      const type = String.fromCharCode(header[156]!);
      const size = number(header, 124, 12, "size");
      this.#padding = (BLOCK - (size % BLOCK)) % BLOCK;
      this.#left = size;
      if (type === "L" || type === "K") described[LONG[type]] = untilNul(await this.#document(size));
      else if (type === "x") readRecords(await this.#document(size), described);
      else if (type === "g") await this.#document(size);
      else return this.#entry(header, type, size, described);
    }
  }

  /** The content of the entry read last. */
  async *content(): AsyncIterable<Uint8Array> {
    while (this.#left > 0) {
      const chunk = await this.#bytes.some(this.#left);
      if (chunk === undefined) throw badArchive("it ends in the middle of a file; it may have been cut off");
      this.#left -= chunk.length;
      yield chunk;
    }
  }

  /** Reads what follows the end mark, which tools fill up with zeros. */
  async drain(): Promise<void> {
    while ((await this.#bytes.some(1 << 20)) !== undefined);
  }

  async #skip(): Promise<void> {
    for (let left = this.#left + this.#padding; left > 0; ) {
      const chunk = await this.#bytes.some(left);
      if (chunk === undefined) throw badArchive("it ends in the middle of a file; it may have been cut off");
      left -= chunk.length;
    }
    this.#left = 0;
    this.#padding = 0;
  }

  async #document(size: number): Promise<string> {
    if (size > ImageLimit.headerBytes) throw badArchive(`an extended header has ${size} bytes`);
    const parts: Uint8Array[] = [];
    for await (const chunk of this.content()) parts.push(chunk);
    return Buffer.concat(parts).toString("latin1");
  }

  #entry(header: Buffer, type: string, size: number, described: Readonly<Record<string, string>>): TarEntry {
    const posix = header.toString("latin1", 257, 263) === "ustar\0";
    const prefix = posix ? untilNul(header.toString("latin1", 345, 500)) : "";
    const name = untilNul(header.toString("latin1", 0, 100));
    const path = belowRoot(described["path"] ?? (prefix === "" ? name : `${prefix}/${name}`));
    const kind = KINDS[type];
    if (kind === undefined || Object.keys(described).some((key) => key.startsWith("GNU.sparse.")))
      throw badArchive(
        kind === undefined && type !== "S"
          ? `${shownPath(path)} has the unknown type ${JSON.stringify(type)}`
          : `${shownPath(path)} is stored sparsely`,
        "Make the archive with tar without --sparse, or with `docker export`",
      );
    const link = described["linkpath"] ?? untilNul(header.toString("latin1", 157, 257));
    // Old tar knows no folders: a name that ends in a slash is one.
    const folder = kind === "file" && (described["path"] ?? name).endsWith("/");
    const actual = decimal(described["size"]) ?? size;
    if (actual !== size) {
      this.#left = actual;
      this.#padding = (BLOCK - (actual % BLOCK)) % BLOCK;
    }
    return {
      kind: folder ? "directory" : kind,
      path,
      target: kind === "hardlink" ? belowRoot(link) : link,
      mode: number(header, 100, 8, "mode") & 0o7777,
      uid: decimal(described["uid"]) ?? number(header, 108, 8, "uid"),
      gid: decimal(described["gid"]) ?? number(header, 116, 8, "gid"),
      mtime: seconds(described["mtime"]) ?? number(header, 136, 12, "mtime"),
      size: actual,
    };
  }
}

/** Where an entry belongs. Throws for whatever would lie outside. */
export function belowRoot(name: string): string {
  if (name.length > ImageLimit.pathBytes) throw badArchive(`${shownPath(name.slice(0, 80))}… is longer than any path`);
  if (name.startsWith("/")) {
    throw badArchive(
      `${shownPath(name)} is an absolute path`,
      "Make the archive with relative paths: tar -C ROOT -cf x.tar .",
    );
  }
  const parts = name.split("/").filter((part) => part !== "" && part !== ".");
  for (const part of parts) {
    if (part === "..") throw badArchive(`${shownPath(name)} leads out of the root`);
    if (part.length > ImageLimit.nameBytes)
      throw badArchive(`${shownPath(part.slice(0, 80))}… is longer than any name`);
    if (part.includes("\0")) throw badArchive(`${shownPath(name)} contains a NUL`);
  }
  return parts.join("/");
}

function untilNul(text: string): string {
  const end = text.indexOf("\0");
  return end < 0 ? text : text.slice(0, end);
}

function checkSum(header: Buffer): void {
  let sum = 8 * 0x20;
  for (let at = 0; at < BLOCK; at++) if (at < 148 || at >= 156) sum += header[at]!;
  if (Number.parseInt(untilNul(header.toString("latin1", 148, 156)).trim(), 8) !== sum) {
    throw badArchive("it is no tar archive, or damaged", "Name a root file system as .tar or .tar.gz, or a folder");
  }
}

/** Octal digits, or GNU's binary form (first bit set). */
function number(header: Buffer, at: number, length: number, field: string): number {
  const first = header[at]!;
  let value = 0;
  if ((first & 0x80) !== 0) {
    value = first & 0x7f;
    for (const byte of header.subarray(at + 1, at + length)) value = value * 256 + byte;
  } else {
    const text = untilNul(header.toString("latin1", at, at + length)).trim();
    if (!/^[0-7]*$/.test(text)) throw badArchive(`a header has a bad ${field}`);
    value = text === "" ? 0 : Number.parseInt(text, 8);
  }
  if (!Number.isSafeInteger(value)) {
    // Times before 1970 are negative; no harm in the epoch.
    if (field === "mtime") return 0;
    throw badArchive(`a header has a ${field} that cannot be`);
  }
  return value;
}

/** pax records: `LENGTH KEY=VALUE\n`, the length counting itself. */
function readRecords(text: string, into: Record<string, string>): void {
  for (let at = 0; at < text.length; ) {
    const match = /^([0-9]{1,9}) /.exec(text.slice(at, at + 11));
    const end = at + Number(match?.[1] ?? 0);
    const record = match === null ? "" : text.slice(at + match[0].length, end);
    const equals = record.indexOf("=");
    if (end > text.length || equals <= 0 || !record.endsWith("\n")) throw badArchive("an extended header is damaged");
    into[record.slice(0, equals)] = record.slice(equals + 1, -1);
    at = end;
  }
}

function decimal(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  if (!/^[0-9]{1,15}$/.test(text)) throw badArchive("an extended header has a bad number");
  return Number(text);
}

function seconds(text: string | undefined): number | undefined {
  const value = text === undefined ? Number.NaN : Number(text);
  return Number.isFinite(value) && Math.abs(value) < 2 ** 40 ? value : undefined;
}

/** Chunks of any size, taken in pieces of a wanted one. */
class ByteSource {
  readonly #chunks: AsyncIterator<Uint8Array>;
  #current: Buffer = Buffer.alloc(0);

  constructor(chunks: AsyncIterable<Uint8Array>) {
    this.#chunks = chunks[Symbol.asyncIterator]();
  }

  /** At most `limit` bytes, at least one; undefined at the end. */
  async some(limit: number): Promise<Buffer | undefined> {
    while (this.#current.length === 0) {
      const next = await this.#chunks.next();
      if (next.done === true) return undefined;
      this.#current = Buffer.from(next.value.buffer, next.value.byteOffset, next.value.byteLength);
    }
    const taken = this.#current.subarray(0, limit);
    this.#current = this.#current.subarray(taken.length);
    return taken;
  }

  /** Exactly `count` bytes; undefined when the source ends first. */
  async exactly(count: number): Promise<Buffer | undefined> {
    const parts: Buffer[] = [];
    for (let left = count; left > 0; ) {
      const part = await this.some(left);
      if (part === undefined) return undefined;
      parts.push(part);
      left -= part.length;
    }
    return parts.length === 1 ? parts[0] : Buffer.concat(parts);
  }
}
