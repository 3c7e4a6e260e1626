/** Policies that exist without a file, and the paths every sandbox needs to start programs at all. */
import type { FilesystemPolicy, Policy } from "./model.ts";

/** In force when nobody set a policy: programs run, the working folder is writable, no connection is allowed. */
export const DEFAULT_POLICY: Policy = {
  version: 1,
  filesystem: {
    includeWorkdir: true,
    readOnly: ["/bin", "/usr", "/lib", "/proc", "/dev/urandom", "/etc", "/var/log"],
    readWrite: ["/tmp", "/dev/null"],
  },
  landlock: { compatibility: "best_effort" },
  networkPolicies: new Map(),
  networkMiddlewares: new Map(),
};

/** Where a policy inside an image is looked for, first match wins. */
export const IMAGE_POLICY_PATHS = ["/etc/openshell/policy.yaml", "/etc/navigator/policy.yaml"] as const;

/** Added when a policy has network rules, each only if it exists inside and the policy does not list it. */
export const BASELINE_PATHS = {
  readOnly: ["/usr", "/lib", "/etc", "/app", "/var/log", "/proc", "/dev/urandom"],
  readWrite: ["/tmp", "/dev/null"],
} as const;

/** The filesystem section in force: an absent one means the working folder and nothing else. */
export function effectiveFilesystem(policy: Policy): FilesystemPolicy {
  const section = policy.filesystem ?? { includeWorkdir: true, readOnly: [], readWrite: [] };
  if (policy.networkPolicies.size === 0) return section;
  const listed = new Set([...section.readOnly, ...section.readWrite]);
  const missing = (paths: readonly string[]): string[] => paths.filter((path) => !listed.has(path));
  return {
    includeWorkdir: section.includeWorkdir,
    readOnly: [...section.readOnly, ...missing(BASELINE_PATHS.readOnly)],
    readWrite: [...section.readWrite, ...missing(BASELINE_PATHS.readWrite)],
  };
}
