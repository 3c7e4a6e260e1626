import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import type { FieldViolation } from "@openshell/api/violations.ts";
import type { VolumeRequest } from "@openshell/drivers/driver.ts";
import { parseVolume } from "@openshell/drivers/local/volumes.ts";
import { STAGING_TOKEN } from "./image-root.ts";

/** Volumes of one sandbox. */
export const MAX_VOLUMES = 64;
const FIELD = "spec.template.driver_config.local";
const KEYS: readonly string[] = ["root", STAGING_TOKEN, "volumes"];

/**
 * `driver_config.local.volumes` of a template: a list of `SRC:DST[:ro]`. Other keys of the block are refused, blocks of
 * other drivers mean nothing here.
 */
export function localVolumes(driverConfig: JsonObject | undefined): {
  readonly volumes: readonly VolumeRequest[];
  readonly violations: readonly FieldViolation[];
} {
  const local = driverConfig?.local;
  if (local === undefined || local === null) return { volumes: [], violations: [] };
  if (typeof local !== "object" || Array.isArray(local)) return refuse(FIELD, "must be an object");
  const unknown = Object.keys(local).find((key) => !KEYS.includes(key));
  if (unknown !== undefined) return refuse(`${FIELD}.${unknown}`, `is unknown; the keys are ${KEYS.join(", ")}`);
  const list: JsonValue = local.volumes ?? [];
  if (!Array.isArray(list)) return refuse(`${FIELD}.volumes`, "must be a list of SRC:DST[:ro]");
  if (list.length > MAX_VOLUMES) return refuse(`${FIELD}.volumes`, `must have at most ${MAX_VOLUMES} entries`);
  const violations: FieldViolation[] = [];
  const volumes = list.flatMap((entry, index): VolumeRequest[] => {
    const parsed = typeof entry === "string" ? absoluteVolume(entry) : undefined;
    if (parsed !== undefined) return [parsed];
    violations.push({
      field: `${FIELD}.volumes[${index}]`,
      description: "must be SRC:DST or SRC:DST:ro, with absolute paths",
    });
    return [];
  });
  return { volumes, violations };
}

/** The driver's own grammar; a path relative to nobody's working folder is refused. */
function absoluteVolume(text: string): VolumeRequest | undefined {
  if (!text.startsWith("/")) return undefined;
  try {
    return parseVolume(text, "/");
  } catch {
    return undefined;
  }
}

function refuse(field: string, description: string) {
  return { volumes: [], violations: [{ field, description }] };
}
