import type { JsonObject } from "@bufbuild/protobuf";
import type { FieldViolation } from "@openshell/api/violations.ts";
import type { SandboxRoot } from "@openshell/drivers/driver.ts";

const FIELD = "spec.template.driver_config.local.root";
const MAX_BYTES = 1_024;

/**
 * `driver_config.local.root` of a template: a folder of this machine that is a root file system, or an archive of one.
 * Absent: the machine's own system folders.
 */
export function imageRoot(driverConfig: JsonObject | undefined): {
  readonly root: SandboxRoot;
  readonly violations: readonly FieldViolation[];
} {
  const local = driverConfig?.["local"];
  const given = typeof local === "object" && local !== null && !Array.isArray(local) ? local["root"] : undefined;
  const host: SandboxRoot = { kind: "host" };
  if (given === undefined || given === null) return { root: host, violations: [] };
  if (typeof given === "string" && given.startsWith("/") && Buffer.byteLength(given) <= MAX_BYTES) {
    return { root: { kind: "image", source: given }, violations: [] };
  }
  const description = "must be the absolute path of a folder, .tar or .tar.gz on the gateway's machine";
  return { root: host, violations: [{ field: FIELD, description }] };
}
