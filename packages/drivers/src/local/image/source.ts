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
    return checkSource({ source, target: "/", access: "ro" }, anywhere, files) ? "folder" : "archive";
  } catch (error) {
    const code = error instanceof DriverError ? CODES[error.code] : undefined;
    if (code === undefined) throw error;
    const { message, next } = error as DriverError;
    throw new DriverError(code, `the root: ${message}`, { next: next.replace("Mount a", "Use a"), cause: error });
  }
}
