import { createHmac, hkdfSync, randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { type FileHandle, lstat, open } from "node:fs/promises";
import { join } from "node:path";
import { ensureFolder, RuntimeError, systemCode, writeFileAtomic } from "@openshell/base";
import type { DerivedKeys } from "../deps.ts";

const KEY_BYTES = 32;

/**
 * The key-encryption key of a state folder, `<state>/keys/kek`, made at the first start.
 *
 * @throws RuntimeError key_unusable: missing beside an existing database (everything sealed in it would be lost), readable
 * for others, or not 32 bytes.
 */
export async function loadKeyEncryptionKey(state: string): Promise<Buffer> {
  const folder = join(state, "keys");
  await ensureFolder(folder);
  const path = join(folder, "kek");
  let file: FileHandle;
  try {
    // Without waiting for whoever would write to a pipe in its place.
    file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if (systemCode(error) !== "ENOENT") throw unusable(path, `cannot be read (${systemCode(error)})`, error);
    if (await exists(join(state, "gateway.db")))
      throw unusable(path, "is missing, and the database was encrypted with it");
    const key = randomBytes(KEY_BYTES);
    await writeFileAtomic(path, key);
    return key;
  }
  try {
    const stat = await file.stat();
    if (!stat.isFile()) throw unusable(path, "is no regular file");
    if (stat.uid !== process.getuid?.()) throw unusable(path, `belongs to uid ${stat.uid}`);
    if ((stat.mode & 0o077) !== 0) throw unusable(path, "may be read by other users");
    if (stat.size !== KEY_BYTES) throw unusable(path, `has ${stat.size} bytes instead of ${KEY_BYTES}`);
    const key = await file.readFile();
    if (key.length !== KEY_BYTES) throw unusable(path, `has ${key.length} bytes instead of ${KEY_BYTES}`);
    return key;
  } finally {
    await file.close();
  }
}

function unusable(path: string, problem: string, cause?: unknown): RuntimeError {
  return new RuntimeError("key_unusable", `the key-encryption key ${path} ${problem}`, {
    next: "Restore the file from a backup with mode 0600, or move the whole state folder away to start anew",
    cause,
  });
}

async function exists(path: string): Promise<boolean> {
  return lstat(path).then(
    () => true,
    () => false,
  );
}

/** HKDF-SHA-256 (RFC 5869) with one label a purpose: knowing one derived key tells nothing of the others. */
export function deriveKeys(keyEncryptionKey: Uint8Array): DerivedKeys {
  const hmacUnder = (label: string) => {
    const key = Buffer.from(hkdfSync("sha256", keyEncryptionKey, "", `openshell ${label} v1`, KEY_BYTES));
    return (data: Uint8Array): Uint8Array => createHmac("sha256", key).update(data).digest();
  };
  return { requestIds: hmacUnder("request ids"), pageTokens: hmacUnder("page tokens") };
}
