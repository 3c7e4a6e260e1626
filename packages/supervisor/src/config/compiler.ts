import { type CredentialState, snapshotFromProto } from "@openshell/credentials";
import { compilePolicy, policyFromProto } from "@openshell/policy";
import { createCredentialSource } from "../egress/credential-source.ts";
import { resolveBinaries } from "./binaries.ts";
import type { ConfigurationCompiler } from "./compile.ts";

/** Violations named in one failure; the rest are counted. */
const NAMED_VIOLATIONS = 5;

/**
 * The compiler of one sandbox. It keeps the sandbox's credential generations, so that a rotated value keeps its
 * placeholder; a provider environment that cannot be used takes every credential away (fail closed).
 */
export function createCompiler(credentials: CredentialState, now: () => number): ConfigurationCompiler {
  return async (config, environment) => {
    if (config.policy === undefined) {
      return {
        ok: false,
        code: "policy_missing",
        message: "the configuration carries no policy",
        next: "Set a policy for the sandbox",
      };
    }
    // The gateway sends the effective policy: rules that it composed from providers are part of it.
    const parsed = policyFromProto(config.policy, { origin: "effective" });
    if (!parsed.ok) {
      const named = parsed.violations.slice(0, NAMED_VIOLATIONS).map(({ path, message }) => `${path}: ${message}`);
      const more = parsed.violations.length - named.length;
      return {
        ok: false,
        code: "invalid_policy",
        message: `${named.join("; ")}${more > 0 ? `; and ${more} more` : ""}`,
        next: "Correct the policy and set it again",
      };
    }
    const applied = credentials.apply(snapshotFromProto(environment));
    if (!applied.ok) {
      return {
        ok: false,
        code: "invalid_provider_environment",
        message: applied.problem.message,
        next: applied.problem.next,
      };
    }
    const generation = credentials.current;
    return {
      ok: true,
      configuration: {
        policy: compilePolicy(parsed.policy, { resolvedBinaries: await resolveBinaries(parsed.policy) }),
        credentials: createCredentialSource(generation, now),
        childEnvironment: Object.fromEntries(generation.childEnvironment()),
      },
    };
  };
}
