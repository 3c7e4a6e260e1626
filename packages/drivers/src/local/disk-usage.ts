import { type Dirent, lstatSync, readdirSync } from "node:fs";
import { systemCode } from "@openshell/base";

/** Files with several names that are remembered, so that each counts once; further ones count by name. */
const MAX_LINKED_FILES = 1_000_000;

/** What a tree takes on the disk. */
export interface DiskUsage {
  /** Blocks that are allocated: a sparse file counts what it holds. Stops soon after `enoughBytes`. */
  readonly bytes: number;
  readonly entries: number;
  /** Folders that could not be looked into: closed by the agent where the gateway has no more rights than it, or too deep to name. */
  readonly unseen: number;
}

/**
 * Adds up what lies below some folders, without following any link, until it is more than `enoughBytes`. Files with several
 * names count once. Synchronous, for a thread of its own; 1 million names take some seconds.
 */
export function diskUsage(folders: readonly string[], enoughBytes: number): DiskUsage {
  const pending: Buffer[] = folders.map((folder) => Buffer.from(folder));
  const linked = new Set<string>();
  let bytes = 0;
  let entries = 0;
  let unseen = 0;
  const count = (path: Buffer): boolean => {
    const stat = lstatSync(path, { throwIfNoEntry: false });
    if (stat === undefined) return false;
    entries += 1;
    if (!stat.isDirectory() && stat.nlink > 1) {
      const key = `${stat.dev}:${stat.ino}`;
      if (linked.has(key)) return false;
      if (linked.size < MAX_LINKED_FILES) linked.add(key);
    }
    bytes += stat.blocks * 512;
    return stat.isDirectory();
  };
  for (let folder = pending.pop(); folder !== undefined && bytes <= enoughBytes; folder = pending.pop()) {
    try {
      // The sandbox runs on: what vanishes meanwhile is no error.
      if (!count(folder)) continue;
      for (const entry of readdirSync(folder, { withFileTypes: true, encoding: "buffer" }) as Dirent<Buffer>[]) {
        const path = Buffer.concat([folder, Buffer.from("/"), entry.name]);
        if (entry.isDirectory()) pending.push(path);
        else count(path);
        if (bytes > enoughBytes) break;
      }
    } catch (error) {
      const code = systemCode(error);
      if (code === "EACCES" || code === "ENAMETOOLONG" || code === "EPERM") unseen += 1;
      else if (code !== "ENOENT" && code !== "ENOTDIR") throw error;
    }
  }
  return { bytes, entries, unseen };
}
