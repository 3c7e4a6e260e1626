import type { SandboxPolicy } from "@openshell/api";
import type { ConfigurationProblem } from "../config/compile.ts";
import type { MiddlewareConnection } from "./connection.ts";

/**
 * The services that one generation may call, immutable: those that a policy names and that answered. A service that is
 * not in it is treated as one that fails.
 */
export interface MiddlewareRegistry {
  readonly services: ReadonlyMap<string, MiddlewareConnection>;
  /** Named by the policy and not usable, or not as registered now; in the order of names. */
  readonly missing: ReadonlyMap<string, ConfigurationProblem>;
}

/** Of a sandbox whose policy names no service. */
export const NO_MIDDLEWARE: MiddlewareRegistry = Object.freeze({ services: new Map(), missing: new Map() });

/** What runs inside the supervisor, and so is always there. */
export const BUILT_IN: ReadonlySet<string> = new Set(["openshell/regex"]);

/** Settings that a policy gives each service that it names, by service; built-in ones are left out. */
export function namedServices(policy: SandboxPolicy | undefined): ReadonlyMap<string, readonly object[]> {
  const named = new Map<string, object[]>();
  for (const { middleware, config } of Object.values(policy?.networkMiddlewares ?? {})) {
    if (BUILT_IN.has(middleware)) continue;
    const settings = named.get(middleware) ?? [];
    settings.push(config ?? {});
    named.set(middleware, settings);
  }
  return new Map([...named].sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** The same services over the same connections, and the same troubles. */
export function sameRegistry(a: MiddlewareRegistry, b: MiddlewareRegistry): boolean {
  return (
    a.services.size === b.services.size &&
    a.missing.size === b.missing.size &&
    [...a.services].every(([name, connection]) => b.services.get(name) === connection) &&
    [...a.missing].every(([name, { message }]) => b.missing.get(name)?.message === message)
  );
}

/** Everything that is missing, as one problem; undefined when nothing is. */
export function problemOf({ missing }: MiddlewareRegistry): ConfigurationProblem | undefined {
  const [first, ...more] = missing.values();
  if (first === undefined) return undefined;
  const also = more.length === 0 ? "" : `; and ${more.length} more: ${[...missing.keys()].slice(1).join(", ")}`;
  return { ...first, message: `${first.message}${also}` };
}
