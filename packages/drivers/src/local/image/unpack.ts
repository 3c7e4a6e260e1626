import {
  chmodSync,
  chownSync,
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  futimesSync,
  lchownSync,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  utimesSync,
  writeSync,
} from "node:fs";
import { systemCode } from "@openshell/base";
import { IDS_PER_SANDBOX } from "../identity.ts";
import type { ArchiveLimits } from "./limits.ts";
import { badArchive, shownPath, type TarEntry, TarReader } from "./tar.ts";

/** Whoever has no id inside. */
const NOBODY = 65_534;
/** OCI image specification, layers: an entry that removes one of the layers below. */
const WHITEOUT = ".wh.";
const OPAQUE = ".wh..wh..opq";

/** What was unpacked. */
export interface Unpacked {
  entries: number;
  /** Content of files. */
  bytes: number;
  /** Devices, pipes: not made, the sandbox has its own /dev. */
  leftOut: number;
}

/** How a tree is written. */
export interface UnpackOptions {
  /** Existing folder of nobody else's. */
  readonly root: string;
  readonly limits: ArchiveLimits;
  /** `archive`: owners as the archive says, which only root can; `own`: the caller's. */
  readonly owners: "archive" | "own";
  /** Called as bytes are unpacked, with their sum. */
  readonly onBytes?: (bytes: number) => void;
}

/**
 * Writes archives into a folder, one after the other: layers of an image, or one alone.
 *
 * Nothing is written through a link: every folder on the way to an entry is one that this object made. Set-user-id and
 * set-group-id bits, extended attributes and devices are left out. Synchronous file operations, for a thread of its own.
 */
export class Unpacker {
  readonly result: Unpacked = { entries: 0, bytes: 0, leftOut: 0 };
  readonly #options: UnpackOptions;
  readonly #root: Buffer;
  /** Folders made here, and what they become at the end: until then they stay open to their owner. */
  readonly #folders = new Map<string, { mode: number; uid: number; gid: number; mtime: number }>();
  readonly #leftOut = new Set<string>();
  /** What the present layer wrote, and every folder above it: its whiteouts mean the layers below only. */
  #layer = new Set<string>();

  constructor(options: UnpackOptions) {
    this.#options = options;
    this.#root = Buffer.from(options.root);
    this.#folders.set("", { mode: 0o755, uid: 0, gid: 0, mtime: 0 });
  }

  /** Unpacks a whole archive. `layered`: whiteouts remove what earlier ones wrote. Throws `image_invalid`. */
  async archive(chunks: AsyncIterable<Uint8Array>, layered: boolean): Promise<void> {
    this.#layer = new Set();
    const reader = new TarReader(this.#counted(chunks));
    for (let entry = await reader.next(); entry !== undefined; entry = await reader.next()) {
      this.result.entries += 1;
      if (this.result.entries > this.#options.limits.entries) {
        throw badArchive(`it has more than ${this.#options.limits.entries} entries`, "Use a smaller image");
      }
      if (layered && this.#whiteout(entry.path)) continue;
      if (entry.kind === "file") await this.#file(entry, reader.content());
      else this.#other(entry);
      if (!layered) continue;
      for (let path = entry.path; !this.#layer.has(path); path = parentOf(path)) this.#layer.add(path);
    }
    await reader.drain();
  }

  /** Gives every folder its own mode and time. Nothing can be unpacked afterwards. */
  finish(): void {
    const deepestFirst = [...this.#folders].filter(([path]) => path !== "").reverse();
    for (const [path, folder] of deepestFirst) {
      const at = this.#at(path);
      if (this.#options.owners === "archive") chownSync(at, folder.uid, folder.gid);
      chmodSync(at, folder.mode);
      utimesSync(at, folder.mtime, folder.mtime);
    }
    chmodSync(this.#root, 0o755);
  }

  /** Bytes of all archives together: a compressed one may unpack to far more than a disk holds. */
  async *#counted(chunks: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array> {
    for await (const chunk of chunks) {
      this.result.bytes += chunk.length;
      const limit = this.#options.limits.bytes;
      if (this.result.bytes > limit) throw badArchive(`it unpacks to more than ${limit} bytes`, "Use a smaller image");
      this.#options.onBytes?.(this.result.bytes);
      yield chunk;
    }
  }

  async #file(entry: TarEntry, content: AsyncIterable<Uint8Array>): Promise<void> {
    if (entry.path === "") throw badArchive("its root is a file");
    const fd = this.#create(entry.path, () => {
      const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
      return openSync(this.#at(entry.path), flags, 0o600);
    });
    try {
      for await (const chunk of content) writeAll(fd, chunk);
      if (this.#options.owners === "archive") fchownSync(fd, inside(entry.uid), inside(entry.gid));
      fchmodSync(fd, entry.mode & 0o777);
      futimesSync(fd, entry.mtime, entry.mtime);
    } finally {
      closeSync(fd);
    }
  }

  #other(entry: TarEntry): void {
    const { path } = entry;
    switch (entry.kind) {
      case "directory":
        this.#folder(path, {
          mode: entry.mode & 0o1777,
          uid: inside(entry.uid),
          gid: inside(entry.gid),
          mtime: entry.mtime,
        });
        return;
      case "symlink":
        if (path === "" || entry.target === "" || entry.target.includes("\0"))
          throw badArchive(`${shownPath(path)} is an empty link`);
        this.#create(path, () => symlinkSync(Buffer.from(entry.target, "latin1"), this.#at(path)));
        if (this.#options.owners === "archive") lchownSync(this.#at(path), inside(entry.uid), inside(entry.gid));
        return;
      case "hardlink":
        this.#hardLink(path, entry.target);
        return;
      default:
        this.#leftOut.add(path);
        this.result.leftOut += 1;
    }
  }

  #hardLink(path: string, target: string): void {
    if (this.#leftOut.has(target)) {
      this.#leftOut.add(path);
      this.result.leftOut += 1;
      return;
    }
    if (path === target) return;
    const parent = parentOf(target);
    const stat = this.#folders.has(parent) ? lstatSync(this.#at(target), { throwIfNoEntry: false }) : undefined;
    // In place of a folder above its target it would remove that first.
    if (path === "" || stat === undefined || stat.isDirectory() || target.startsWith(`${path}/`)) {
      throw badArchive(
        `${shownPath(path)} is a link to ${shownPath(target)}, which is no file before it in the archive`,
      );
    }
    this.#create(path, () => linkSync(this.#at(target), this.#at(path)));
  }

  /** A folder with these attributes; one that is there keeps its content. */
  #folder(path: string, attributes: { mode: number; uid: number; gid: number; mtime: number }): void {
    if (path === "") return;
    if (!this.#folders.has(path)) this.#create(path, () => mkdirSync(this.#at(path), 0o700));
    this.#folders.set(path, attributes);
  }

  /** Makes one name, in place of whatever is there under it. */
  #create<T>(path: string, make: () => T): T {
    this.#ensureParent(path);
    try {
      return make();
    } catch (error) {
      if (systemCode(error) !== "EEXIST") throw error;
      this.#remove(path);
      return make();
    }
  }

