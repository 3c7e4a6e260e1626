import { posix } from "node:path";
import { escapeUntrusted } from "@openshell/base";
import { DriverError } from "../../driver.ts";
import type { HostEntry, HostFiles } from "../host-files.ts";
import { isWithin } from "../root-view.ts";
import {
  isGitFolder,
  MODULE_DEPTH,
  SKIPPED_FOLDERS,
  START_UP_FILES,
  startUpFile,
  startUpFilesBelow,
} from "./start-up-files.ts";

/** Folders of one volume that are looked into when a sandbox starts: some 20 ms. What lies deeper is reported only. */
export const MAX_FOLDERS = 1_000;
/** Guards of one volume; each is a mount. */
export const MAX_GUARDS = 128;

/** One path of a writable volume that is mounted once more over itself. */
export interface Guard {
  /** Below the volume, without a leading slash. */
  readonly path: string;
  /** False: only so that it cannot be renamed away. */
  readonly readOnly: boolean;
  /** It does not exist: an empty one is made for the sandbox's life (`holds.ts`). */
  readonly hold?: "folder" | "file";
}

export interface Guarded {
  readonly guards: readonly Guard[];
  /** Git folders in which nothing called `commondir` may appear. */
  readonly gitFolders: readonly string[];
  /** Unix sockets that lie in it, whoever listens. */
  readonly sockets: readonly string[];
}

/**
 * What of a writable folder becomes read-only. `deep`: in every folder below as well, breadth first, up to
 * {@link MAX_FOLDERS}; links are never followed.
 *
 * Throws `volume_refused` where the files of the volume's own repository are links, which no mount can hold in place.
 */
export function findGuards(source: string, files: HostFiles, deep: boolean): Guarded {
  return new Search(source, files, deep).run();
}

class Search {
  readonly #source: string;
  readonly #files: HostFiles;
  readonly #deep: boolean;
  readonly #guards = new Map<string, Guard>();
  readonly #gitFolders: string[] = [];
  readonly #sockets: string[] = [];

  constructor(source: string, files: HostFiles, deep: boolean) {
    this.#source = source;
    this.#files = files;
    this.#deep = deep;
  }

