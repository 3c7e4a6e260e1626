import { describeError, escapeUntrusted, RuntimeError, systemCode } from "@openshell/base";
import { DriverError, type SandboxIntent } from "../driver.ts";
import { fileSystemOf } from "./host-files.ts";
import { isWithin } from "./root-view.ts";

/** EAGAIN, ENOMEM, EBUSY, ENFILE, EMFILE, ENOSPC: the machine is short of something now. */
const PASSING_ERRNOS: ReadonlySet<unknown> = new Set([11, 12, 16, 23, 24, 28]);
const PASSING_CODES: ReadonlySet<unknown> = new Set(["EAGAIN", "ENOMEM", "EBUSY", "ENFILE", "EMFILE", "ENOSPC"]);

/** Whether the system said that something is short now. */
export function isPassing(error: unknown): boolean {
  return PASSING_CODES.has(systemCode(error));
}

/** What the launcher's error carries as its cause (packages/boundary/src/local/launch.ts), or a system error. */
interface Cause {
  readonly step?: unknown;
  readonly detail?: unknown;
  readonly errno?: unknown;
  readonly code?: unknown;
}

/**
 * The driver's error for whatever ended a launch. Names the file system where an id map was refused, since moving the
 * folder is all the caller can do then.
 */
export function launchFailed(error: unknown, intent: Pick<SandboxIntent, "volumes" | "root">): DriverError {
  if (error instanceof DriverError) return error;
  const cause = (error instanceof RuntimeError ? error.cause : error) as Cause | null | undefined;
  const { root, volumes } = intent;
  const detail = typeof cause?.detail === "string" ? cause.detail : "";
  const source = volumes.find((volume) => isWithin(detail, volume.source))?.source;
  if (root.kind !== "host") {
    const failure = imageFailure(root.source, cause, detail);
    if (failure !== undefined) return failure;
  }
  if (cause?.step === "volume-idmap" && source !== undefined) {
    return new DriverError(
      "volume_unavailable",
      `${escapeUntrusted(source)} lies on a file system (${fileSystemOf(source) ?? "unknown"}) that refuses id-mapped mounts`,
      { next: "Move the folder to ext4, xfs, btrfs or tmpfs, or run the gateway as the folder's owner", cause: error },
    );
  }
  const retryable = PASSING_ERRNOS.has(cause?.errno) || PASSING_CODES.has(cause?.code);
  const known = error instanceof RuntimeError;
  return new DriverError(
    "launch_failed",
    known ? error.message : `the sandbox could not be started: ${describeError(error)}`,
    {
      next: known ? error.next : "",
      cause: error,
      retryable,
    },
  );
}

/** What a kernel or file system that cannot carry an image root answers. */
function imageFailure(source: string, cause: Cause | null | undefined, detail: string): DriverError | undefined {
  if (cause?.step === "overlay") {
    return new DriverError(
      "image_unavailable",
      "the sandbox's writable layer cannot be put over the image: the kernel (5.11 or later) or the file system of the gateway's state does not carry overlayfs in a user namespace",
      {
        next: "Keep the gateway's state on ext4, xfs, btrfs or tmpfs (XDG_STATE_HOME), or create it without an image",
        cause,
      },
    );
  }
  if (cause?.step === "volume-idmap" && isWithin(detail, source)) {
    const type = fileSystemOf(source) ?? "unknown";
    return new DriverError(
      "image_unavailable",
      `${escapeUntrusted(source)} lies on a file system (${type}) that refuses id-mapped mounts`,
      { next: "Pack the folder into a tar archive and name that, or move it to ext4, xfs, btrfs or tmpfs", cause },
    );
  }
  return undefined;
}