  #ensureParent(path: string): void {
    const parent = parentOf(path);
    if (this.#folders.has(parent)) return;
    this.#ensureParent(parent);
    try {
      mkdirSync(this.#at(parent), 0o700);
    } catch (error) {
      if (systemCode(error) !== "EEXIST") throw error;
      throw badArchive(`${shownPath(path)} lies below ${shownPath(parent)}, which is no folder`);
    }
    this.#folders.set(parent, { mode: 0o755, uid: 0, gid: 0, mtime: 0 });
  }

  #remove(path: string): void {
    if (this.#folders.has(path)) {
      rmSync(this.#at(path), { recursive: true, force: true });
      for (const known of [...this.#folders.keys()]) {
        if (known === path || known.startsWith(`${path}/`)) this.#folders.delete(known);
      }
    } else if (lstatSync(this.#at(path), { throwIfNoEntry: false }) !== undefined) unlinkSync(this.#at(path));
  }

  /** True when the entry was a whiteout, which has been carried out. */
  #whiteout(path: string): boolean {
    const parent = parentOf(path);
    const name = path.slice(parent === "" ? 0 : parent.length + 1);
    if (!name.startsWith(WHITEOUT)) return false;
    if (!this.#folders.has(parent)) return true;
    const removed = name === OPAQUE ? this.#names(parent) : [name.slice(WHITEOUT.length)];
    for (const gone of removed) {
      if (gone === "" || gone === "." || gone === ".." || gone.includes("/"))
        throw badArchive(`${shownPath(path)} removes no name`);
      const target = parent === "" ? gone : `${parent}/${gone}`;
      if (!this.#layer.has(target)) this.#remove(target);
    }
    return true;
  }

  #names(folder: string): readonly string[] {
    return readdirSync(this.#at(folder), { encoding: "buffer" }).map((name) => name.toString("latin1"));
  }

  #at(path: string): Buffer {
    return Buffer.concat([this.#root, Buffer.from(`/${path}`, "latin1")]);
  }
}

function parentOf(path: string): string {
  return path.slice(0, Math.max(0, path.lastIndexOf("/")));
}

function inside(id: number): number {
  return id < IDS_PER_SANDBOX ? id : NOBODY;
}

function writeAll(fd: number, chunk: Uint8Array): void {
  for (let at = 0; at < chunk.length; ) at += writeSync(fd, chunk, at);
}
