import { accessSync, constants, realpathSync, statSync } from "node:fs";
import { basename, delimiter, dirname, join } from "node:path";
import type { Volume } from "./workload.ts";

/** What is the same inside: the host's system folders. `/usr/local` belongs to them. */
const VISIBLE = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

export interface FoundOutside {
  /** Where the shell finds it. */
  readonly path: string;
  /** Where its content is, behind links. */
  readonly real: string;
  /** Folder to mount so that it runs inside. */
  readonly folder: string;
}

/**
 * For a command that does not exist inside: where it is on this machine. Undefined when it is nowhere, or when it should
 * exist inside as well (then its own exit status 127 meant something else).
 */
export function findOutside(
  command: string,
  env: Readonly<Record<string, string | undefined>>,
  volumes: readonly Volume[],
): FoundOutside | undefined {
  const path = command.includes("/") ? command : searchPath(command, env["PATH"] ?? "");
  if (path === undefined || !path.startsWith("/") || !isProgram(path)) return undefined;
  const real = realpathSync(path);
  const visible = (file: string): boolean =>
    VISIBLE.some((folder) => within(file, folder)) ||
    volumes.some(({ source, target }) => source === target && within(file, source));
  if (visible(path) && visible(real)) return undefined;
  return { path, real, folder: folderToMount(real) };
}

function searchPath(name: string, path: string): string | undefined {
  return path
    .split(delimiter)
    .filter((folder) => folder.startsWith("/"))
    .map((folder) => join(folder, name))
    .find(isProgram);
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

/** A package of npm needs its neighbours; `X/bin/program` may need `X/lib`; everything else its own folder. */
function folderToMount(real: string): string {
  const packages = real.indexOf("/node_modules/");
  if (packages !== -1) return real.slice(0, packages + "/node_modules".length);
  const folder = dirname(real);
  return basename(folder) === "bin" && dirname(folder) !== "/" ? dirname(folder) : folder;
}

function within(path: string, folder: string): boolean {
  return path === folder || path.startsWith(`${folder}/`);
}

/** One word for a POSIX shell. */
export function shellWord(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}
