/** Entries of a tar archive, byte by byte: what tar itself would not write as well. */

const BLOCK = 512;

export interface EntryParts {
  readonly name: string;
  /** Type flag; a file unless given. */
  readonly type?: string;
  readonly content?: string | Uint8Array;
  readonly link?: string;
  readonly mode?: number;
  readonly uid?: number;
  readonly gid?: number;
  readonly mtime?: number;
  /** Instead of the content's. */
  readonly size?: number;
  readonly rawSize?: Uint8Array;
}

export function entry(parts: EntryParts): Buffer {
  const content = Buffer.from(parts.content ?? "");
  const header = Buffer.alloc(BLOCK);
  const octal = (value: number, at: number, length: number) =>
    header.write(`${value.toString(8).padStart(length - 1, "0")}\0`, at, "latin1");
  header.write(parts.name.slice(0, 100), 0, "latin1");
  octal(parts.mode ?? 0o644, 100, 8);
  octal(parts.uid ?? 0, 108, 8);
  octal(parts.gid ?? 0, 116, 8);
  octal(parts.size ?? content.length, 124, 12);
  if (parts.rawSize !== undefined) header.set(parts.rawSize, 124);
  octal(parts.mtime ?? 0, 136, 12);
  header.write(parts.type ?? "0", 156, "latin1");
  header.write(parts.link ?? "", 157, "latin1");
  header.write("ustar\u000000", 257, "latin1");
  header.fill(" ", 148, 156);
  octal(
    header.reduce((sum, byte) => sum + byte, 0),
    148,
    7,
  );
  return Buffer.concat([header, content, Buffer.alloc((BLOCK - (content.length % BLOCK)) % BLOCK)]);
}

/** GNU's long name for the next entry. */
export function longName(name: string): Buffer {
  return entry({ name: "././@LongLink", type: "L", content: `${name}\0` });
}

/** An extended header for the next entry. */
export function pax(records: Readonly<Record<string, string>>): Buffer {
  const lines = Object.entries(records).map(([key, value]) => {
    const rest = ` ${key}=${value}\n`;
    let length = Buffer.byteLength(rest);
    length += String(length + String(length).length).length;
    return `${length}${rest}`;
  });
  return entry({ name: "pax", type: "x", content: lines.join("") });
}

/** The end mark. */
export function end(): Buffer {
  return Buffer.alloc(2 * BLOCK);
}
