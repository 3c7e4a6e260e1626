import { existsSync } from "node:fs";
import { join } from "node:path";
import type { GatewayPaths } from "@openshell/base";
import type { RootStep } from "@openshell/boundary/local/plan.ts";
import { DriverError, type SandboxIntent, type WorkloadLayout } from "../driver.ts";
import { systemRoots, type TrustCache, type TrustFiles } from "./ca-bundle.ts";
import type { LocalDriverConfig } from "./config.ts";
import { agentEnvironment } from "./environment.ts";
import { type IdentityMode, type ResolvedIdentity, resolveIdentity } from "./identity.ts";
import { ownFolderName, ownFolderTargets } from "./own-folders.ts";
import { AGENT_USER, HOME, type OwnFolder, planRoot } from "./root-view.ts";
import type { SandboxFolders } from "./state.ts";
import { planVolumes, type VolumePlan } from "./volumes.ts";

/** What every intent of one gateway is resolved against. */
export interface ResolveContext {
  readonly paths: GatewayPaths;
  readonly clientConfigRoot: string;
  readonly config: LocalDriverConfig;
  readonly mode: IdentityMode;
  readonly gatewayUid: number;
  readonly trust: TrustCache;
}

/** Everything about an intent that can be decided without touching anything. */
export interface ResolvedIntent {
  readonly identity: ResolvedIdentity;
  readonly volumes: VolumePlan;
  readonly trust: TrustFiles;
  readonly processLimit: number;
  readonly memoryBytes: bigint | undefined;
  /** Paths inside that get a folder of the sandbox's own. */
  readonly ownFolders: readonly string[];
}

/** Decides who the agent is, what it may see and use. Throws the `DriverError` that says why not. */
export function resolveIntent(intent: SandboxIntent, context: ResolveContext): ResolvedIntent {
  checkId(intent.sandboxId);
  if (!/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(intent.hostname)) {
    throw new DriverError(
      "invalid_intent",
      `host name ${JSON.stringify(intent.hostname.slice(0, 80))} is not a DNS label`,
    );
  }
  const { paths, config, mode } = context;
  const volumes = planVolumes(intent.volumes, {
    caller: intent.caller,
    gatewayUid: context.gatewayUid,
    volumeRoots: config.volume_roots,
    privateFolders: [paths.state, paths.config, paths.runtime, paths.logs, context.clientConfigRoot],
    idmap: mode.kind === "root",
  });
  return {
    identity: resolveIdentity(intent.process, mode, intent.idBlock),
    volumes,
    trust: context.trust.get(systemRoots(), intent.additionalCaPem, intent.inspectionCaPem),
    processLimit: intent.resources.pids ?? config.sandbox_pids_limit,
    memoryBytes:
      intent.resources.memoryBytes ??
      (config.sandbox_memory_limit === 0 ? undefined : BigInt(config.sandbox_memory_limit)),
    ownFolders: ownFolderTargets(
      intent.writablePaths ?? [],
      intent.volumes.map((volume) => volume.target),
    ),
  };
}

/** Becomes a folder name: nothing that could lead out of its parent. */
export function checkId(sandboxId: string): void {
  if (!/^[A-Za-z0-9][A-Za-z0-9-]{0,127}$/.test(sandboxId)) {
    throw new DriverError("invalid_sandbox_id", `sandbox id ${JSON.stringify(sandboxId.slice(0, 80))} is not valid`);
  }
}

/** Host folders behind the own folders. */
export function ownFolders(sandboxId: string, resolved: ResolvedIntent, folders: SandboxFolders): readonly OwnFolder[] {
  return resolved.ownFolders.map((target) => ({
    target,
    source: join(folders.work(sandboxId), ownFolderName(target)),
  }));
}

export function rootSteps(
  intent: SandboxIntent,
  resolved: ResolvedIntent,
  folders: SandboxFolders,
  config: LocalDriverConfig,
): readonly RootStep[] {
  const { uid, gid } = resolved.identity.plan;
  return planRoot({
    uid,
    gid,
    hostname: intent.hostname,
    shell: loginShell(),
    trustFolder: folders.trust(intent.sandboxId),
    homeFolder: folders.home(intent.sandboxId),
    ownFolders: ownFolders(intent.sandboxId, resolved, folders),
    tmpBytes: BigInt(config.tmp_size),
    volumes: resolved.volumes.steps,
  });
}

/** What the supervisor is told of the root. */
export function workloadLayout(resolved: ResolvedIntent, hostPath: string): WorkloadLayout {
  const { identity, volumes, processLimit } = resolved;
  return {
    home: HOME,
    workingDirectory: HOME,
    uid: identity.plan.uid,
    gid: identity.plan.gid,
    readOnlyPaths: volumes.readOnlyPaths,
    readWritePaths: volumes.readWritePaths,
    processLimit,
    environment: agentEnvironment({ user: AGENT_USER, shell: loginShell(), hostPath }),
  };
}

function loginShell(): string {
  return existsSync("/bin/bash") ? "/bin/bash" : "/bin/sh";
}
