import { RuntimeError } from "@openshell/base";
import { ByteWriter } from "./bytes.ts";
import { acknowledgements } from "./compile/netlink.ts";
import type { IdRange, LaunchPlan, PlanNetwork, RootStep } from "./plan.ts";

/** Version of the plan's layout; launcher and gateway come from one build, so they must be equal. */
export const PLAN_VERSION = 1;
/** "OSHP", little endian. */
const PLAN_MAGIC = 0x5048534f;
/** Limits of native/init/common.h, checked here first because the error can say more. */
export const PLAN_LIMITS = {
  bytes: 8 << 20,
  steps: 512,
  ranges: 16,
  routes: 512,
  ports: 128,
  cgroups: 16,
  socketPathBytes: 100,
} as const;

const FREEZERS = { signals: 0, v1: 1, v2: 2 } as const;
const MODES = { sk_lookup: 1, nft: 2, listener_per_port: 3 } as const;
const STEPS = {
  tmpfs: 1,
  directory: 2,
  file: 3,
  symlink: 4,
  bind: 5,
  volume: 6,
  proc: 7,
  devpts: 8,
  seal: 9,
  overlay: 10,
} as const;
const IDMAPS = { none: 0, owner: 1, sandbox: 2 } as const;

function refuse(message: string): never {
  throw new RuntimeError("launch_plan_invalid", `The launch plan cannot be encoded: ${message}`);
}

function atMost(what: string, count: number, limit: number): void {
  if (count > limit) refuse(`${what}: ${count}, at most ${limit}`);
}

/** Bytes for the launcher's standard input. Layout: native/init/plan.c reads the same fields in the same order. */
export function encodePlan(plan: LaunchPlan): Buffer {
  const root = plan.root.flatMap((step): readonly EncodedStep[] =>
    step.kind === "dev" ? devices(step.target) : [step],
  );
  atMost("root steps", root.length, PLAN_LIMITS.steps);
  atMost("routes", plan.network.routes.length, PLAN_LIMITS.routes);
  atMost("ports", plan.network.ports.length, PLAN_LIMITS.ports);
  atMost("cgroups", plan.cgroupProcs.length, PLAN_LIMITS.cgroups);
  atMost("socket path bytes", Buffer.byteLength(plan.controlSocket), PLAN_LIMITS.socketPathBytes);
  if (plan.nonce.length !== 32) refuse("the nonce must have 32 bytes");
  if (plan.identity.uid === 0 || plan.identity.gid === 0) refuse("the agent cannot have uid or gid 0");
  if (!plan.controlSocket.startsWith(`${plan.controlFolder}/`)) refuse("the control socket must be in its folder");
  const first = plan.root[0];
  if (first?.kind !== "tmpfs" || first.target !== "/") refuse("the first root step must be a tmpfs on /");

  const w = new ByteWriter();
  w.u32(PLAN_MAGIC).u32(PLAN_VERSION);
  w.string(plan.sandboxId).u64(plan.generation).bytes(plan.nonce);
  w.string(plan.controlFolder).string(plan.controlSocket);
  w.u32(plan.identity.uid).u32(plan.identity.gid);
  writeRanges(w, plan.identity.uidMap);
  writeRanges(w, plan.identity.gidMap);
  w.flag(plan.identity.denySetgroups).string(plan.hostname);
  w.u32(plan.cgroupProcs.length);
  for (const path of plan.cgroupProcs) w.string(path);
  w.u8(FREEZERS[plan.freezer.kind]).string(plan.freezer.folder);
  w.u32(root.length);
  for (const step of root) writeStep(w, step);
  writeNetwork(w, plan.network);
  w.u64(BigInt(plan.orphanLimitMs));
  const bytes = w.finish();
  atMost("bytes", bytes.length, PLAN_LIMITS.bytes);
  return bytes;
}

function writeRanges(w: ByteWriter, ranges: readonly IdRange[]): void {
  if (ranges.length === 0) refuse("an id map needs at least one row");
  atMost("id map rows", ranges.length, PLAN_LIMITS.ranges);
  w.u32(ranges.length);
  for (const range of ranges) w.u32(range.inside).u32(range.outside).u32(range.count);
}

/** What a step becomes for init. */
type EncodedStep =
  | Exclude<RootStep, { readonly kind: "dev" }>
  | { readonly kind: "devpts"; readonly target: string }
  | (Extract<RootStep, { readonly kind: "bind" }> & { readonly device: true });

