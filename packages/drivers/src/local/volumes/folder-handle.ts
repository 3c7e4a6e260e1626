import { closeSync, constants, fstatSync, openSync } from "node:fs";
import { systemCode } from "@openshell/base";

/** From linux/fcntl.h; Node does not name it. The descriptor can be walked from and nothing else. */
const O_PATH = 0o10000000;
const PLAIN_FOLDER = O_PATH | constants.O_DIRECTORY | constants.O_NOFOLLOW;

/** An open folder. Whatever takes its name later, paths through `at` lead into this one. */
export interface FolderHandle extends Disposable {
  /** Path of an entry, through the descriptor. */
  at(name: string): string;
  readonly owner: { readonly uid: number; readonly gid: number };
}

/**
 * Opens a folder one component at a time without following any link, as openat2's RESOLVE_NO_SYMLINKS does, which Node
 * lacks: others may change what the path names between a check and its use. Undefined when it does not exist (any more)
 * or a link is on the way.
 */
export function openFolder(path: string): FolderHandle | undefined {
  let fd = openSync("/", PLAIN_FOLDER);
  try {
    for (const part of path.split("/").filter((name) => name !== "")) {
      const next = openSync(`/proc/self/fd/${fd}/${part}`, PLAIN_FOLDER);
      closeSync(fd);
      fd = next;
    }
  } catch (error) {
    closeSync(fd);
    const code = systemCode(error);
    if (code === "ENOENT" || code === "ENOTDIR" || code === "ELOOP" || code === "EACCES") return undefined;
    throw error;
  }
  const { uid, gid } = fstatSync(fd);
  return {
    at: (name) => `/proc/self/fd/${fd}/${name}`,
    owner: { uid, gid },
    [Symbol.dispose]: () => closeSync(fd),
  };
}
