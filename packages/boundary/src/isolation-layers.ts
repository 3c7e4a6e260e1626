/**
 * Names of the layers of an isolation report, and what a person can do where one is not in force. Names are public: a
 * minimum is written with them (docs/architecture/isolation.md).
 */
export const ISOLATION_LAYERS: Readonly<Record<string, { readonly next: string }>> = {
  namespaces: { next: "Allow user namespaces on this machine" },
  root_view: { next: "Allow user namespaces on this machine" },
  network_capture: { next: "Allow user namespaces on this machine" },
  landlock: { next: "Use Linux 6.2 or newer with Landlock switched on (lsm= at boot names it)" },
  no_new_privs: { next: "Use a kernel with no_new_privs" },
  capabilities: { next: "Allow user namespaces on this machine" },
  seccomp: { next: "Use a kernel with seccomp filters" },
  workload_identity: { next: "Run the gateway as root, which gives each sandbox ids of its own" },
  separate_ids: { next: "Run the gateway as root, which gives each sandbox ids of its own" },
  capture_mode: { next: "Run the gateway as root or with CAP_BPF and CAP_NET_ADMIN" },
  ipv6: { next: "Switch IPv6 on for new network namespaces" },
  cgroup: { next: "Delegate a cgroup to the gateway's user (systemd: Delegate=yes), or run the gateway as root" },
  freezer: { next: "Delegate a cgroup to the gateway's user (systemd: Delegate=yes), or run the gateway as root" },
  limit_memory: {
    next: "Give the sandbox a memory limit (--memory), where the gateway has a cgroup with that controller",
  },
  limit_cpu: { next: "Give the sandbox a CPU limit (--cpu), where the gateway has a cgroup with that controller" },
  disk_limit: { next: "Set [local] sandbox_disk_limit above 0" },
  disk_quota: {
    next: "Run the gateway as root with its state on a file system with project quotas in force (ext4 with project,quota mounted prjquota; xfs mounted pquota), and create the sandbox anew",
  },
  limit_pids: { next: "Delegate a cgroup with the pids controller to the gateway's user" },
};

/** Words that stand for several layers. `complete` is every layer of the sandbox's report. */
export const ISOLATION_LEVELS: Readonly<Record<string, readonly string[]>> = {
  confined: ["namespaces", "root_view", "network_capture", "landlock", "no_new_privs", "capabilities", "seccomp"],
  complete: [],
};

/** Entries of a minimum. */
export const MAX_MINIMUM = 32;

/** Why this is no minimum, or undefined. Entries are layers or levels. */
export function minimumProblem(entries: readonly string[]): string | undefined {
  if (entries.length > MAX_MINIMUM) return `must name at most ${MAX_MINIMUM} layers`;
  const unknown = entries.find(
    (name) => !Object.hasOwn(ISOLATION_LAYERS, name) && !Object.hasOwn(ISOLATION_LEVELS, name),
  );
  if (unknown === undefined) return undefined;
  const known = [...Object.keys(ISOLATION_LEVELS), ...Object.keys(ISOLATION_LAYERS)].join(", ");
  return `names an unknown isolation layer ${JSON.stringify(unknown.slice(0, 64))}; known are ${known}`;
}
