import { escapeUntrusted, RuntimeError } from "@openshell/base";
import { BoundaryError } from "@openshell/boundary/local/boundary-error.ts";

/** A program that could not be executed, as a shell tells it (POSIX, Shell Command Language 2.8.2). */
export interface StartFailure {
  /** 127: it does not exist. 126: it exists and cannot be executed. */
  readonly code: 126 | 127;
  readonly message: string;
}

const MISSING = new Set(["ENOENT", "ENOTDIR"]);
const NOT_EXECUTABLE = new Set(["EACCES", "ENOEXEC", "EPERM", "EISDIR", "ELOOP", "ENAMETOOLONG", "E2BIG"]);

/** What the kernel's refusal of execve means for whoever asked; undefined when something else failed. */
export function startFailure(error: unknown, program: string): StartFailure | undefined {
  if (!(error instanceof BoundaryError) || error.step !== "exec") return undefined;
  const name = escapeUntrusted(program, 200);
  if (MISSING.has(error.errno)) return { code: 127, message: `${name}: command not found in the sandbox` };
  if (NOT_EXECUTABLE.has(error.errno)) return { code: 126, message: `${name}: cannot be executed (${error.errno})` };
  return undefined;
}

/** A working directory that cannot be entered, named; any other error as it is. */
export function describeFolderFailure(error: unknown, folder: string): unknown {
  if (!(error instanceof BoundaryError) || error.step !== "cwd") return error;
  const name = escapeUntrusted(folder, 200);
  const problem = MISSING.has(error.errno) ? "is not a folder in the sandbox" : `cannot be entered (${error.errno})`;
  return new RuntimeError("working_directory_unusable", `working directory ${name} ${problem}; nothing was started`, {
    next: "Make the folder first, or name another one",
    cause: error,
  });
}

/** A program that could not be executed as a main process, which has nobody to give a code to: an error that names the program and keeps the kernel's words. */
export function describeStartFailure(error: unknown, program: string): unknown {
  const failure = startFailure(error, program);
  if (failure === undefined) return error;
  return new RuntimeError("command_not_started", `${failure.message}; exec: ${(error as BoundaryError).errno}`, {
    next: "Name a program of the machine's system folders (of the image with --from), or mount the folder that holds it with --volume",
    cause: error,
  });
}
