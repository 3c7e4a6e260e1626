import { closeSync, constants, openSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { RuntimeError } from "./errors.ts";

/** SQLITE_BUSY, https://www.sqlite.org/rescode.html. */
const SQLITE_BUSY = 5;
const SQLITE_NOTADB = 26;

/**
 * SQLite tries again for so long. Two processes that ask at the same moment each see the other's first step and give way:
 * without a second try nobody would have the lock. Milliseconds.
 */
const TRY_MS = 15;

/** A lock that the kernel gives back when its holder ends, however it ends. */
export interface FileLock extends Disposable {
  readonly path: string;
}

/**
 * Takes the exclusive lock on `path` (created with mode 0600), or returns undefined when another process has it.
 *
 * The lock is SQLite's own on an empty database: POSIX record locks, which Node has no call for. It is not inherited by
 * child processes. The file must be on a local disk, is never removed, and nothing else in this process may open it:
 * closing any descriptor of the file would release the lock (fcntl(2)).
 *
 * @throws RuntimeError lock_unusable when the file cannot be opened or locked for another reason.
 */
export function acquireFileLock(path: string): FileLock | undefined {
  let database: DatabaseSync | undefined;
  try {
    const flags = constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW | constants.O_NONBLOCK;
    closeSync(openSync(path, flags, 0o600));
    database = new DatabaseSync(path, { timeout: TRY_MS });
    database.exec("pragma journal_mode = memory; begin exclusive");
    const held = database;
    return { path, [Symbol.dispose]: () => held.close() };
  } catch (cause) {
    database?.close();
    const code = ((cause as { errcode?: number }).errcode ?? 0) % 256;
    if (code === SQLITE_BUSY) return undefined;
    throw new RuntimeError("lock_unusable", `cannot lock ${path}: ${(cause as Error).message}`, {
      next:
        code === SQLITE_NOTADB
          ? "Remove the file, which holds nothing when it is whole, while nothing runs that locks it"
          : "Check the rights of the file and that it is on a local disk",
      cause,
    });
  }
}
