import { type CredentialState, checkSnapshot, snapshotFromProto } from "@openshell/credentials";
import { compilePolicy, policyFromProto } from "@openshell/policy";
import { createCredentialSource } from "../egress/credential-source.ts";
import { resolveBinaries } from "./binaries.ts";
import type { ConfigurationCompiler, InstalledEnvironment } from "./compile.ts";

/** Violations named in one failure; the rest are counted. */
const NAMED_VIOLATIONS = 5;

/**
 * The compiler of one sandbox. It keeps the sandbox's credential generations, so that a rotated value keeps its placeholder.
 * `realPath` follows links of the sandbox's root.
 */
export function createCompiler(
  credentials: CredentialState,
  now: () => number,
  realPath: (path: string) => Promise<string>,
): ConfigurationCompiler {
  let installed: { readonly revision: string; readonly environment: InstalledEnvironment } | undefined;
  const current = (): InstalledEnvironment => {
    const generation = credentials.current;
    if (installed?.revision !== generation.revision || generation.revision === "") {
      const environment = {
        credentials: createCredentialSource(generation, now),
        childEnvironment: Object.fromEntries(generation.childEnvironment()),
      };
      installed = { revision: generation.revision, environment };
    }
    return installed.environment;
  };
  return {
    async policy(config) {
      if (config.policy === undefined) {
        const message = "the configuration carries no policy";
        return { ok: false, problem: { code: "policy_missing", message, next: "Set a policy for the sandbox" } };
      }
      // The gateway sends the effective policy: rules that it composed from providers are part of it.
      const parsed = policyFromProto(config.policy, { origin: "effective" });
      if (parsed.ok) {
        const resolvedBinaries = await resolveBinaries(parsed.policy, realPath);
        return { ok: true, policy: compilePolicy(parsed.policy, { resolvedBinaries }) };
      }
      const named = parsed.violations.slice(0, NAMED_VIOLATIONS).map(({ path, message }) => `${path}: ${message}`);
      const more = parsed.violations.length - named.length;
      const message = `${named.join("; ")}${more > 0 ? `; and ${more} more` : ""}`;
      return { ok: false, problem: { code: "invalid_policy", message, next: "Correct the policy and set it again" } };
    },
    check: (environment) => checkSnapshot(snapshotFromProto(environment)),
    install(environment) {
      credentials.apply(snapshotFromProto(environment));
      return current();
    },
    revoke() {
      credentials.revoke();
      return current();
    },
  };
}
