import type { Dirent } from "node:fs";
import { lstat, opendir } from "node:fs/promises";
import { systemCode } from "@openshell/base";
import type { PlantedFiles } from "../../driver.ts";
import { isWithin } from "../root-view.ts";
import {
  GIT_FILES,
  isGitFolder,
  MODULE_DEPTH,
  SKIPPED_FOLDERS,
  startUpFile,
  startUpFilesBelow,
} from "./start-up-files.ts";

/** Bounds of one look through the volumes of one sandbox. */
export const PlantedLimit = {
  folders: 20_000,
  /** Entries of a start-up folder (`.git/hooks`, `.vscode`). */
  entries: 200,
  /** Entries of any folder: more would fill this process's memory. */
  inFolder: 100_000,
  /** Findings that are named; the rest is counted. */
  named: 32,
  milliseconds: 3_000,
} as const;

/**
 * Sockets below `folders` that services outside listen on and that are not `covered` inside: they came after the start. What the
 * sandbox itself listens on is in another network namespace, whose table `sockets` is not.
 */
export function reachableSockets(
  folders: readonly string[],
  covered: readonly string[],
  sockets: readonly string[],
): PlantedFiles["files"] {
  return sockets
    .filter((path) => folders.some((folder) => isWithin(path, folder)) && !covered.includes(path))
    .slice(0, PlantedLimit.named)
    .map((path) => ({ path, reason: "a socket that a service outside made since; the agent can connect to it" }));
}

/**
 * Start-up files below `folders` whose status changed since `sinceMs`, which nobody can set back: ctime is the kernel's own
 * (utimensat(2) gives no way to it). Whoever changed them: the owner may have, meanwhile. Links are not followed, but a
 * link under a listed name counts.
 */
export async function findPlanted(
  folders: readonly string[],
  sinceMs: number,
  now: () => number = () => performance.now(),
): Promise<PlantedFiles> {
  const search = new Search(sinceMs, now);
  for (const folder of folders.filter((one) => !folders.some((other) => other !== one && isWithin(one, other)))) {
    await search.look(folder);
  }
  return search.result();
}

class Search {
  readonly #sinceMs: number;
  readonly #until: number;
  readonly #now: () => number;
  readonly #found = new Map<string, string>();
  #folders = 0;
  #complete = true;

  constructor(sinceMs: number, now: () => number) {
    this.#sinceMs = sinceMs;
    this.#now = now;
    this.#until = now() + PlantedLimit.milliseconds;
  }

  result(): PlantedFiles {
    const files = [...this.#found].map(([path, reason]) => ({ path, reason }));
    return {
      files: files.slice(0, PlantedLimit.named),
      more: Math.max(0, files.length - PlantedLimit.named),
      complete: this.#complete,
    };
  }

  async look(top: string): Promise<void> {
    const pending = [top];
    for (let folder = pending.shift(); folder !== undefined; folder = pending.shift()) {
      if (this.#spent()) return;
      const isTop = folder === top;
      const entries = await entriesOf(folder);
      if (entries.length >= PlantedLimit.inFolder) this.#complete = false;
      const kindOf = (wanted: string): string | undefined => {
        const entry = entries.find(({ name }) => name === wanted);
        return entry === undefined ? undefined : entry.isDirectory() ? "directory" : "file";
      };
      // And on: it may be made to pass for one, so that nothing else in it is looked at.
      if (isGitFolder(kindOf)) await this.#git(folder, true);
      for (const entry of entries) {
        const path = `${folder}/${entry.name}`;
        // File systems that fold cases (vfat, ntfs) give programs what they ask for by another name.
        const name = entry.name.toLowerCase();
        const listed = startUpFile(name, isTop);
        if (name === ".git") await this.#git(path, entry.isDirectory());
        else if (listed !== undefined) await this.#whole(path, listed.reason);
        else {
          for (const below of startUpFilesBelow(name, isTop))
            await this.#whole(`${folder}/${below.name}`, below.reason);
          if (entry.isDirectory() && !SKIPPED_FOLDERS.has(entry.name)) pending.push(path);
        }
      }
    }
  }

  /** One folder more: whether that is too many, or too late. */
  #spent(): boolean {
    const spent = ++this.#folders > PlantedLimit.folders || this.#now() > this.#until;
    if (spent) this.#complete = false;
    return spent;
  }

  async #git(path: string, isFolder: boolean): Promise<void> {
    if (!isFolder) return await this.#one(path, "git takes configuration and hooks from where it leads");
    for (const { name, reason } of GIT_FILES) {
      if (name === "worktrees") continue;
      if (name === "hooks") await this.#whole(`${path}/hooks`, reason, (file) => !file.endsWith(".sample"));
      else await this.#one(`${path}/${name}`, reason);
    }
    await this.#modules(`${path}/modules`, 1);
  }

  /** Git folders of submodules, whose names may have slashes. */
  async #modules(folder: string, depth: number): Promise<void> {
    for (const entry of await entriesOf(folder)) {
      if (!entry.isDirectory()) continue;
      if (this.#spent()) return;
      const path = `${folder}/${entry.name}`;
      if ((await lstat(`${path}/HEAD`).catch(() => undefined)) !== undefined) await this.#git(path, true);
      else if (depth < MODULE_DEPTH) await this.#modules(path, depth + 1);
    }
  }

  /** A file, or what is directly in a folder. */
  async #whole(path: string, reason: string, counts: (name: string) => boolean = () => true): Promise<void> {
    const stat = await lstat(path).catch(() => undefined);
    if (stat === undefined) return;
    if (!stat.isDirectory()) return this.#note(path, reason, stat.ctimeMs);
    const entries = (await entriesOf(path)).filter(({ name }) => counts(name));
    if (entries.length > PlantedLimit.entries) this.#complete = false;
    for (const { name } of entries.slice(0, PlantedLimit.entries)) await this.#one(`${path}/${name}`, reason);
  }

  async #one(path: string, reason: string): Promise<void> {
    const stat = await lstat(path).catch(() => undefined);
    if (stat !== undefined) this.#note(path, reason, stat.ctimeMs);
  }

  #note(path: string, reason: string, ctimeMs: number): void {
    if (ctimeMs > this.#sinceMs) this.#found.set(path, reason);
  }
}

/** At most {@link PlantedLimit.inFolder}, by name; none when it cannot be read. */
export async function entriesOf(folder: string, limit: number = PlantedLimit.inFolder): Promise<readonly Dirent[]> {
  const list: Dirent[] = [];
  try {
    for await (const entry of await opendir(folder, { bufferSize: 1024 })) {
      if (list.push(entry) >= limit) break;
    }
  } catch (error) {
    if (systemCode(error) === undefined) throw error;
  }
  return list.sort((a, b) => (a.name < b.name ? -1 : 1));
}
