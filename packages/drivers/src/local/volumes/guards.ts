import { posix } from "node:path";
import { escapeUntrusted } from "@openshell/base";
import { DriverError } from "../../driver.ts";
import { type HostEntry, type HostFiles, MAX_FOLDER_ENTRIES } from "../host-files.ts";
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
/** Entries of these folders together, after which no further folder is looked into: half a second. */
export const MAX_ENTRIES = 200_000;
/** Guards of one volume; each is a mount. */
export const MAX_GUARDS = 128;
/** Git folders of one volume that are watched for redirections; each costs a descriptor and a watch. */
export const MAX_GIT_FOLDERS = 128;
/** Files and folders that one git configuration may name: it may be the agent's, and each is looked up. */
const MAX_NAMED = 32;

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
  /** Folders of submodules, and how deep: the agent can make them, so whatever else a folder has is guarded before. */
  #modules: { readonly folder: string; readonly depth: number }[] = [];
  #looked = 0;
  #seen = 0;

  constructor(source: string, files: HostFiles, deep: boolean) {
    this.#source = source;
    this.#files = files;
    this.#deep = deep;
  }

  run(): Guarded {
    const pending = [""];
    const later: string[] = [];
    while (this.#looked < (this.#deep ? MAX_FOLDERS : 1) && this.#seen < MAX_ENTRIES) {
      const folder = pending.shift() ?? later.shift();
      if (folder === undefined) break;
      this.#looked += 1;
      const entries = this.#entries(folder);
      if (folder === "") this.#top(entries);
      const isGit = isGitFolder((name) => entries.find((entry) => entry.name === name)?.kind);
      if (isGit) this.#gitFolder(folder, folder);
      // What passes for a git folder may be made to hide the rest; a real one's many folders come last.
      const queue = isGit ? later : pending;
      for (const entry of entries) if (this.#look(folder, entry)) queue.push(join(folder, entry.name));
      this.#submodules();
    }
    return { guards: [...this.#guards.values()], gitFolders: this.#gitFolders, sockets: this.#sockets };
  }

  /** What is missing at the top. */
  #top(entries: readonly HostEntry[]): void {
    if (this.#seen >= MAX_FOLDER_ENTRIES) throw this.#tooFull();
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
    if (!kinds.has("config.worktree") && /^[ \t]*worktreeConfig\b/im.test(text)) {
      this.#add({ path: join(path, "config.worktree"), readOnly: true, hold: "file" });
    }
    if (!kinds.has("commondir") && this.#gitFolders.length < MAX_GIT_FOLDERS) this.#gitFolders.push(path);
    const { hooksPath, path: included } = namedPaths(text);
    // Stand-ins for what the owner's own configuration names only: an agent's could name whatever it likes.
    for (const value of hooksPath) this.#named(workTree, value, isTop ? "folder" : undefined);
    for (const value of included) this.#named(path, value, isTop ? "file" : undefined);
    if (this.#deep && kinds.get("modules") === "directory") {
      this.#modules.push({ folder: join(path, "modules"), depth: 1 });
    }
  }

  /** Git folders of submodules. */
  #submodules(): void {
    for (let next = this.#modules.shift(); next !== undefined; next = this.#modules.shift()) {
      if (this.#looked >= MAX_FOLDERS || this.#seen >= MAX_ENTRIES) return;
      this.#looked += 1;
      for (const { name, kind } of this.#entries(next.folder)) {
        if (this.#looked >= MAX_FOLDERS) return;
        if (kind !== "directory") continue;
        const path = join(next.folder, name);
        if (this.#files.kind(`${this.#source}/${path}/HEAD`) !== "file") {
          if (next.depth < MODULE_DEPTH) this.#modules.push({ folder: path, depth: next.depth + 1 });
          continue;
        }
        this.#looked += 1;
        this.#gitFolder(path, path);
      }
    }
  }

  /** A file or folder that a git configuration names, where that lies in the volume. */
  #named(base: string, value: string, hold: Guard["hold"]): void {
    const path = posix.resolve(this.#source, base, value);
    if (value === "" || path === this.#source || !isWithin(path, this.#source)) return;
    const below = path.slice(this.#source.length + 1);
    const isMissing = this.#files.kind(path) === undefined && !/[\u0000-\u001f\u007f]/.test(value);
    const parent = posix.dirname(path);
    if (!isMissing) this.#existing(below);
    else if (hold !== undefined && this.#files.kind(parent) === "directory" && this.#files.realPath(parent) === parent)
      this.#add({ path: below, readOnly: true, hold });
  }

  #existing(path: string): void {
    const kind = this.#files.kind(`${this.#source}/${path}`);
    // A link on the way would be refused by the launcher.
    const plain = this.#files.realPath(`${this.#source}/${path}`) === `${this.#source}/${path}`;
    if (plain && (kind === "directory" || kind === "file")) this.#add({ path, readOnly: true });
  }

  #entries(folder: string): readonly HostEntry[] {
    const entries = this.#files.entries(join(this.#source, folder));
    this.#seen += entries.length;
    // A name that is no UTF-8 cannot be named in a plan; none on the list is one.
    return entries.filter(({ name }) => !/[\ufffd\u0000-\u001f\u007f]/.test(name));
  }

  #add(guard: Guard): void {
    if (this.#guards.size < MAX_GUARDS && !this.#guards.has(guard.path)) this.#guards.set(guard.path, guard);
  }

  /** What was not read might be what is to be guarded, and the agent could have seen to that. */
  #tooFull(): DriverError {
    return new DriverError(
      "volume_refused",
      `${escapeUntrusted(this.#source)} has ${MAX_FOLDER_ENTRIES} entries or more, too many to keep its start-up files read-only`,
      { next: "Mount a folder with fewer files at its top, or mount it :ro, or :rw-all to open everything" },
    );
  }

  #refused(path: string): DriverError {
    return new DriverError(
      "volume_refused",
      `${escapeUntrusted(`${this.#source}/${path}`)} is a link, so the agent could replace what git runs`,
      { next: "Mount it :ro, put a folder or file in the link's place, or open everything with :rw-all" },
    );
  }
}

/** What a git configuration names under two keys, in any section. Line by line, since the text may be the agent's. */
function namedPaths(text: string): { readonly hooksPath: readonly string[]; readonly path: readonly string[] } {
  const found = { hooksPath: new Set<string>(), path: new Set<string>() };
  for (const line of text.split("\n")) {
    const at = line.indexOf("=");
    // A section's head may be on the same line.
    const key = line
      .slice(line.lastIndexOf("]", at) + 1, Math.max(at, 0))
      .trim()
      .toLowerCase();
    const values = key === "hookspath" ? found.hooksPath : key === "path" ? found.path : undefined;
    if (values === undefined || values.size >= MAX_NAMED) continue;
    values.add(
      line
        .slice(at + 1)
        .trim()
        .replace(/^"|"$/g, ""),
    );
  }
  return { hooksPath: [...found.hooksPath], path: [...found.path] };
}

function join(folder: string, name: string): string {
  return folder === "" ? name : name === "" ? folder : `${folder}/${name}`;
}
