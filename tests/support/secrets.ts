import { randomBytes } from "node:crypto";
import { closeSync, openSync, readdirSync, readSync } from "node:fs";
import { join } from "node:path";

/**
 * Secrets that tests use, so that whatever the product wrote can be searched for them afterwards. `TestOpenShell`
 * searches all of its state, logs and runtime files when it ends: every test of the suite looks for every secret.
 */

const known = new Set<string>();

/** A fresh value that occurs nowhere else, remembered. */
export function newSecret(prefix = "sk-test"): string {
  const value = `${prefix}-${randomBytes(24).toString("hex")}`;
  known.add(value);
  return value;
}

/** Remembers a value that a test made itself. At least 12 characters, so that it cannot occur by chance. */
export function registerSecret(value: string): string {
  if (value.length < 12) throw new Error("a secret that is searched for needs at least 12 characters");
  known.add(value);
  return value;
}

/** All values so far. */
export function knownSecrets(): readonly string[] {
  return [...known];
}

/** The spellings in which a value could have been written by accident. */
export function spellings(value: string): readonly string[] {
  const bytes = Buffer.from(value);
  // A value inside a longer base64 text has one of three alignments; the ends depend on the neighbours and are cut.
  const aligned = [0, 1, 2].map((shift) =>
    Buffer.concat([Buffer.alloc(shift), bytes])
      .toString("base64")
      .replace(/=+$/, "")
      .slice(shift === 0 ? 0 : 4, -4),
  );
  return [value, bytes.toString("hex"), encodeURIComponent(value), ...aligned, [...value].reverse().join("")];
}

/** Files larger than this are searched up to here. */
const MAX_FILE_BYTES = 64 * 1024 * 1024;

/** The value's place in a file's bytes, in any spelling; undefined when it is not there. */
export function findIn(bytes: Buffer, values: readonly string[] = knownSecrets()): string | undefined {
  for (const value of values) {
    for (const text of spellings(value)) if (bytes.includes(text)) return value;
    if (bytes.includes(Buffer.from(value, "utf16le"))) return value;
  }
  return undefined;
}

function readWhole(path: string): Buffer | undefined {
  let fd: number;
  try {
    // O_NONBLOCK: a pipe that somebody left must not hold the search up.
    fd = openSync(path, 0o4000);
  } catch {
    return undefined;
  }
  try {
    const parts: Buffer[] = [];
    let total = 0;
    for (const chunk = Buffer.alloc(1 << 20); total < MAX_FILE_BYTES; ) {
      const read = readSync(fd, chunk, 0, chunk.length, null);
      if (read === 0) break;
      parts.push(Buffer.from(chunk.subarray(0, read)));
      total += read;
    }
    return Buffer.concat(parts);
  } catch {
    return undefined;
  } finally {
    closeSync(fd);
  }
}

/** Paths below the folders that hold a secret, each with the beginning of the value. Searches names and contents. */
export function filesWithSecrets(folders: readonly string[], values: readonly string[] = knownSecrets()): string[] {
  const found: string[] = [];
  if (values.length === 0) return found;
  const visit = (folder: string): void => {
    let entries: import("node:fs").Dirent[];
    try {
      entries = readdirSync(folder, { withFileTypes: true });
    } catch {
      return;
    }
    for (const entry of entries) {
      const path = join(folder, entry.name);
      const inName = findIn(Buffer.from(entry.name), values);
      if (inName !== undefined) found.push(`${path} (name): ${inName.slice(0, 12)}…`);
      if (entry.isDirectory()) visit(path);
      else if (entry.isFile()) {
        const bytes = readWhole(path);
        const value = bytes === undefined ? undefined : findIn(bytes, values);
        if (value !== undefined) found.push(`${path}: ${value.slice(0, 12)}…`);
      }
    }
  };
  for (const folder of folders) visit(folder);
  return found;
}
