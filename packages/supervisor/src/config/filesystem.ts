import type { SandboxPolicy } from "@openshell/api";
import type { WorkloadLayout } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";

/** What the filesystem section and the layout together open. */
export interface FilesystemGrants {
  readonly readOnly: readonly string[];
  readonly readWrite: readonly string[];
  /** `hard_requirement`: the workload does not start when the rules cannot be enforced. */
  readonly required: boolean;
}

/**
 * Paths that the agent may reach: the policy's filesystem section, the driver's volumes, and the private home. An absent
 * section means the working directory only, plus the base paths that the boundary always opens (sandbox.md §1.3).
 */
export function filesystemGrants(policy: SandboxPolicy, layout: WorkloadLayout): FilesystemGrants {
  const section = policy.filesystem;
  const includeWorkdir = section === undefined || section.includeWorkdir;
  const readWrite = [...(section?.readWrite ?? []), ...layout.readWritePaths, layout.home];
  if (includeWorkdir) readWrite.push(layout.workingDirectory);
  return {
    readOnly: [...(section?.readOnly ?? []), ...layout.readOnlyPaths],
    readWrite,
    required: policy.landlock?.compatibility === "hard_requirement",
  };
}
