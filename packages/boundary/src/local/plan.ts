/**
 * The launch plan: everything init and its launcher are told to do before a sandbox exists, in the order they do it.
 *
 * A plan is compiled by the local driver (what) and encoded by `plan-encode.ts` (how); native/ carries it out without
 * deciding anything. It goes to the launcher's standard input, never to argv or the environment. It holds no secret but
 * the attach nonce.
 */
export interface LaunchPlan {
  readonly sandboxId: string;
  readonly generation: bigint;
  /** 32 bytes; hosts prove with it that the gateway sent them. */
  readonly nonce: Uint8Array;
  /** Folder 0700 that the sandbox cannot see; init binds its socket there before it changes root. */
  readonly controlFolder: string;
  /** ≤ 100 bytes, in `controlFolder`. */
  readonly controlSocket: string;
  readonly identity: PlanIdentity;
  readonly hostname: string;
  /** `cgroup.procs` files that init joins at birth, in order. */
  readonly cgroupProcs: readonly string[];
  /**
   * cgroup v2 folder, else a v1 freezer folder, else empty: signals. It may be the one that init joins: the launcher makes
   * `workload` in it, which agent processes join and which alone is frozen (thaw that one before killing from outside).
   */
  readonly freezer: { readonly kind: "v2" | "v1" | "signals"; readonly folder: string };
  /** In order, in a fresh mount namespace; targets are paths inside the new root. */
  readonly root: readonly RootStep[];
  readonly network: PlanNetwork;
  /** After this long without any host, by CLOCK_MONOTONIC, init ends everything. Milliseconds. */
  readonly orphanLimitMs: number;
}

/** Ids: docs/architecture/drivers.md. */
export interface PlanIdentity {
  /** Inside ids of the agent, never 0. */
  readonly uid: number;
  readonly gid: number;
  /** Rows of uid_map/gid_map: inside, outside, count. */
  readonly uidMap: readonly IdRange[];
  readonly gidMap: readonly IdRange[];
  /** Written before gid_map where the launcher has no privilege. */
  readonly denySetgroups: boolean;
}

export interface IdRange {
  readonly inside: number;
  readonly outside: number;
  readonly count: number;
}

export type RootStep =
  /** A fresh tmpfs; the first step mounts it as the new root itself (`target: "/"`). */
  | {
      readonly kind: "tmpfs";
      readonly target: string;
      readonly mode: number;
      readonly sizeBytes: bigint;
      readonly noexec: boolean;
      readonly owner: "root" | "agent";
    }
  | { readonly kind: "directory"; readonly target: string; readonly mode: number; readonly owner: "root" | "agent" }
  /** A synthesised file (passwd, group, hosts, resolv.conf, CA bundle). */
  | { readonly kind: "file"; readonly target: string; readonly mode: number; readonly content: Uint8Array }
  | { readonly kind: "symlink"; readonly target: string; readonly to: string }
  /** Host folder or file. Always nosuid, nodev; recursive only for read-only system folders. */
  | {
      readonly kind: "bind";
      readonly source: string;
      readonly target: string;
      readonly readOnly: boolean;
      readonly recursive: boolean;
      readonly optional: boolean;
      readonly noexec: boolean;
    }
  /**
   * Caller's folder: opened by the launcher component by component without following links, then mounted by descriptor.
   * `idmap`: caller's ids appear as the agent's; `sandbox`: every id on disk appears as the equal id inside.
   */
  | {
      readonly kind: "volume";
      readonly source: string;
      readonly target: string;
      readonly readOnly: boolean;
      readonly idmap: { readonly hostUid: number; readonly hostGid: number } | "sandbox" | undefined;
    }
  /** Private /proc with hidepid=invisible. */
  | { readonly kind: "proc"; readonly target: string }
  /** Minimal /dev: null, zero, full, random, urandom, tty (binds), pts newinstance, shm, fd links. */
  | { readonly kind: "dev"; readonly target: string }
  /**
   * overlayfs on `target`, which becomes the root: every later target lies below it, nothing earlier stays visible but as
   * part of it. The parts are absolute paths of earlier steps; `lower` has the topmost first.
   */
  | {
      readonly kind: "overlay";
      readonly target: string;
      readonly lower: readonly string[];
      readonly upper: string;
      readonly work: string;
    }
  /** Makes `target` read-only at the end (for the root tmpfs). */
  | { readonly kind: "seal"; readonly target: string };

export interface PlanNetwork {
  readonly mode: "sk_lookup" | "nft" | "listener_per_port";
  /** rtnetlink messages: loopback up, addresses, routes in table 100, rules. One batch; `optional` for IPv6, which may be disabled. */
  readonly routes: readonly { readonly message: Uint8Array; readonly optional: boolean }[];
  /** eBPF of the sk_lookup program, 8 bytes an instruction; the map's descriptor goes where `mapFixups` (instruction indexes of ld_imm64) say. */
  readonly skLookup: { readonly program: Uint8Array; readonly mapFixups: readonly number[] } | undefined;
  /** nfnetlink batch. */
  readonly nft: Uint8Array | undefined;
  /** Ports that get a listener of their own in `listener_per_port`; otherwise only 3128. */
  readonly ports: readonly number[];
}
