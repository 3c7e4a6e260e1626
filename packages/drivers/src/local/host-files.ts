import {
  closeSync,
  constants,
  type Dirent,
  fstatSync,
  lstatSync,
  opendirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  readSync,
  realpathSync,
  statSync,
} from "node:fs";
import { systemCode } from "@openshell/base";

/** The few questions about the host's files that planning asks; tests answer from memory. */
export interface HostFiles {
  /** Undefined when it does not exist or may not be seen. */
  kind(path: string): "directory" | "file" | "symlink" | "other" | undefined;
  /** Text of a symbolic link. */
  readLink(path: string): string;
  /** The path without any link; undefined when it does not lead anywhere. */
  realPath(path: string): string | undefined;
  /** Names in a folder, sorted; empty when it cannot be read. */
  list(folder: string): readonly string[];
  /** What is in a folder, at most {@link MAX_FOLDER_ENTRIES}, sorted by name; empty when it cannot be read. Links are not followed. */
  entries(folder: string, limit?: number): readonly HostEntry[];
  /** Text of a file; undefined when it cannot be read or is larger than {@link MAX_READ_BYTES}. */
  read(path: string): string | undefined;
  /** Whose file it is; undefined when it does not exist. */
  owner(path: string): { readonly uid: number; readonly gid: number } | undefined;
  /** Which file it is, whatever path leads there (device and inode); undefined when it does not exist. */
  identity(path: string): string | undefined;
  /** Type of the file system that holds it. */
  fileSystem(path: string): string | undefined;
  /** Paths of Unix sockets that somebody on the machine bound, as far as this process's network namespace shows them. */
  sockets(): readonly string[];
}

export interface HostEntry {
  readonly name: string;
  readonly kind: "directory" | "file" | "symlink" | "socket" | "other";
}

/** Whoever fills a folder must not fill this process's memory. */
export const MAX_FOLDER_ENTRIES = 100_000;
/** A file of configuration is far smaller. */
const MAX_READ_BYTES = 256 * 1024;

export const hostFiles: HostFiles = {
  kind(path) {
    const stat = quietly(() => lstatSync(path, { throwIfNoEntry: false }));
    if (stat === undefined) return undefined;
    if (stat.isSymbolicLink()) return "symlink";
    if (stat.isDirectory()) return "directory";
    return stat.isFile() ? "file" : "other";
  },
  readLink: (path) => readlinkSync(path),
  realPath: (path) => quietly(() => realpathSync(path)),
  list: (folder) => quietly(() => readdirSync(folder).sort()) ?? [],
  entries(folder, limit = MAX_FOLDER_ENTRIES) {
    const list = quietly(() => readAtMost(folder, limit)) ?? [];
    return list.map((entry) => ({ name: entry.name, kind: kindOf(entry) })).sort((a, b) => (a.name < b.name ? -1 : 1));
  },
  read: (path) => quietly(() => readRegular(path)),
  owner(path) {
    const stat = quietly(() => lstatSync(path, { throwIfNoEntry: false }));
    return stat === undefined ? undefined : { uid: stat.uid, gid: stat.gid };
  },
  identity(path) {
    const stat = quietly(() => statSync(path, { bigint: true, throwIfNoEntry: false }));
    return stat === undefined ? undefined : `${stat.dev}:${stat.ino}`;
  },
  fileSystem: (path) => fileSystemOf(path),
  sockets: () => listeningSockets(readText("/proc/net/unix")),
};

function readAtMost(folder: string, limit: number): readonly Dirent[] {
  using dir = opendirSync(folder, { bufferSize: 1024 });
  const found: Dirent[] = [];
  for (let entry = dir.readSync(); entry !== null && found.length < limit; entry = dir.readSync()) found.push(entry);
  return found;
}

/** The opened file is asked what it is, not its name: somebody may put a pipe there meanwhile, and nothing waits for one. */
function readRegular(path: string): string | undefined {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const stat = fstatSync(fd);
    if (!stat.isFile() || stat.size > MAX_READ_BYTES) return undefined;
    // No more than it had, however fast it grows.
    const bytes = Buffer.alloc(stat.size);
    return bytes.toString("utf8", 0, readSync(fd, bytes, 0, bytes.length, 0));
  } finally {
    closeSync(fd);
  }
}

function kindOf(entry: Dirent): HostEntry["kind"] {
  if (entry.isDirectory()) return "directory";
  if (entry.isFile()) return "file";
  if (entry.isSymbolicLink()) return "symlink";
  return entry.isSocket() ? "socket" : "other";
}

/** Path names in /proc/net/unix (proc(5)): the eighth column, absent for unbound sockets, `@…` for abstract ones. */
export function listeningSockets(table: string): readonly string[] {
  const paths = table.split("\n").flatMap((line) => /^(?:\S+\s+){7}(\/.*)$/.exec(line)?.[1] ?? []);
  return [...new Set(paths)];
}

/** Where something is mounted in this process's view, in the order in which it was, with the file system's type. */
export function mounts(mountinfo = readText("/proc/self/mountinfo")): readonly { point: string; type: string }[] {
  return mountinfo.split("\n").flatMap((line) => {
    const [left = "", right = ""] = line.split(" - ");
    // Blanks in mount points are written as octal escapes.
    const point = left
      .split(" ")[4]
      ?.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
    const type = right.split(" ")[0];
    return point === undefined || type === undefined ? [] : [{ point, type }];
  });
}

/** Type of the file system that holds `path`: the mount with the longest mount point above it. */
export function fileSystemOf(path: string, mountinfo?: string): string | undefined {
  let best: { point: string; type: string } | undefined;
  for (const { point, type } of mounts(mountinfo)) {
    const holds = point === "/" || path === point || path.startsWith(`${point}/`);
    // A later mount on the same point hides the earlier one.
    if (holds && (best === undefined || point.length >= best.point.length)) best = { point, type };
  }
  return best?.type;
}

function readText(path: string): string {
  return quietly(() => readFileSync(path, "utf8")) ?? "";
}

/** What may not be seen is treated as what does not exist: nothing is planned with it. */
function quietly<T>(question: () => T): T | undefined {
  try {
    return question();
  } catch (error) {
    if (systemCode(error) === undefined) throw error;
    return undefined;
  }
}
