import { lstatSync, readdirSync, readFileSync, readlinkSync, realpathSync } from "node:fs";

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
  /** Paths of Unix sockets that somebody on the machine bound, as far as this process's network namespace shows them. */
  sockets(): readonly string[];
}

export const hostFiles: HostFiles = {
  kind(path) {
    const stat = lstatSync(path, { throwIfNoEntry: false });
    if (stat === undefined) return undefined;
    if (stat.isSymbolicLink()) return "symlink";
    if (stat.isDirectory()) return "directory";
    return stat.isFile() ? "file" : "other";
  },
  readLink: (path) => readlinkSync(path),
  realPath(path) {
    try {
      return realpathSync(path);
    } catch {
      return undefined;
    }
  },
  list(folder) {
    try {
      return readdirSync(folder).sort();
    } catch {
      return [];
    }
  },
  sockets: () => listeningSockets(readText("/proc/net/unix")),
};

/** Path names in /proc/net/unix (proc(5)): the eighth column, absent for unbound sockets, `@…` for abstract ones. */
export function listeningSockets(table: string): readonly string[] {
  const paths = table.split("\n").flatMap((line) => /^(?:\S+\s+){7}(\/.*)$/.exec(line)?.[1] ?? []);
  return [...new Set(paths)];
}

/** Type of the file system that holds `path`: the mount with the longest mount point above it. */
export function fileSystemOf(path: string, mountinfo = readText("/proc/self/mountinfo")): string | undefined {
  let best: { point: string; type: string } | undefined;
  for (const line of mountinfo.split("\n")) {
    const [left = "", right = ""] = line.split(" - ");
    // Blanks in mount points are written as octal escapes.
    const point = left
      .split(" ")[4]
      ?.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
    const type = right.split(" ")[0];
    if (point === undefined || type === undefined) continue;
    const holds = point === "/" || path === point || path.startsWith(`${point}/`);
    // A later mount on the same point hides the earlier one.
    if (holds && (best === undefined || point.length >= best.point.length)) best = { point, type };
  }
  return best?.type;
}

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
