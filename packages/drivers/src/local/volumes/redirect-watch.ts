import { randomBytes } from "node:crypto";
import { type FSWatcher, lstatSync, renameSync, unlinkSync, watch } from "node:fs";
import { systemCode } from "@openshell/base";
import { type FolderHandle, openFolder } from "./folder-handle.ts";

/** The file that makes git take configuration and hooks from another folder; only `git worktree` makes it, elsewhere. */
const REDIRECT = "commondir";
/** Where the kernel gives no notice (too many watches), the folder is looked at so often. Milliseconds. */
const POLL_MS = 250;

export interface RedirectWatched {
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly folders: readonly string[];
}

/**
 * Takes redirections out of git folders of writable volumes, and tells of each sandbox's first one. A mount cannot hold the place:
 * an empty `commondir` breaks git, and any content makes other programs take the folder for a linked worktree. So this is a
 * reaction, within about a millisecond of the kernel's notice, and whoever is told has to end the sandbox.
 */
export class RedirectWatch implements Disposable {
  readonly #onFound: (watched: RedirectWatched, path: string) => void;
  readonly #watched = new Map<string, { readonly generation: bigint; readonly end: () => void }>();

  constructor(onFound: (watched: RedirectWatched, path: string) => void) {
    this.#onFound = onFound;
  }

  /** Watches this generation's folders; again is nothing new. One that is gone or leads through a link is left out. */
  add(watched: RedirectWatched): void {
    if (this.#watched.get(watched.sandboxId)?.generation === watched.generation) return;
    this.remove(watched.sandboxId);
    const stack = new DisposableStack();
    let told = false;
    const found = (path: string): void => {
      if (told) return;
      told = true;
      this.#onFound(watched, path);
    };
    for (const path of watched.folders) {
      const folder = openFolder(path);
      if (folder === undefined) continue;
      stack.use(folder);
      stack.defer(follow(folder, () => takeAway(folder) && found(`${path}/${REDIRECT}`)));
    }
    this.#watched.set(watched.sandboxId, { generation: watched.generation, end: () => stack.dispose() });
  }

  remove(sandboxId: string): void {
    this.#watched.get(sandboxId)?.end();
    this.#watched.delete(sandboxId);
  }

  [Symbol.dispose](): void {
    for (const sandboxId of [...this.#watched.keys()]) this.remove(sandboxId);
  }
}

/** Calls `look` now and whenever something called {@link REDIRECT} may have come; returns what ends that. */
function follow(folder: FolderHandle, look: () => void): () => void {
  let timer: NodeJS.Timeout | undefined;
  let watcher: FSWatcher | undefined;
  const poll = (): void => {
    watcher?.close();
    watcher = undefined;
    timer ??= setInterval(look, POLL_MS).unref();
  };
  try {
    watcher = watch(folder.at("."), { persistent: false }, (_, name) => {
      if (name === REDIRECT || name === null) look();
    });
    watcher.on("error", poll);
  } catch (error) {
    if (systemCode(error) === undefined) throw error;
    poll();
  }
  // It may have come before the watch did.
  look();
  return () => {
    watcher?.close();
    clearInterval(timer);
  };
}

/**
 * Moves it aside, for the owner to look at; true when there was one. What cannot be moved is removed, but no folder with
 * what is in it: git reads none, and the agent could exchange parts of it meanwhile.
 */
function takeAway(folder: FolderHandle): boolean {
  const at = folder.at(REDIRECT);
  if (lstatSync(at, { throwIfNoEntry: false }) === undefined) return false;
  try {
    renameSync(at, folder.at(`${REDIRECT}.planted-${randomBytes(4).toString("hex")}`));
  } catch (error) {
    if (systemCode(error) === undefined) throw error;
    try {
      unlinkSync(at);
    } catch (left) {
      // It stays, or has gone by itself; the sandbox ends in any case.
      if (systemCode(left) === undefined) throw left;
    }
  }
  return true;
}
