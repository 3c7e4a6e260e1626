import { chmod, chown, lstat, mkdir, rm, symlink, unlink, writeFile } from "node:fs/promises";
import { posix } from "node:path";
import { systemCode } from "@openshell/base";
import { DriverError } from "../../driver.ts";
import { removeTree } from "../state.ts";
import { lookUp } from "./lookup.ts";

/** What the seed layer puts over an image. Paths are absolute and normal. */
export type SeedEntry =
  /** A mount point: a folder or an empty file under exactly this name, whatever the image has there. */
  | { readonly kind: "point"; readonly path: string; readonly folder: boolean }
  /** A file of the sandbox's own, as a mount point is. */
  | { readonly kind: "file"; readonly path: string; readonly content: string | Uint8Array }
  | { readonly kind: "link"; readonly path: string; readonly to: string }
  /** A folder that is the agent's, where the image's own links lead; nothing when something else is there. */
  | { readonly kind: "agent-folder"; readonly path: string }
  /** A file in place of the image's own, where its links lead. */
  | { readonly kind: "replacement"; readonly path: string; readonly content: string | Uint8Array };

/** Where and for whom. */
export interface SeedTarget {
  /** Made anew. */
  readonly folder: string;
  readonly imageRoot: string;
  /** Inside ids of the agent. Undefined where there is one id only: then everything is its. */
  readonly agent: { readonly uid: number; readonly gid: number } | undefined;
}

/**
 * Writes the seed: the overlay's topmost read-only layer. What stands in it hides whatever the image has under the same
 * name, so that no link, pipe or file of an image is ever followed, opened or mounted on. A folder that the image has as
 * well is merged, and keeps the image's mode and owner.
 */
export async function writeSeed(target: SeedTarget, entries: readonly SeedEntry[]): Promise<void> {
  await removeTree(target.folder);
  await mkdir(target.folder, { mode: 0o755 });
  await chmod(target.folder, 0o755);
  const writer = new SeedWriter(target);
  for (const entry of entries) {
    try {
      await writer.add(entry);
    } catch (error) {
      if (systemCode(error) !== "EACCES") throw error;
      // A folder has the mode that the image gives it: one that its owner cannot enter takes nothing in.
      throw new DriverError("image_unavailable", `a folder of the image above ${entry.path} is closed to its owner`, {
        next: "Open the image's folders to their owner: chmod u+rwx",
        cause: error,
      });
    }
  }
}

class SeedWriter {
  readonly #target: SeedTarget;
  readonly #made = new Set<string>(["/"]);

  constructor(target: SeedTarget) {
    this.#target = target;
  }

  async add(entry: SeedEntry): Promise<void> {
    const { folder, imageRoot, agent } = this.#target;
    switch (entry.kind) {
      case "point":
        if (entry.folder) await this.#folder(entry.path);
        else await this.#file(entry.path, "");
        return;
      case "file":
        await this.#file(entry.path, entry.content);
        return;
      case "link":
        await this.#folder(posix.dirname(entry.path));
        await symlink(entry.to, folder + entry.path);
        return;
      case "replacement": {
        const found = lookUp(imageRoot, entry.path);
        await this.#file(found === undefined ? entry.path : found.path.slice(imageRoot.length), entry.content);
        return;
      }
      case "agent-folder": {
        const path = destination(imageRoot, entry.path);
        if (path === undefined) return;
        await this.#folder(path);
        if (agent !== undefined) await chown(folder + path, agent.uid, agent.gid);
        return;
      }
    }
  }

  async #file(path: string, content: string | Uint8Array): Promise<void> {
    await this.#folder(posix.dirname(path));
    const at = this.#target.folder + path;
    await rm(at, { force: true });
    await writeFile(at, content, { flag: "wx", mode: 0o644 });
    await chmod(at, 0o644);
  }

  async #folder(path: string): Promise<void> {
    if (this.#made.has(path)) return;
    await this.#folder(posix.dirname(path));
    this.#made.add(path);
    const { folder, imageRoot, agent } = this.#target;
    await mkdir(folder + path, { mode: 0o700 });
    const image = await lstat(imageRoot + path).catch(() => undefined);
    const merged = image?.isDirectory() === true;
    await chmod(folder + path, merged ? image.mode & 0o1777 : 0o755);
    if (agent !== undefined && merged) await chown(folder + path, image.uid, image.gid);
  }
}

/** Where a path of the image leads, its missing end kept; undefined when something other than a folder is in the way. */
function destination(imageRoot: string, path: string): string | undefined {
  const missing: string[] = [];
  for (let at = path; ; at = posix.dirname(at)) {
    const found = lookUp(imageRoot, at);
    if (found?.stat.isDirectory() === true) return posix.join("/", found.path.slice(imageRoot.length), ...missing);
    if (found !== undefined || at === "/") return undefined;
    missing.unshift(posix.basename(at));
  }
}

/**
 * Takes out of the writable layer what hides a mount point: its agent may have put a link, a pipe or nothing in place of
 * a folder that the next start needs. Nothing of the sandbox runs.
 */
export async function repairUpper(upper: string, entries: readonly SeedEntry[]): Promise<void> {
  for (const entry of entries) {
    if (entry.kind !== "point") continue;
    const parts = entry.path.split("/").filter((part) => part !== "");
    for (let depth = 1; depth <= parts.length; depth++) {
      const at = `${upper}/${parts.slice(0, depth).join("/")}`;
      const stat = await lstat(at).catch(() => undefined);
      if (stat === undefined) break;
      const folder = depth < parts.length || entry.folder;
      if (folder ? stat.isDirectory() : stat.isFile()) continue;
      if (stat.isDirectory()) await removeTree(at);
      else await unlink(at);
      break;
    }
  }
}
