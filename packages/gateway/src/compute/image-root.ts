import type { JsonObject } from "@bufbuild/protobuf";
import type { FieldViolation } from "@openshell/api/violations.ts";
import type { SandboxRoot } from "@openshell/drivers/driver.ts";

const FIELD = "spec.template.driver_config.local";
const MAX_BYTES = 1_024;
/** Key of the token that names a staged archive. */
export const STAGING_TOKEN = "rootfs_tar_staging_token";
/** A token as `BeginRootfsTarStaging` gives it: 32 bytes in base64url. */
const TOKEN = /^[A-Za-z0-9_-]{43}$/;

/**
 * `driver_config.local.root` of a template: a folder of this machine that is a root file system, or an archive of one.
 * `rootfs_tar_staging_token` in its place: an archive that the caller copied into a slot. Neither: the machine's own system folders.
 */
export function imageRoot(driverConfig: JsonObject | undefined): {
  readonly root: SandboxRoot;
  readonly token: string | undefined;
  readonly violations: readonly FieldViolation[];
} {
  const local = localBlock(driverConfig);
  const [given, token] = [local["root"] ?? undefined, local[STAGING_TOKEN] ?? undefined];
  const violations: FieldViolation[] = [];
  const host: SandboxRoot = { kind: "host" };
  const isPath = typeof given === "string" && given.startsWith("/") && Buffer.byteLength(given) <= MAX_BYTES;
  if (given !== undefined && !isPath) {
    const description = "must be the absolute path of a folder, .tar or .tar.gz on the gateway's machine";
    violations.push({ field: `${FIELD}.root`, description });
  }
  const isToken = typeof token === "string" && TOKEN.test(token);
  if (token !== undefined && !isToken) {
    violations.push({ field: `${FIELD}.${STAGING_TOKEN}`, description: "must be a token of BeginRootfsTarStaging" });
  }
  if (given !== undefined && token !== undefined) {
    violations.push({ field: `${FIELD}.${STAGING_TOKEN}`, description: "cannot be combined with root" });
  }
  return {
    root: isPath && violations.length === 0 ? { kind: "image", source: given } : host,
    token: isToken && violations.length === 0 ? token : undefined,
    violations,
  };
}

/** The configuration as it is stored: a token that was presented is worth nothing, and nobody's to see. */
export function withoutToken(driverConfig: JsonObject): JsonObject {
  const { [STAGING_TOKEN]: _, ...local } = localBlock(driverConfig);
  return { ...driverConfig, local };
}

function localBlock(driverConfig: JsonObject | undefined): JsonObject {
  const local = driverConfig?.["local"];
  return typeof local === "object" && local !== null && !Array.isArray(local) ? local : {};
}
