import type { CompiledPolicy, Denied } from "@openshell/policy";
import { NO_CREDENTIALS } from "../egress/credential-source.ts";
import { NO_MIDDLEWARE } from "../middleware/registry.ts";
import type { CompiledConfiguration } from "./compile.ts";

/** Longest part of a rejection that a denial repeats, characters. */
const REASON_CHARACTERS = 200;

/** What decides while a configuration could not be put in force: nothing is allowed, and every denial says why. */
export function quarantine(
  version: number,
  reason: string,
  childEnvironment: CompiledConfiguration["childEnvironment"],
): CompiledConfiguration {
  const denied: Denied = {
    allowed: false,
    code: "no_policy",
    reason: `policy validation failed; fail-closed quarantine is active; candidate version ${version} rejected: ${reason.slice(0, REASON_CHARACTERS)}`,
    next: "Set a valid policy, or the one before: that ends the quarantine.",
    policy: "",
  };
  const policy: CompiledPolicy = {
    policy: { version: 1, networkPolicies: new Map(), networkMiddlewares: new Map() },
    connect: () => denied,
    request: () => ({ ...denied, audited: false, endpoint: -1 }),
    mentions: () => false,
    names: () => [],
    ports: () => [],
  };
  // Processes that start meanwhile keep the names they would have: only requests are refused.
  return { policy, credentials: NO_CREDENTIALS, middleware: NO_MIDDLEWARE, childEnvironment };
}
