import { existsSync } from "node:fs";
import { join, posix } from "node:path";
import type { GatewayPaths } from "@openshell/base";
import type { RootStep } from "@openshell/boundary/local/plan.ts";
import { DriverError, type SandboxIntent, type WorkloadLayout } from "../driver.ts";
import { systemRoots, type TrustCache, type TrustFiles } from "./ca-bundle.ts";
import type { LocalDriverConfig } from "./config.ts";
import { agentEnvironment } from "./environment.ts";
import { hostFiles } from "./host-files.ts";
import { type IdentityMode, type ResolvedIdentity, resolveIdentity } from "./identity.ts";
import { passwdFor } from "./image/accounts.ts";
import { imageEnvironment } from "./image/environment.ts";
import type { ImageFacts } from "./image/facts.ts";
import { planImageRoot, seedEntries } from "./image/root.ts";
import type { SeedEntry } from "./image/seed.ts";
import { ownFolderName, ownFolderTargets } from "./own-folders.ts";
import { AGENT_USER, HOME, isWithin, type OwnFolder, planRoot } from "./root-view.ts";
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
  /** What the root is made of; undefined for the host's system, and while an image is not there yet. */
  readonly image: ImageFacts | undefined;
  readonly workingDirectory: string;
  /** Content of the seed layer; empty without an image. */
  readonly seed: readonly SeedEntry[];
}

/**
 * Decides who the agent is, what it may see and use; `image` is the root's when it is there, `deep` that volumes are looked
 * through. Throws the `DriverError` that says why not.
 */
export function resolveIntent(
  intent: SandboxIntent,
  context: ResolveContext,
  image?: ImageFacts,
  deep = false,
): ResolvedIntent {
  checkId(intent.sandboxId);
  if (!/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(intent.hostname)) {
    throw new DriverError(
      "invalid_intent",
      `host name ${JSON.stringify(intent.hostname.slice(0, 80))} is not a DNS label`,
    );
  }
  const { config, mode } = context;
  const rules = {
    caller: intent.caller,
    gatewayUid: context.gatewayUid,
    volumeRoots: config.volume_roots,
    privateFolders: privateFolders(context),
    idmap: mode.kind === "root",
  };
  const volumes = planVolumes(intent.volumes, rules, { deep });
  const identity = resolveIdentity(intent.process, mode, intent.idBlock, image?.user);
  const roots = image === undefined ? systemRoots() : `${systemRoots()}\n${image.bundlePem}`;
  const trust = context.trust.get(roots, intent.additionalCaPem, intent.inspectionCaPem);
  const workingDirectory = image === undefined ? HOME : imageWorkingDirectory(image);
  const { uid, gid } = identity.plan;
  const { hostname, writablePaths = [] } = intent;
  return {
    identity,
    volumes,
    trust,
    image,
    workingDirectory,
    seed:
      image === undefined
        ? []
        : seedEntries(
            { image, uid, gid, hostname, workingDirectory, writablePaths, volumes: intent.volumes, trust },
            (path) => hostFiles.kind(path) === "directory",
          ),
    processLimit: intent.resources.pids ?? config.sandbox_pids_limit,
    memoryBytes:
      intent.resources.memoryBytes ??
      (config.sandbox_memory_limit === 0 ? undefined : BigInt(config.sandbox_memory_limit)),
    ownFolders:
      intent.root.kind !== "host"
        ? []
        : ownFolderTargets(
            writablePaths,
            intent.volumes.map((volume) => volume.target),
          ),
  };
}

/** What no sandbox sees. */
export function privateFolders({ paths, clientConfigRoot }: ResolveContext): readonly string[] {
  return [paths.state, paths.config, paths.runtime, paths.logs, clientConfigRoot];
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
  const { sandboxId } = intent;
  if (resolved.image !== undefined) {
    return planImageRoot({
      imageRoot: resolved.image.root,
      folders: {
        seed: folders.seed(sandboxId),
        overlay: folders.overlay(sandboxId),
        home: folders.home(sandboxId),
        trust: folders.trust(sandboxId),
      },
      idmap: !resolved.identity.plan.denySetgroups,
      tmpBytes: BigInt(config.tmp_size),
      volumes: resolved.volumes.steps,
      hasProc: (path) => hostFiles.kind(path) !== undefined,
    });
  }
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
  const { identity, image, volumes, processLimit, workingDirectory } = resolved;
  return {
    home: HOME,
    workingDirectory,
    uid: identity.plan.uid,
    gid: identity.plan.gid,
    readOnlyPaths: volumes.readOnlyPaths,
    // The working directory's rules open the home where it is that.
    readWritePaths: workingDirectory === HOME ? volumes.readWritePaths : [HOME, ...volumes.readWritePaths],
    processLimit,
    imageRoot: image?.root,
    environment:
      image === undefined
        ? agentEnvironment({ user: AGENT_USER, shell: loginShell(), hostPath })
        : environmentOnImage(image, identity.plan),
  };
}

function environmentOnImage(
  image: ImageFacts,
  { uid, gid }: { readonly uid: number; readonly gid: number },
): Readonly<Record<string, string>> {
  const { user } = passwdFor(image.passwd, { uid, gid, shell: image.shell });
  const coversJava = image.javaStores.length > 0;
  return imageEnvironment(image.config.env, agentEnvironment({ user, shell: image.shell, hostPath: "", coversJava }));
}

/** The image's, unless that would open the whole root to writing. */
function imageWorkingDirectory({ config }: ImageFacts): string {
  const path = config.workingDirectory.replace(/(?<=.)\/+$/, "");
  const mounted = ["/proc", "/dev", "/sys"].some((folder) => isWithin(path, folder));
  return path.startsWith("/") && path !== "/" && posix.normalize(path) === path && !mounted ? path : HOME;
}

function loginShell(): string {
  return existsSync("/bin/bash") ? "/bin/bash" : "/bin/sh";
}
