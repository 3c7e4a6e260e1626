import { createHash, randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { open, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { systemCode } from "@openshell/base";
import { readTextFile } from "@openshell/base/read-file.ts";
import { z } from "zod";
import { StagingLimit } from "./limits.ts";

/** A place that somebody asked for. Its file holds the token's hash only: who reads it cannot present the token. */
export interface Slot {
  readonly id: string;
  readonly tokenHash: string;
  readonly workspace: string;
  /** Who asked, and alone may present the token. */
  readonly subject: string;
  readonly fileName: string;
  readonly sizeBytes: number;
  /** Wall time, milliseconds. */
  readonly expiresAt: number;
}

/** A slot has a few short names. Bytes. */
const MAX_SLOT_BYTES = 64 * 1024;

const slotSchema = z.object({
  version: z.literal(1),
  id: z.string(),
  tokenHash: z.string().regex(/^[0-9a-f]{64}$/),
  workspace: z.string(),
  subject: z.string(),
  fileName: z.string(),
  sizeBytes: z.int().positive(),
  expiresAt: z.number(),
});

export function newToken(): string {
  return randomBytes(StagingLimit.tokenBytes).toString("base64url");
}

export function hashOf(token: string): string {
  return createHash("sha256").update(token).digest("hex");
}

/** Why this cannot be the name of a file in a slot, or undefined. It becomes the last part of a path, and nothing else. */
export function fileNameProblem(name: string): string | undefined {
  if (name === "") return "must not be empty";
  if (name === "." || name === ".." || /[/\\]/.test(name)) return "must be a base name, without folders";
  if (/[\u0000-\u001f\u007f]/.test(name)) return "must not contain control characters";
  if (Buffer.byteLength(name) > StagingLimit.fileNameBytes)
    return `must have at most ${StagingLimit.fileNameBytes} bytes`;
  return undefined;
}

/** The slot whose folder this is; undefined when its file is missing or damaged. */
export async function readSlot(folder: string, id: string): Promise<Slot | undefined> {
  try {
    const { version: _, ...slot } = slotSchema.parse(
      JSON.parse(readTextFile(join(folder, "slot.json"), MAX_SLOT_BYTES)),
    );
    return slot.id === id && fileNameProblem(slot.fileName) === undefined ? slot : undefined;
  } catch {
    return undefined;
  }
}

/** Takes a file or folder out of sight at once, then removes it. What is not there is no error. */
export async function discard(parent: string, name: string): Promise<void> {
  const trash = name.startsWith(".trash-") ? name : `.trash-${randomBytes(8).toString("hex")}`;
  try {
    if (trash !== name) await rename(join(parent, name), join(parent, trash));
  } catch (error) {
    if (systemCode(error) === "ENOENT") return;
    throw error;
  }
  await rm(join(parent, trash), { recursive: true, force: true });
}

/** Folder of a slot that the archive is put into. */
export const UPLOAD_FOLDER = "upload";
const FOLDER = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;

/**
 * Moves what was put into a slot out of it, and nothing else: each folder on the way is held by descriptor, so that a link
 * in its place cannot make this move a file of somebody else's. False: there is nothing.
 */
export async function moveUpload(slot: string, fileName: string, to: string): Promise<boolean> {
  try {
    await using outer = await open(slot, FOLDER);
    await using upload = await open(`/proc/self/fd/${outer.fd}/${UPLOAD_FOLDER}`, FOLDER);
    await rename(`/proc/self/fd/${upload.fd}/${fileName}`, to);
    return true;
  } catch {
    return false;
  }
}

/**
 * What is wrong with a file that was put into a slot, or undefined. Opened without following a link and without waiting for
 * a pipe; a second name would leave the file in somebody else's hands, or be a file of somebody else's.
 */
export async function archiveProblem(path: string, sizeBytes: number): Promise<string | undefined> {
  let file: Awaited<ReturnType<typeof open>>;
  try {
    file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    return systemCode(error) === "ELOOP" ? "is a link" : `cannot be opened (${systemCode(error)})`;
  }
  try {
    const stat = await file.stat();
    if (!stat.isFile()) return "is no regular file";
    if (stat.nlink !== 1) return "has a second name (a hard link)";
    if (stat.uid !== process.getuid?.()) return `belongs to uid ${stat.uid}`;
    if (stat.size !== sizeBytes) return `has ${stat.size} bytes where ${sizeBytes} were announced`;
    await file.chmod(0o600);
    return undefined;
  } finally {
    await file.close();
  }
}
