import {
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  fstatSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  rmdirSync,
  unlinkSync,
} from "node:fs";
import { posix } from "node:path";
import { systemCode } from "@openshell/base";
import { openFolder } from "./folder-handle.ts";

/** An empty folder or file in a volume that stands in for one that is missing, so that there is something to cover. */
export interface Hold {
  /** On the host. */
  readonly path: string;
  readonly kind: "folder" | "file";
  /** Device and inode of what was made, as text: only that is ever removed. Absent until it is made. */
  readonly id?: string;
}

/**
 * Makes what is missing, with the owner of the folder that it is in; keeps what is there. Returns those that exist now, with
 * their identity; `made` tells which were not there before. One whose folder may not be written is left out: the agent,
 * which has no more rights there, cannot make it either.
 */
export function makeHolds(
  wanted: readonly Hold[],
): readonly (Hold & { readonly id: string; readonly made: boolean })[] {
  return wanted.flatMap((hold) => {
    using parent = openFolder(posix.dirname(hold.path));
    if (parent === undefined) return [];
    const at = parent.at(posix.basename(hold.path));
    let made = true;
    try {
      if (hold.kind === "folder") mkdirSync(at, { mode: 0o700 });
      give(at, hold.kind, parent.owner);
    } catch (error) {
      const code = systemCode(error);
      if (code === "EACCES" || code === "EPERM" || code === "EROFS") return [];
      if (code !== "EEXIST") throw error;
      made = false;
    }
    const id = identity(at);
    return id === undefined ? [] : [{ ...hold, id, made }];
  });
}

/** Through a descriptor: whoever takes the name meanwhile gets no mode and owner changed but those of an empty folder of this process's own. */
function give(path: string, kind: Hold["kind"], { uid, gid }: { readonly uid: number; readonly gid: number }): void {
  const how = kind === "folder" ? constants.O_DIRECTORY : constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL;
  const fd = openSync(path, how | constants.O_NOFOLLOW, 0o600);
  try {
    if (kind === "folder" && (fstatSync(fd).uid !== process.getuid!() || readdirSync(`/proc/self/fd/${fd}`).length > 0))
      return;
    fchmodSync(fd, kind === "folder" ? 0o755 : 0o644);
    if (process.getuid!() === 0) fchownSync(fd, uid, gid);
  } finally {
    closeSync(fd);
  }
}

/** Removes what `makeHolds` made, where it is still there and still empty. Whatever cannot be removed stays. */
export function removeHolds(holds: readonly Hold[]): void {
  for (const { path, kind, id } of holds) {
    using parent = openFolder(posix.dirname(path));
    if (parent === undefined) continue;
    const at = parent.at(posix.basename(path));
    if (id === undefined || identity(at) !== id) continue;
    try {
      if (kind === "folder") rmdirSync(at);
      else if (lstatSync(at).size === 0) unlinkSync(at);
    } catch (error) {
      if (systemCode(error) === undefined) throw error;
    }
  }
}

function identity(path: string): string | undefined {
  const stat = lstatSync(path, { bigint: true, throwIfNoEntry: false });
  return stat === undefined ? undefined : `${stat.dev}:${stat.ino}`;
}
