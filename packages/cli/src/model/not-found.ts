import { accessSync, constants, realpathSync, statSync } from "node:fs";
import { basename, delimiter, dirname, join } from "node:path";
import { escapeUntrusted } from "@openshell/base/escape.ts";
import { CliError, EXIT } from "../errors.ts";
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
  return { path, real, folder: folderToMount(real, env["HOME"]) };
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

/**
 * A package of npm needs its neighbours; `X/bin/program` may need `X/lib`; everything else its own folder. An X that holds
 * more than programs (the home, `~/.local` with its keys and OpenShell's own state) is never advised.
 */
function folderToMount(real: string, home: string | undefined): string {
  const packages = real.indexOf("/node_modules/");
  if (packages !== -1) return real.slice(0, packages + "/node_modules".length);
  const folder = dirname(real);
  const parent = dirname(folder);
  const wide = parent === "/" || (home !== undefined && (within(home, parent) || parent === join(home, ".local")));
  return basename(folder) === "bin" && !wide ? parent : folder;
}

function within(path: string, folder: string): boolean {
  return path === folder || path.startsWith(`${folder}/`);
}

/** What execve(2) said when the main process could not be started, as a shell's status; undefined for every other failure. */
export function startFailureCode(error: unknown): number | undefined {
  const message = error instanceof Error ? error.message : "";
  const code = /\bexec: (ENOENT|ENOTDIR|EACCES|ENOEXEC|EPERM)\b/.exec(message)?.[1];
  if (code === undefined) return undefined;
  return code === "ENOENT" || code === "ENOTDIR" ? EXIT.notFound : EXIT.notExecutable;
}

/**
 * The error for a command that could not be run inside: says where it is on this machine, if it is, and what to add.
 * `existing`: the sandbox is there already, so it cannot be given volumes any more.
 * `undefined` when there is nothing to say: a program inside ended with 127 for a reason of its own.
 */
export function notFoundError(
  command: readonly string[],
  code: number,
  startFailed: boolean,
  env: Readonly<Record<string, string | undefined>>,
  volumes: readonly Volume[],
  existing = false,
): CliError | undefined {
  const program = command[0] ?? "";
  const shown = escapeUntrusted(program);
  if (code === EXIT.notExecutable) {
    if (!startFailed) return undefined;
    return new CliError(`${shown} exists in the sandbox but cannot be executed`, {
      code: "program_not_executable",
      exitCode: code,
      next: "Check that it is executable and made for this machine, and that its interpreter (first line) exists inside",
    });
  }
  const found = findOutside(program, env, volumes);
  if (found === undefined) {
    if (!startFailed) return undefined;
    // `run "make test"`: a shell's line in quotes is one word, so the name of a program.
    const line = command.length === 1 && /\S\s+\S/.test(program);
    return new CliError(`${line ? `a program called "${shown}"` : shown} does not exist in the sandbox`, {
      code: "program_not_found",
      exitCode: code,
      next: line
        ? `Write it without quotes: -- ${shown}; or give it to a shell: -- sh -c ${escapeUntrusted(shellWord(program), 1024)}`
        : "Check its name. The sandbox has this machine's system folders and what --volume mounts",
    });
  }
  const words = [found.real, ...command.slice(1)].map(shellWord).join(" ");
  const volume = shellWord(`${found.folder}:${found.folder}:ro`);
  const mount = escapeUntrusted(volume, 1024);
  const where = found.real === found.path ? found.path : `${found.path} (a link to ${found.real})`;
  return new CliError(
    `${shown} is at ${escapeUntrusted(where, 1024)} on this machine, but the sandbox does not contain it`,
    {
      code: "program_not_found",
      exitCode: code,
      next: existing
        ? `Create the sandbox with --volume ${mount}, and name the program by its path: ${escapeUntrusted(words, 1024)}`
        : `Mount it and name it by its path: openshell run … --volume ${mount} -- ${escapeUntrusted(words, 1024)}`,
    },
  );
}

/** One word for a POSIX shell. */
export function shellWord(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}
