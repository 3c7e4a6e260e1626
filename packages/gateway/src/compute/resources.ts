import type { JsonObject } from "@bufbuild/protobuf";
import type { FieldViolation } from "@openshell/api/violations.ts";
import type { ResourceLimits } from "@openshell/drivers/driver.ts";

const ROOT = "spec.template.resources";

const MEMORY_UNITS: Readonly<Record<string, bigint>> = {
  "": 1n,
  k: 1000n,
  M: 1000n ** 2n,
  G: 1000n ** 3n,
  T: 1000n ** 4n,
  Ki: 1024n,
  Mi: 1024n ** 2n,
  Gi: 1024n ** 3n,
  Ti: 1024n ** 4n,
};

/**
 * CPU and memory limits of a template's `resources` (`{limits: {cpu: "500m", memory: "2Gi"}}`, quantities as Kubernetes
 * writes them). `requests` are hints for schedulers and mean nothing on one machine. Whatever else is asked for could not be
 * given, and is refused.
 */
export function resourceLimits(resources: JsonObject | undefined): {
  readonly limits: ResourceLimits;
  readonly violations: readonly FieldViolation[];
} {
  const violations: FieldViolation[] = [];
  const field = `${ROOT}.limits`;
  const limits = objectAt(resources?.limits, field, violations);
  const requests = objectAt(resources?.requests, `${ROOT}.requests`, violations);
  refuseOthers(resources ?? {}, ["limits", "requests"], ROOT, violations);
  refuseOthers(limits, ["cpu", "memory"], field, violations);
  refuseOthers(requests, ["cpu", "memory"], `${ROOT}.requests`, violations);
  const cpuMillis = parse(limits.cpu, cpu, `${field}.cpu`, 'must be a CPU quantity such as "500m" or "2"', violations);
  const memoryBytes = parse(
    limits.memory,
    memory,
    `${field}.memory`,
    'must be a memory quantity such as "512Mi" or "2Gi"',
    violations,
  );
  return { limits: { cpuMillis, memoryBytes, pids: undefined }, violations };
}

function objectAt(value: unknown, field: string, violations: FieldViolation[]): JsonObject {
  if (value === undefined || value === null) return {};
  if (typeof value === "object" && !Array.isArray(value)) return value as JsonObject;
  violations.push({ field, description: "must be an object" });
  return {};
}

function refuseOthers(given: JsonObject, known: readonly string[], field: string, violations: FieldViolation[]): void {
  for (const key of Object.keys(given)) {
    if (known.includes(key)) continue;
    const description = `is not supported by the local driver, which knows ${known.join(" and ")}`;
    violations.push({ field: `${field}.${key}`, description });
  }
}

function parse<T>(
  value: unknown,
  read: (text: string) => T | undefined,
  field: string,
  description: string,
  violations: FieldViolation[],
): T | undefined {
  if (value === undefined || value === null || value === "") return undefined;
  const parsed = typeof value === "string" || typeof value === "number" ? read(String(value)) : undefined;
  if (parsed === undefined) violations.push({ field, description });
  return parsed;
}

function cpu(text: string): number | undefined {
  const match = /^(\d{1,6})(?:\.(\d{1,3}))?(m?)$/.exec(text);
  if (match === null || (match[3] === "m" && match[2] !== undefined)) return undefined;
  const millis = match[3] === "m" ? Number(match[1]) : Math.round(Number(`${match[1]}.${match[2] ?? "0"}`) * 1000);
  return millis > 0 ? millis : undefined;
}

function memory(text: string): bigint | undefined {
  const match = /^(\d{1,15})([kMGT]|[KMGT]i)?$/.exec(text);
  const unit = match === null ? undefined : MEMORY_UNITS[match[2] ?? ""];
  if (match === null || unit === undefined) return undefined;
  const bytes = BigInt(match[1]!) * unit;
  return bytes > 0n ? bytes : undefined;
}
