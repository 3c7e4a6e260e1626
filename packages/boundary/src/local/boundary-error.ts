import { RuntimeError } from "@openshell/base";
import { describeErrno, errnoName } from "./errno.ts";

/** Init refused or could not carry out a request. */
export class BoundaryError extends RuntimeError {
  /** What init was doing: `exec`, `cwd`, `landlock-path`, … (docs/architecture/init.md). */
  readonly step: string;
  /** Name of the kernel's error, such as `ENOENT`. */
  readonly errno: string;

  constructor(step: string, errno: number, detail: string) {
    const object = detail === "" ? "" : ` (${detail})`;
    super("boundary_request_failed", `Sandbox init: ${step}${object}: ${describeErrno(errno)}`);
    this.name = "BoundaryError";
    this.step = step;
    this.errno = errnoName(errno);
  }
}

/** The connection to init ended before it answered: the outcome is unknown. */
export function boundaryLost(reason: string): RuntimeError {
  return new RuntimeError("boundary_lost", `The connection to the sandbox ended: ${reason}`, {
    next: "Look at the sandbox's phase; start it again when it has stopped",
  });
}

/** What answers on the control socket is not the init that the launcher started. */
export function boundaryUntrusted(what: string): RuntimeError {
  return new RuntimeError("boundary_untrusted", `The sandbox's init is not trusted: ${what}`, {
    next: "Delete the sandbox; if this repeats, look for a process that interferes with the runtime folder",
  });
}
