import { createHash, randomBytes } from "node:crypto";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { checkSocketPath, describeError, ensureFolder } from "@openshell/base";
import type { CaptureMode, IsolationLayer } from "@openshell/boundary";
import { captureNftBatch } from "@openshell/boundary/local/compile/nft.ts";
import { captureRoutes } from "@openshell/boundary/local/compile/route.ts";
import { compileSkLookup } from "@openshell/boundary/local/compile/sk-lookup.ts";
import type { LaunchedSandbox } from "@openshell/boundary/local/launch.ts";
import type { LaunchPlan, PlanNetwork, RootStep } from "@openshell/boundary/local/plan.ts";
import { DriverError, type SandboxIntent } from "../driver.ts";
import type { SandboxCgroups } from "./cgroups.ts";
import type { ResolvedIdentity } from "./identity.ts";

/** Without any host for this long, init ends the sandbox. */
export const ORPHAN_LIMIT_MS = 30_000;
/** The capture's own port, also that of the explicit proxy. */
export const CAPTURE_PORT = 3_128;
/** Captured in `listener_per_port` whatever the policy names. */
const DEFAULT_PORTS = [80, 443, CAPTURE_PORT];
/** Port 53 is the sandbox's DNS; more listeners than this are not made (two descriptors each). */
const MAX_CAPTURE_PORTS = 128;
const DNS_PORT = 53;
/** Characters of a layer's detail: one line. */
const MAX_DETAIL = 400;

/** Best first (docs/architecture/boundary.md). */
const MODES: readonly CaptureMode[] = ["sk_lookup", "nft", "listener_per_port"];

/** Carries out a plan; `title` becomes argv[0] of launcher and init. */
export type Launch = (plan: LaunchPlan, title: string) => Promise<LaunchedSandbox>;

/** Short name for folders whose paths must stay short: 12 hexadecimal digits. */
export function shortId(...parts: readonly string[]): string {
  return createHash("sha256").update(parts.join("\0")).digest("hex").slice(0, 12);
}

/** Everything a plan is made of. */
export interface PlanParts {
  readonly intent: Pick<SandboxIntent, "sandboxId" | "generation" | "nonce" | "hostname" | "endpointPorts">;
  readonly controlFolder: string;
  readonly identity: ResolvedIdentity;
  readonly cgroups: SandboxCgroups;
  readonly root: readonly RootStep[];
  readonly mode: CaptureMode;
}

export function planLaunch(parts: PlanParts): LaunchPlan {
  const { intent, cgroups } = parts;
  return {
    sandboxId: intent.sandboxId,
    generation: intent.generation,
    nonce: intent.nonce,
    controlFolder: parts.controlFolder,
    controlSocket: controlSocketPath(parts.controlFolder),
    identity: parts.identity.plan,
    hostname: intent.hostname,
    cgroupProcs: cgroups.folders.map((folder) => join(folder, "cgroup.procs")),
    freezer: cgroups.freezer,
    root: parts.root,
    network: planNetwork(parts.mode, intent.endpointPorts ?? []),
    orphanLimitMs: ORPHAN_LIMIT_MS,
  };
}

export function controlSocketPath(controlFolder: string): string {
  return checkSocketPath(join(controlFolder, "control.sock"));
}

export function planNetwork(mode: CaptureMode, endpointPorts: readonly number[]): PlanNetwork {
  const ports = mode === "listener_per_port" ? capturePorts(endpointPorts) : [];
  return {
    mode,
    routes: captureRoutes(ports),
    skLookup: mode === "sk_lookup" ? compileSkLookup() : undefined,
    nft: mode === "nft" ? captureNftBatch(CAPTURE_PORT) : undefined,
    ports,
  };
}

/** What is beyond the limit is refused by the kernel when the agent connects: closed, not open. */
function capturePorts(endpointPorts: readonly number[]): readonly number[] {
  const usable = endpointPorts.filter(
    (port) => Number.isInteger(port) && port > 0 && port < 65_536 && port !== DNS_PORT,
  );
  return [...new Set([...DEFAULT_PORTS, ...usable])].slice(0, MAX_CAPTURE_PORTS);
}

/** The mode that OPENSHELL_CAPTURE demands, for tests and diagnosis; undefined when unset. Throws on an unknown one. */
export function demandedMode(value: string | undefined): CaptureMode | undefined {
  if (value === undefined || value === "") return undefined;
  const mode = MODES.find((candidate) => candidate === value);
  if (mode === undefined) {
    throw new DriverError(
      "invalid_driver_config",
      `OPENSHELL_CAPTURE=${JSON.stringify(value.slice(0, 40))} is no capture mode`,
      {
        next: `Use one of ${MODES.join(", ")}, or unset it`,
      },
    );
  }
  return mode;
}

/** The mode that works here, and why each better one does not. */
export interface CaptureChoice {
  readonly mode: CaptureMode;
  readonly refused: readonly { readonly mode: CaptureMode; readonly reason: string }[];
}

/** What the isolation report says of the choice: in force when nothing better was refused. */
export function captureLayer(choice: CaptureChoice): IsolationLayer {
  const reasons = choice.refused.map(({ mode, reason }) => `${mode}: ${reason}`);
  return {
    name: "capture_mode",
    enforced: choice.refused.length === 0,
    detail: [choice.mode, ...reasons].join("; ").slice(0, MAX_DETAIL),
  };
}

/**
 * Finds the best capture mode by making a real, empty sandbox with each in turn: kernel configuration, privileges and
 * security modules together decide, and nothing but trying tells. Throws `capture_unavailable` with the last reason.
 */
export async function probeCapture(
  launch: Launch,
  options: {
    readonly runtimeFolder: string;
    readonly identity: ResolvedIdentity;
    readonly demanded: CaptureMode | undefined;
    readonly end: (pid: number) => Promise<void>;
  },
): Promise<CaptureChoice> {
  const cgroups: SandboxCgroups = { folders: [], freezer: { kind: "signals", folder: "" }, isolation: [] };
  let reason: unknown;
  const refused: CaptureChoice["refused"][number][] = [];
  for (const mode of options.demanded === undefined ? MODES : [options.demanded]) {
    const id = `probe-${randomBytes(4).toString("hex")}`;
    const controlFolder = join(options.runtimeFolder, "s", id);
    const intent = { sandboxId: id, generation: 1n, nonce: randomBytes(32), hostname: "probe" };
    try {
      await ensureFolder(controlFolder);
      const plan = planLaunch({ intent, controlFolder, identity: options.identity, cgroups, root: PROBE_ROOT, mode });
      const launched = await launch(plan, `openshell-init:${shortId(controlFolder)}`);
      await options.end(launched.pid);
      return { mode, refused };
    } catch (error) {
      reason = error;
      refused.push({ mode, reason: error instanceof Error ? error.message : String(error) });
    } finally {
      await rm(controlFolder, { recursive: true, force: true });
    }
  }
  throw new DriverError("capture_unavailable", `no sandbox can be made on this machine: ${describeError(reason)}`, {
    cause: reason,
  });
}

const PROBE_ROOT: readonly RootStep[] = [
  { kind: "tmpfs", target: "/", mode: 0o755, sizeBytes: 1n << 20n, noexec: true, owner: "root" },
  { kind: "proc", target: "/proc" },
  { kind: "dev", target: "/dev" },
  { kind: "seal", target: "/" },
];
