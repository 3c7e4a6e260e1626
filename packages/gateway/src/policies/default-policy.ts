import { create } from "@bufbuild/protobuf";
import { type SandboxPolicy, SandboxPolicySchema } from "@openshell/api";

/**
 * What holds when nobody gave a policy: the system read-only, the work folder and /tmp writable, no network at all. There
 * is no process section: the driver's identity applies.
 */
export function defaultPolicy(): SandboxPolicy {
  return create(SandboxPolicySchema, {
    version: 1,
    filesystem: {
      includeWorkdir: true,
      readOnly: ["/bin", "/usr", "/lib", "/proc", "/dev/urandom", "/etc", "/var/log"],
      readWrite: ["/tmp", "/dev/null"],
    },
    landlock: { compatibility: "best_effort" },
  });
}
