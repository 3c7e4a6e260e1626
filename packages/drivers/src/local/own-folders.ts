import { createHash } from "node:crypto";
import { posix } from "node:path";
import { HOME, isWithin, SYSTEM_DIRECTORIES } from "./root-view.ts";

/** More writable places than these are not made; each is a mount. */
const MAX_OWN_FOLDERS = 32;

/** Inside paths that exist anyway, or that nothing may be mounted on. */
const PROVIDED: readonly string[] = [
  ...SYSTEM_DIRECTORIES,
  HOME,
  "/dev",
  "/etc",
  "/proc",
  "/run",
  "/sys",
  "/tmp",
  "/var/run",
  "/var/tmp",
  "/opt/openshell",
];

/**
 * Which of a policy's read_write paths need a folder of the sandbox's own: those that neither the root view nor a volume
 * provides, as images would have them (`/workspace`, `/data`, `/var/log`). A path that contains something that exists
 * (`/var`) is left out, since mounting there would hide it. Sorted, so that outer folders are mounted first.
 */
export function ownFolderTargets(
  writablePaths: readonly string[],
  volumeTargets: readonly string[],
): readonly string[] {
  const provided = [...PROVIDED, ...volumeTargets];
  const wanted = writablePaths.filter(
    (path) =>
      path.startsWith("/") &&
      path !== "/" &&
      posix.normalize(path) === path &&
      !path.endsWith("/") &&
      !provided.some((taken) => isWithin(path, taken) || isWithin(taken, path)),
  );
  const sorted = [...new Set(wanted)].sort();
  // A folder below another of them is made inside it.
  return sorted
    .filter((path) => !sorted.some((outer) => outer !== path && isWithin(path, outer)))
    .slice(0, MAX_OWN_FOLDERS);
}

/** Name of its folder under `sandboxes/<id>/work`. */
export function ownFolderName(target: string): string {
  return createHash("sha256").update(target).digest("hex").slice(0, 16);
}
