import type { WorkloadLayout } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { SandboxPolicy } from "@openshell/api/generated/sandbox_pb.js";
import type { FilesystemRules } from "@openshell/boundary/local/compile/landlock.ts";

/**
 * Paths that the agent may reach: the policy's filesystem section, the driver's volumes, and the private home. An absent
 * section means the working directory and no further paths.
 */
export function filesystemRules(policy: SandboxPolicy, layout: WorkloadLayout): FilesystemRules {
  const section = policy.filesystem;
  return {
    readOnly: section?.readOnly ?? [],
    readWrite: section?.readWrite ?? [],
    includeWorkdir: section === undefined || section.includeWorkdir,
    workingDirectory: layout.workingDirectory,
    layoutReadOnly: layout.readOnlyPaths,
    layoutReadWrite: [...layout.readWritePaths, layout.home],
    compatibility: policy.landlock?.compatibility === "hard_requirement" ? "hard_requirement" : "best_effort",
  };
}
