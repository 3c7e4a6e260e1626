import { isGatewayName } from "@openshell/base/paths.ts";
import { minimumProblem } from "@openshell/boundary/isolation-layers.ts";
import { absolutePath, idRangeProblem, localDriverTable } from "@openshell/drivers/local/config.ts";
import { z } from "zod";
import { isSubjectName, parseAddress } from "./address.ts";
import { middlewareTables } from "./middleware.ts";

/**
 * `gateway.toml`, schema version 2: the keys that this build acts on. Every level is closed. Loaded only when there is
 * something to check.
 */

const address = z.string().refine((text) => parseAddress(text) !== undefined, {
  error: 'must be "IP:port", with brackets around IPv6',
});
const resolver = z.string().refine((text) => (parseAddress(text)?.port ?? 0) > 0, {
  error: 'must be "IP:port", with brackets around IPv6',
});
const gatewayName = z.string().refine(isGatewayName, {
  error: "must be a DNS label: lower-case letters, digits and hyphens, at most 63",
});
const subjectName = z.string().refine(isSubjectName, { error: "must be a host name or an IP address" });

export const LOG_LEVELS = ["trace", "debug", "info", "warn", "error"] as const;

const gateway = z.strictObject({
  name: gatewayName,
  bind_address: address,
  health_bind_address: address,
  metrics_bind_address: address,
  log_level: z.enum(LOG_LEVELS),
  compute_driver: z.enum(["local"]),
  server_sans: z.array(subjectName).max(64),
  disable_tls: z.boolean(),
  policy_validation_failure_mode: z.enum(["fail_closed", "retain_last_valid"]),
  config_consistency_check_interval_seconds: z.number().int().min(1).max(3600),
  auth: z.strictObject({ allow_unauthenticated_users: z.boolean() }).partial(),
});

export const fileSchema = z.strictObject({
  openshell: z.strictObject({
    version: z.literal(2),
    gateway: gateway.partial().optional(),
    supervisor: z
      .strictObject({
        placement: z.enum(["workspace", "sandbox"]),
        minimum_isolation: z.array(z.string()).superRefine((names, context) => {
          const problem = minimumProblem(names);
          if (problem !== undefined) context.addIssue({ code: "custom", message: problem });
        }),
        network: z.strictObject({ additional_ca_bundle: absolutePath, resolvers: z.array(resolver).max(8) }).partial(),
        middleware: middlewareTables,
      })
      .partial()
      .optional(),
  }),
  local: localDriverTable
    .superRefine((table, context) => {
      const problem = idRangeProblem(table);
      if (problem !== undefined) {
        context.addIssue({ code: "custom", path: ["id_range_blocks"], message: `is too large: ${problem}` });
      }
    })
    .optional(),
});

export type FileConfig = z.infer<typeof fileSchema>;
export type GatewaySection = NonNullable<FileConfig["openshell"]["gateway"]>;

/** The keys that exist at a path of the schema; empty where the path leads to no table. */
export function keysAt(path: readonly PropertyKey[]): readonly string[] {
  let schema: unknown = fileSchema;
  // Entries of a list have the shape of the list's element.
  for (const part of path) if (typeof part !== "number") schema = shapeOf(schema)?.[String(part)];
  return Object.keys(shapeOf(schema) ?? {});
}

function shapeOf(schema: unknown): Readonly<Record<string, unknown>> | undefined {
  interface Wrapped {
    readonly def?: { readonly innerType?: unknown; readonly element?: unknown };
    readonly shape?: object;
  }
  let current = schema as Wrapped | undefined;
  for (let inner = current?.def; inner !== undefined; inner = current?.def) {
    const next = inner.innerType ?? inner.element;
    if (next === undefined) break;
    current = next as Wrapped;
  }
  return current?.shape as Readonly<Record<string, unknown>> | undefined;
}
