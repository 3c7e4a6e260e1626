import { posix } from "node:path";
import type { HostFiles } from "./host-files.ts";

/** A host in memory for unit tests: path → `dir`, `file`, `other`, or `-> target` for a link. Parents exist by themselves. */
export function memoryHost(
  entries: Readonly<Record<string, string>>,
  sockets: readonly string[] = [],
  fileSystems: Readonly<Record<string, string>> = {},
): HostFiles {
  const all = new Map(Object.entries(entries));
  for (const path of Object.keys(entries)) {
    for (let parent = posix.dirname(path); parent !== "/"; parent = posix.dirname(parent)) {
      if (!all.has(parent)) all.set(parent, "dir");
    }
  }
  const linkOf = (path: string): string | undefined => /^-> (.*)$/.exec(all.get(path) ?? "")?.[1];
  const realPath = (path: string, depth = 0): string | undefined => {
    if (depth > 40) return undefined;
    let real = "/";
    const parts = path.split("/").filter((part) => part !== "");
    for (const [index, part] of parts.entries()) {
      const next = posix.join(real, part);
      const link = linkOf(next);
      if (link !== undefined) {
        return realPath(posix.join(posix.resolve(real, link), ...parts.slice(index + 1)), depth + 1);
      }
      if (!all.has(next)) return undefined;
      real = next;
    }
    return real;
  };
  return {
    kind(path) {
      const parent = realPath(posix.dirname(path));
      const entry = parent === undefined ? undefined : all.get(posix.join(parent, posix.basename(path)));
      if (entry === undefined) return undefined;
      if (entry.startsWith("->")) return "symlink";
      return entry === "dir" ? "directory" : entry === "file" ? "file" : "other";
    },
    readLink: (path) => linkOf(path) ?? "",
    realPath: (path) => realPath(path),
    list: (folder) =>
      [...all.keys()]
        .filter((path) => posix.dirname(path) === folder)
        .map((path) => posix.basename(path))
        .sort(),
    identity: (path) => realPath(path),
    fileSystem: (path) => fileSystems[path] ?? "ext4",
    sockets: () => sockets,
  };
}
