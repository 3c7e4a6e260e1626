import { posix } from "node:path";
import type { HostFiles } from "./host-files.ts";

/** A host in memory for unit tests: path → `dir`, `file`, `file: TEXT`, `socket`, `other`, or `-> target` for a link. Parents exist by themselves. */
export function memoryHost(
  entries: Readonly<Record<string, string>>,
  sockets: readonly string[] = [],
  fileSystems: Readonly<Record<string, string>> = {},
  owners: Readonly<Record<string, { uid: number; gid: number }>> = {},
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
      return kindOf(entry);
    },
    entries(folder) {
      const real = realPath(folder);
      const inside = [...all].filter(([path]) => posix.dirname(path) === real && path !== "/");
      return inside
        .map(([path, entry]) => ({
          name: posix.basename(path),
          kind: entry === "socket" ? ("socket" as const) : kindOf(entry),
        }))
        .sort((a, b) => (a.name < b.name ? -1 : 1));
    },
    read: (path) => /^file(?:: )?(.*)$/s.exec(all.get(path) ?? "")?.[1],
    owner: (path) => (all.has(path) ? (owners[path] ?? { uid: 1000, gid: 1000 }) : undefined),
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

function kindOf(entry: string): "directory" | "file" | "symlink" | "other" {
  if (entry.startsWith("->")) return "symlink";
  if (entry.startsWith("file")) return "file";
  return entry === "dir" ? "directory" : "other";
}
