import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { type FileHandle, mkdir, open, rename, unlink } from "node:fs/promises";
import { basename, dirname, join } from "node:path";

/**
 * Replaces `path` by `data` so that a reader, or a crash at any point, sees the old content or the new one, never a part.
 *
 * Temporary file with an unpredictable name beside the target, fsync, rename, fsync of the folder. `mode` is exact
 * (the umask is not applied). Throws the file system's error; the temporary file is removed then.
 */
export async function writeFileAtomic(path: string, data: string | Uint8Array, mode = 0o600): Promise<void> {
  const folder = dirname(path);
  const temporary = join(folder, `.${basename(path)}.${randomBytes(9).toString("base64url")}.tmp`);
  let file: FileHandle | undefined;
  try {
    file = await open(
      temporary,
      constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW,
      mode,
    );
    await file.chmod(mode);
    await file.writeFile(data);
    await file.sync();
    await file.close();
    file = undefined;
    await rename(temporary, path);
  } catch (error) {
    await file?.close().catch(() => {});
    await unlink(temporary).catch(() => {});
    throw error;
  }
  await syncFolder(folder);
}

/** Makes a rename or unlink inside `folder` durable. */
export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, constants.O_RDONLY | constants.O_DIRECTORY);
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Creates `folder` and its parents; `folder` itself gets exactly `mode`, whatever the umask. */
export async function ensureFolder(folder: string, mode = 0o700): Promise<void> {
  await mkdir(folder, { recursive: true, mode });
  const handle = await open(folder, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  try {
    await handle.chmod(mode);
  } finally {
    await handle.close();
  }
}