const DEVICES = ["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS = {
  ptmx: "pts/ptmx",
  fd: "/proc/self/fd",
  stdin: "/proc/self/fd/0",
  stdout: "/proc/self/fd/1",
  stderr: "/proc/self/fd/2",
};
/** /dev/shm of a sandbox; a later tmpfs step on the same target covers it. */
const SHM_BYTES = 256n << 20n;

/** A `/dev` of the sandbox's own: harmless devices of the host, own terminals, own shared memory, nothing else. */
function devices(target: string): readonly EncodedStep[] {
  const tmpfs = { kind: "tmpfs", noexec: false, owner: "root" } as const;
  const bind = {
    kind: "bind",
    readOnly: false,
    recursive: false,
    optional: false,
    noexec: true,
    device: true,
  } as const;
  return [
    { ...tmpfs, target, mode: 0o755, sizeBytes: 64n << 10n },
    ...DEVICES.map((name) => ({ ...bind, source: `/dev/${name}`, target: `${target}/${name}` })),
    ...Object.entries(DEVICE_LINKS).map(
      ([name, to]) => ({ kind: "symlink", target: `${target}/${name}`, to }) as const,
    ),
    { kind: "devpts", target: `${target}/pts` },
    { ...tmpfs, target: `${target}/shm`, mode: 0o1777, sizeBytes: SHM_BYTES },
    { kind: "seal", target },
  ];
}

function writeStep(w: ByteWriter, step: EncodedStep): void {
  if (!step.target.startsWith("/")) refuse(`target ${JSON.stringify(step.target)} is not absolute`);
  w.u8(STEPS[step.kind]).string(step.target);
  switch (step.kind) {
    case "tmpfs":
      w.u32(step.mode).u64(step.sizeBytes).flag(step.noexec);
      w.flag(step.owner === "agent");
      return;
    case "directory":
      w.u32(step.mode).flag(step.owner === "agent");
      return;
    case "file":
      w.u32(step.mode).bytes(step.content);
      return;
    case "symlink":
      w.string(step.to);
      return;
    case "bind":
      w.string(step.source);
      w.flag(step.readOnly)
        .flag(step.recursive)
        .flag(step.optional)
        .flag(step.noexec)
        .flag("device" in step);
      return;
    case "volume":
      w.string(step.source).flag(step.readOnly);
      writeIdmap(w, step.idmap);
      return;
    case "overlay":
      w.string(overlayOptions(step));
      return;
    case "proc":
    case "devpts":
    case "seal":
      return;
  }
}

function writeIdmap(w: ByteWriter, idmap: Extract<RootStep, { readonly kind: "volume" }>["idmap"]): void {
  const kind = idmap === undefined ? "none" : idmap === "sandbox" ? "sandbox" : "owner";
  const owner = typeof idmap === "object" ? idmap : { hostUid: 0, hostGid: 0 };
  w.u8(IDMAPS[kind]).u32(owner.hostUid).u32(owner.hostGid);
}

/**
 * Mount options (kernel: Documentation/filesystems/overlayfs.rst). `userxattr`: a user namespace may not write the
 * `trusted.` attributes that overlayfs uses otherwise; it also keeps redirects and metadata-only copies off, so that nothing
 * in a layer can point elsewhere.
 */
function overlayOptions(step: Extract<RootStep, { readonly kind: "overlay" }>): string {
  const relative = (path: string): string => {
    // What separates options and layers never needs escaping: the parts are mounted under names of our own.
    if (!/^(?:\/[a-z0-9]+)+$/.test(path)) refuse(`${JSON.stringify(path)} cannot be a part of an overlay`);
    return path.slice(1);
  };
  const lower = step.lower.map(relative).join(":");
  return `userxattr,lowerdir=${lower},upperdir=${relative(step.upper)},workdir=${relative(step.work)}`;
}

function writeNetwork(w: ByteWriter, network: PlanNetwork): void {
  if (network.mode === "sk_lookup" && network.skLookup === undefined) refuse("sk_lookup mode without its program");
  if (network.mode === "nft" && network.nft === undefined) refuse("nft mode without its batch");
  if (network.mode === "listener_per_port" && network.ports.length === 0) refuse("listener_per_port without a port");
  w.u8(MODES[network.mode]).u32(network.routes.length);
  for (const route of network.routes) w.flag(route.optional).bytes(route.message);
  w.bytes(network.skLookup?.program ?? new Uint8Array());
  const fixups = network.skLookup?.mapFixups ?? [];
  atMost("map fix-ups", fixups.length, 8);
  w.u32(fixups.length);
  for (const index of fixups) w.u32(index);
  const nft = network.nft ?? new Uint8Array();
  w.u32(acknowledgements(nft)).bytes(nft);
  w.u32(network.ports.length);
  for (const port of network.ports) w.u16(port);
}
