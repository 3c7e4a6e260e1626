import { closeSync, constants, fstatSync, lstatSync, openSync, readlinkSync, readSync, type Stats } from "node:fs";
import { join } from "node:path";

/** Links followed on the way to one file, as the kernel does. */
const MAX_LINKS = 40;

/** Where a path of an image leads when it is the root, without links; undefined when nowhere. */
export function lookUp(root: string, path: string): { readonly path: string; readonly stat: Stats } | undefined {
  const pending = path.split("/").reverse();
  let at: string[] = [];
  let stat = lstat(root);
  for (let links = 0; pending.length > 0; ) {
    const name = pending.pop()!;
    if (name === "" || name === ".") continue;
    if (name === "..") {
      at.pop();
      continue;
    }
    const host = join(root, ...at, name);
    stat = lstat(host);
    if (stat === undefined) return undefined;
    if (!stat.isSymbolicLink()) {
      at.push(name);
      continue;
    }
    links += 1;
    const target = readLink(host);
    if (links > MAX_LINKS || target === undefined) return undefined;
    if (target.startsWith("/")) at = [];
    pending.push(...target.split("/").reverse());
  }
  const host = join(root, ...at);
  stat = lstat(host);
  return stat === undefined ? undefined : { path: host, stat };
}

/** Text of a regular file of an image; undefined when there is none, or a larger one. */
export function readInside(root: string, path: string, maxBytes: number): string | undefined {
  const found = lookUp(root, path);
  if (found === undefined || !found.stat.isFile()) return undefined;
  let fd: number;
  try {
    // A file that became a pipe meanwhile must not be waited for.
    fd = openSync(found.path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch {
    return undefined;
  }
  try {
    // Whoever may write to the folder could have put a link in its place: what was opened must lie below the root.
    const stat = fstatSync(fd);
    if (!stat.isFile() || stat.size > maxBytes || !readlinkSync(`/proc/self/fd/${fd}`).startsWith(`${root}/`))
      return undefined;
    const buffer = Buffer.alloc(stat.size);
    return buffer.toString("utf8", 0, readSync(fd, buffer, 0, buffer.length, 0));
  } catch {
    return undefined;
  } finally {
    closeSync(fd);
  }
}

function lstat(path: string): Stats | undefined {
  try {
    return lstatSync(path);
  } catch {
    return undefined;
  }
}

function readLink(path: string): string | undefined {
  try {
    return readlinkSync(path);
  } catch {
    return undefined;
  }
}
