import { accessSync, constants } from "node:fs";
import { escapeUntrusted } from "@openshell/base";
import { DriverError, type DriverErrorCode } from "../../driver.ts";
import { type HostFiles, hostFiles } from "../host-files.ts";
import { isWithin } from "../root-view.ts";
import { checkSource, type VolumeRules } from "../volumes.ts";

const CODES: Partial<Record<string, DriverErrorCode>> = {
  volume_invalid: "image_invalid",
  volume_refused: "image_refused",
  volume_unavailable: "image_unavailable",
};

/**
 * Checks who may use this folder or archive as a root, and that it holds nothing that no sandbox may see. Throws
 * `image_invalid`, `image_refused` or `image_unavailable`.
 */
export function checkImageSource(
  source: string,
  rules: Pick<VolumeRules, "caller" | "gatewayUid" | "privateFolders"> & { readonly imageRoots: readonly string[] },
  files: HostFiles = hostFiles,
): "folder" | "archive" {
  const { caller, gatewayUid, imageRoots, privateFolders } = rules;
  if (caller?.uid !== gatewayUid && !imageRoots.some((root) => isWithin(source, root))) {
    throw new DriverError("image_refused", `this caller may not use ${escapeUntrusted(source)} as a root`, {
      next: "Ask over the gateway's local socket as its own user, or have its folder added to [local] image_roots",
    });
  }
  try {
    // Whose it may be was decided above.
    const anywhere = { caller, gatewayUid, volumeRoots: ["/"], privateFolders, idmap: false };
    const kind = checkSource({ source, target: "/", access: "ro" }, anywhere, files) ? "folder" : "archive";
    checkReadable(source, kind);
    if (kind === "folder" && files.list(source).length === 0) {
      throw new DriverError("volume_invalid", `${escapeUntrusted(source)} holds nothing`, {
        next: "Use a folder with the files of a root, or an archive of one",
      });
    }
    return kind;
  } catch (error) {
    const code = error instanceof DriverError ? CODES[error.code] : undefined;
    if (code === undefined) throw error;
    const { message, next } = error as DriverError;
    throw new DriverError(code, `the root: ${message}`, { next: next.replace("Mount a", "Use a"), cause: error });
  }
}

/** Before a sandbox is made, which would only then find out. */
function checkReadable(source: string, kind: "folder" | "archive"): void {
  try {
    accessSync(source, kind === "folder" ? constants.R_OK | constants.X_OK : constants.R_OK);
  } catch (cause) {
    throw new DriverError("volume_unavailable", `${escapeUntrusted(source)} may not be read by the gateway's user`, {
      next: kind === "folder" ? "Open it to that user: chmod u+rx" : "Open it to that user: chmod u+r",
      cause,
    });
  }
}
