import { lstatSync, readdirSync, readlinkSync, realpathSync } from "node:fs";

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
};
