import { type Dir, type Dirent, lstatSync, opendirSync } from "node:fs";
import { systemCode } from "@openshell/base";

/** Files with several names that are remembered, so that each counts once; further ones count by name. */
const MAX_LINKED_FILES = 100_000;
/** Names looked at in one tree; what comes after them is not seen. About ten seconds. */
const MAX_ENTRIES = 1_000_000;
/** Folders held open below one another; deeper ones are remembered and visited later. */
const MAX_OPEN = 128;

/** What a tree takes on the disk. */
export interface DiskUsage {
  /** Blocks that are allocated: a sparse file counts what it holds. Stops soon after `enoughBytes`. */
  readonly bytes: number;
  readonly entries: number;
  /** Folders that could not be looked into: closed by the agent where the gateway has no more rights than it, too deep to name, or too many. */
  readonly unseen: number;
}

/**
 * Adds up what lies below some folders, without following any link, until it is more than `enoughBytes`. Files with several
 * names count once. Folders are read piece by piece, so that none is too large for memory. Synchronous, for a thread of
 * its own.
 */
export function diskUsage(folders: readonly string[], enoughBytes: number): DiskUsage {
  const walk = new Walk(enoughBytes);
  walk.run(folders.map((folder) => Buffer.from(folder)));
  return walk;
}

class Walk implements DiskUsage {
  bytes = 0;
  entries = 0;
  unseen = 0;
  readonly #enoughBytes: number;
  readonly #linked = new Set<string>();
  readonly #later: Buffer[] = [];
  readonly #open: { readonly dir: Dir; readonly path: Buffer }[] = [];

  constructor(enoughBytes: number) {
    this.#enoughBytes = enoughBytes;
  }

  run(roots: readonly Buffer[]): void {
    this.#later.push(...roots);
    for (let root = this.#later.pop(); root !== undefined && !this.#ended(); root = this.#later.pop()) {
      this.#visit(root);
      for (let top = this.#open.at(-1); top !== undefined; top = this.#open.at(-1)) {
        const entry = this.#ended() ? null : (top.dir.readSync() as Dirent<Buffer> | null);
        if (entry === null) this.#open.pop()!.dir.closeSync();
        else this.#visit(Buffer.concat([top.path, Buffer.from("/"), entry.name]));
      }
    }
    if (this.entries >= MAX_ENTRIES) this.unseen += 1;
  }

  #ended(): boolean {
    return this.bytes > this.#enoughBytes || this.entries >= MAX_ENTRIES;
  }

  /** Counts one name; a folder is opened, or remembered where too many are. */
  #visit(path: Buffer): void {
    try {
      // The sandbox runs on: what vanishes meanwhile is no error.
      if (!this.#count(path)) return;
      if (this.#open.length < MAX_OPEN) {
        this.#open.push({ dir: opendirSync(path, { encoding: "buffer" as BufferEncoding }), path });
      } else {
        // It is counted once more when its turn comes.
        this.entries -= 1;
        this.bytes -= lstatSync(path).blocks * 512;
        this.#later.push(path);
      }
    } catch (error) {
      const code = systemCode(error);
      if (code === "EACCES" || code === "ENAMETOOLONG" || code === "EPERM" || code === "EMFILE") this.unseen += 1;
      else if (code !== "ENOENT" && code !== "ENOTDIR") throw error;
    }
  }

  /** True for a folder. */
  #count(path: Buffer): boolean {
    const stat = lstatSync(path, { throwIfNoEntry: false });
    if (stat === undefined) return false;
    this.entries += 1;
    if (!stat.isDirectory() && stat.nlink > 1) {
      const key = `${stat.dev}:${stat.ino}`;
      if (this.#linked.has(key)) return false;
      if (this.#linked.size < MAX_LINKED_FILES) this.#linked.add(key);
    }
    this.bytes += stat.blocks * 512;
    return stat.isDirectory();
  }
}