  run(): Guarded {
    const pending = [""];
    for (let looked = 0; looked < (this.#deep ? MAX_FOLDERS : 1); looked++) {
      const folder = pending.shift();
      if (folder === undefined) break;
      const entries = this.#entries(folder);
      if (folder === "") this.#top(entries);
      if (isGitFolder((name) => entries.find((entry) => entry.name === name)?.kind)) {
        this.#gitFolder(folder, folder);
        continue;
      }
      for (const entry of entries) if (this.#look(folder, entry)) pending.push(join(folder, entry.name));
    }
    return { guards: [...this.#guards.values()], gitFolders: this.#gitFolders, sockets: this.#sockets };
  }

  /** What is missing at the top. */
  #top(entries: readonly HostEntry[]): void {
    const kind = new Map(entries.map((entry) => [entry.name, entry.kind]));
    const isRepository = kind.has(".git");
    const isHome = [".bashrc", ".profile", ".zshrc"].some((name) => kind.has(name));
    for (const { name, hold } of START_UP_FILES) {
      const wanted = (hold === "repository" && isRepository) || (hold === "home" && isHome);
      if (wanted && !kind.has(name)) this.#add({ path: name, readOnly: true, hold: "folder" });
    }
    // A part of somebody's repository is no place for another one: git would take that one instead.
    if (!isRepository && this.#insideRepository()) this.#add({ path: ".git", readOnly: true, hold: "folder" });
  }

  #insideRepository(): boolean {
    for (let at = posix.dirname(this.#source); at !== "/"; at = posix.dirname(at)) {
      if (this.#files.kind(`${at}/.git`) !== undefined) return true;
    }
    return false;
  }

  /** True for a folder that is to be looked into. */
  #look(folder: string, { name, kind }: HostEntry): boolean {
    const path = join(folder, name);
    if (kind === "socket") this.#sockets.push(path);
    if (kind !== "directory" && kind !== "file") {
      if (kind === "symlink" && path === ".git") throw this.#refused(path);
      return false;
    }
    if (name === ".git") {
      if (kind === "file") this.#add({ path, readOnly: true });
      else this.#gitFolder(path, folder);
      return false;
    }
    if (startUpFile(name, folder === "") !== undefined) {
      this.#add({ path, readOnly: true });
      return false;
    }
    for (const below of startUpFilesBelow(name, folder === "")) this.#existing(join(folder, below.name));
    return kind === "directory" && !SKIPPED_FOLDERS.has(name);
  }

  /** `workTree`: where relative paths of its configuration begin. */
  #gitFolder(path: string, workTree: string): void {
    // Mounted on itself: a mount point cannot be renamed away, so nothing can take its place.
    if (path !== "") this.#add({ path, readOnly: false });
    const isTop = path === ".git" || path === "";
    const kinds = new Map(this.#entries(path).map(({ name, kind }) => [name, kind]));
    for (const name of ["hooks", "config", "config.worktree", "commondir", "worktrees"]) {
      const kind = kinds.get(name);
      if (kind === "symlink" && isTop) throw this.#refused(join(path, name));
      if (kind === "directory" || kind === "file") this.#add({ path: join(path, name), readOnly: true });
    }
    const text = this.#files.read(`${this.#source}/${join(path, "config")}`) ?? "";
    if (!kinds.has("hooks")) this.#add({ path: join(path, "hooks"), readOnly: true, hold: "folder" });
    if (!kinds.has("config")) this.#add({ path: join(path, "config"), readOnly: true, hold: "file" });
    if (!kinds.has("config.worktree") && /^\s*worktreeConfig\b/im.test(text)) {
      this.#add({ path: join(path, "config.worktree"), readOnly: true, hold: "file" });
    }
    if (!kinds.has("commondir")) this.#gitFolders.push(path);
    for (const [, value = ""] of text.matchAll(/^\s*hooksPath\s*=\s*"?([^"\n]*?)"?\s*$/gim))
      this.#named(workTree, value);
    for (const [, value = ""] of text.matchAll(/^\s*path\s*=\s*"?([^"\n]*?)"?\s*$/gim)) this.#named(path, value);
    if (this.#deep && kinds.get("modules") === "directory") this.#modules(join(path, "modules"), 1);
  }

  /** Git folders of submodules. */
  #modules(folder: string, depth: number): void {
    for (const { name, kind } of this.#entries(folder)) {
      const path = join(folder, name);
      if (kind !== "directory") continue;
      if (this.#files.kind(`${this.#source}/${path}/HEAD`) === "file") this.#gitFolder(path, path);
      else if (depth < MODULE_DEPTH) this.#modules(path, depth + 1);
    }
  }

  /** A file or folder that a git configuration names, where that lies in the volume. */
  #named(base: string, value: string): void {
    const path = posix.resolve(this.#source, base, value);
    if (value !== "" && path !== this.#source && isWithin(path, this.#source)) {
      this.#existing(path.slice(this.#source.length + 1));
    }
  }

  #existing(path: string): void {
    const kind = this.#files.kind(`${this.#source}/${path}`);
    // A link on the way would be refused by the launcher.
    const plain = this.#files.realPath(`${this.#source}/${path}`) === `${this.#source}/${path}`;
    if (plain && (kind === "directory" || kind === "file")) this.#add({ path, readOnly: true });
  }

  #entries(folder: string): readonly HostEntry[] {
    // A name that is no UTF-8 cannot be named in a plan; none on the list is one.
    return this.#files
      .entries(join(this.#source, folder))
      .filter(({ name }) => !/[\ufffd\u0000-\u001f\u007f]/.test(name));
  }

  #add(guard: Guard): void {
    if (this.#guards.size < MAX_GUARDS && !this.#guards.has(guard.path)) this.#guards.set(guard.path, guard);
  }

  #refused(path: string): DriverError {
    return new DriverError(
      "volume_refused",
      `${escapeUntrusted(`${this.#source}/${path}`)} is a link, so the agent could replace what git runs`,
      { next: "Mount it :ro, put a folder or file in the link's place, or open everything with :rw-all" },
    );
  }
}

function join(folder: string, name: string): string {
  return folder === "" ? name : name === "" ? folder : `${folder}/${name}`;
}
