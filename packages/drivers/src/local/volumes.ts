import { posix } from "node:path";
import { escapeUntrusted } from "@openshell/base";
import type { RootStep } from "@openshell/boundary/local/plan.ts";
import { DriverError, type VolumeRequest } from "../driver.ts";
import { type HostFiles, hostFiles } from "./host-files.ts";
import { HOME, isWithin, mask, SYSTEM_DIRECTORIES } from "./root-view.ts";
import { findGuards } from "./volumes/guards.ts";
import type { Hold } from "./volumes/holds.ts";
import { startUpFile } from "./volumes/start-up-files.ts";

/** More would be a mistake; each costs several mounts. */
export const MAX_VOLUMES = 32;
const MAX_PATH_BYTES = 1_024;
/** NAME_MAX of every file system that counts. */
const MAX_NAME_BYTES = 255;
/** Guards of all volumes of a sandbox together; a launch plan has room for 512 steps. */
const MAX_ALL_GUARDS = 256;
/** Sockets masked in one volume; a folder with more is a service's, not a project. */
const MAX_MASKED_SOCKETS = 64;

/** Host folders that hold devices, processes or services' sockets instead of files. */
const REFUSED_SOURCES: readonly string[] = ["/proc", "/sys", "/dev", "/run", "/var/run"];

/** File systems that are the kernel's own interfaces, wherever they are mounted. */
const REFUSED_FILE_SYSTEMS: ReadonlySet<string> = new Set([
  "bpf",
  "cgroup",
  "cgroup2",
  "configfs",
  "debugfs",
  "devpts",
  "devtmpfs",
  "efivarfs",
  "mqueue",
  "proc",
  "securityfs",
  "sysfs",
  "tracefs",
]);

/** Inside paths that the sandbox itself is made of. */
const REFUSED_TARGETS: readonly string[] = [
  ...SYSTEM_DIRECTORIES,
  "/etc",
  "/proc",
  "/sys",
  "/dev",
  "/run",
  "/var/run",
  "/opt/openshell",
];

/** Parses `SRC:DST`, `SRC:DST:ro`, `:rw` or `:rw-all`. A relative SRC is resolved against `base` (the caller's working directory). Throws `volume_invalid`. */
export function parseVolume(text: string, base: string): VolumeRequest {
  const [source = "", target = "", access = "rw", ...rest] = text.split(":");
  if (rest.length > 0 || source === "" || target === "") {
    throw invalid(text, "expected SOURCE:TARGET, optionally followed by :ro, :rw or :rw-all");
  }
  if (access !== "ro" && access !== "rw" && access !== "rw-all")
    throw invalid(text, `unknown access ${JSON.stringify(access)}`);
  return { source: posix.resolve(base, source), target, access };
}

/** What decides whether a volume is allowed. */
export interface VolumeRules {
  /** Undefined for a remote caller. */
  readonly caller: { readonly uid: number; readonly gid: number } | undefined;
  readonly gatewayUid: number;
  /** `[local] volume_roots`: what anybody may mount from. */
  readonly volumeRoots: readonly string[];
  /** The gateway's state, configuration, runtime and log folders and the clients' configuration. */
  readonly privateFolders: readonly string[];
  /** True where the gateway can map ids (root): the caller's ids on disk then appear as the agent's. */
  readonly idmap: boolean;
}

/** Steps and paths of a sandbox's volumes. */
export interface VolumePlan {
  readonly steps: readonly RootStep[];
  readonly readOnlyPaths: readonly string[];
  readonly readWritePaths: readonly string[];
  /** What has to be made before the steps that cover it. */
  readonly holds: readonly Hold[];
  /** Host folders of git's in which nothing called `commondir` may appear. */
  readonly gitFolders: readonly string[];
  /** Host paths of sockets that are covered. */
  readonly covered: readonly string[];
}

export interface VolumeOptions {
  readonly files?: HostFiles;
  /** Guards are looked for in every folder of a writable volume, not at its top alone: for a launch. */
  readonly deep?: boolean;
}

/**
 * Checks every volume and plans its mounts (docs/architecture/drivers.md). The launcher opens the source once more
 * without following any link, so a path that changes after this check is refused there.
 *
 * Throws `volume_invalid` (grammar, targets), `volume_refused` (who may, what may not) or `volume_unavailable`.
 */
export function planVolumes(
  requests: readonly VolumeRequest[],
  rules: VolumeRules,
  { files = hostFiles, deep = false }: VolumeOptions = {},
): VolumePlan {
  if (requests.length > MAX_VOLUMES) {
    throw new DriverError("volume_invalid", `${requests.length} volumes exceed ${MAX_VOLUMES}`);
  }
  const targets: string[] = [];
  const steps: RootStep[] = [];
  const holds: Hold[] = [];
  const gitFolders: string[] = [];
  const covered: string[] = [];
  let guards = 0;
  for (const request of requests) {
    checkTarget(request, targets);
    targets.push(request.target);
    const isFolder = checkSource(request, rules, files);
    const mount = mounter(request, rules, files);
    steps.push(...homeParents(request.target), mount("", request.access === "ro"));
    if (!isFolder) continue;
    const sockets = files.sockets().filter((path) => isWithin(path, request.source) && files.kind(path) === "other");
    if (request.access === "rw") {
      const found = findGuards(request.source, files, deep);
      guards += found.guards.length;
      if (guards > MAX_ALL_GUARDS) throw tooManyGuards(request);
      for (const { path, readOnly, hold } of found.guards) {
        steps.push(mount(`/${path}`, readOnly));
        if (hold !== undefined) holds.push({ path: `${request.source}/${path}`, kind: hold });
      }
      gitFolders.push(...found.gitFolders.map((path) => posix.join(request.source, path)));
      sockets.push(...found.sockets.map((path) => `${request.source}/${path}`));
    }
    const inside = [...new Set(sockets)].filter(isNormal);
    covered.push(...inside);
    steps.push(...maskedSockets(request, inside));
  }
  const paths = (readOnly: boolean): string[] =>
    requests.filter((request) => (request.access === "ro") === readOnly).map((request) => request.target);
  return { steps, readOnlyPaths: paths(true), readWritePaths: paths(false), holds, gitFolders, covered };
}

function checkTarget(request: VolumeRequest, earlier: readonly string[]): void {
  const { target } = request;
  if (!isNormal(target) || target === "/")
    throw invalid(target, "the target must be an absolute path without '..', not '/'");
  const system = REFUSED_TARGETS.find((path) => isWithin(target, path) || isWithin(path, target));
  if (system !== undefined) throw invalid(target, `${system} belongs to the sandbox itself`);
  if (isWithin(HOME, target)) throw invalid(target, `it would hide the agent's home; use a folder below ${HOME}`);
  if (isWithin("/tmp", target)) throw invalid(target, "it would replace the private /tmp; use a folder below it");
  const clash = earlier.find((path) => isWithin(path, target) || isWithin(target, path));
  if (clash !== undefined) throw invalid(target, `it overlaps the volume at ${escapeUntrusted(clash)}`);
}

/** True for a folder, false for a regular file. */
export function checkSource(request: VolumeRequest, rules: VolumeRules, files: HostFiles): boolean {
  const { source } = request;
  const shown = escapeUntrusted(source);
  if (!isNormal(source)) throw invalid(source, "the source must be an absolute path without '..'");
  const mayByUid = rules.caller !== undefined && rules.caller.uid === rules.gatewayUid;
  if (!mayByUid && !rules.volumeRoots.some((root) => isWithin(source, files.realPath(root) ?? root))) {
    throw new DriverError("volume_refused", `this caller may not mount ${shown}`, {
      next: "Ask over the gateway's local socket as its own user, or have the folder added to [local] volume_roots",
    });
  }
  if (!mayByUid && request.access === "rw-all") {
    throw new DriverError("volume_refused", `this caller may not open start-up files of ${shown} to the agent`, {
      next: "Mount it without :rw-all; only the gateway's own user may, over its local socket",
    });
  }
  const privateFolder = rules.privateFolders.find((path) => overlaps(source, path, files));
  if (privateFolder !== undefined) {
    throw new DriverError("volume_refused", `${shown} holds files of the gateway (${privateFolder})`, {
      next: "Mount a folder that does not contain OpenShell's own state, configuration or sockets",
    });
  }
  const special = REFUSED_SOURCES.find((path) => isWithin(source, path) || isWithin(path, source));
  if (special !== undefined) {
    throw new DriverError(
      "volume_refused",
      `${shown} holds devices, processes or sockets of the machine (${special})`,
      {
        next: "Mount a folder of ordinary files",
      },
    );
  }
  const fileSystem = files.fileSystem(source);
  if (fileSystem !== undefined && REFUSED_FILE_SYSTEMS.has(fileSystem)) {
    throw new DriverError("volume_refused", `${shown} is an interface of the kernel (${fileSystem})`, {
      next: "Mount a folder of ordinary files",
    });
  }
  const kind = files.kind(source);
  if (kind === undefined) {
    throw new DriverError("volume_unavailable", `${shown} does not exist`, {
      next: "Create it first, or correct the path",
    });
  }
  if (kind === "other") {
    throw new DriverError("volume_refused", `${shown} is a socket, device or pipe`, {
      next: "Mount a folder or a regular file",
    });
  }
  const real = files.realPath(source);
  if (kind === "symlink" || real !== source) {
    throw new DriverError("volume_refused", `${shown} leads through a symbolic link`, {
      next: real === undefined ? "Name a path that exists" : `Name the real path: ${escapeUntrusted(real)}`,
    });
  }
  const startsUp = source.split("/").find((name) => name === ".git" || startUpFile(name, true) !== undefined);
  if (request.access === "rw" && startsUp !== undefined) {
    throw new DriverError("volume_refused", `${shown} is or lies in ${startsUp}, which the owner's programs run from`, {
      next: "Mount it :ro, or :rw-all if the agent is to change what they run",
    });
  }
  return kind === "directory";
}

/**
 * True when one holds the other, by name or by file: a private folder may be reached through a link or a second mount as
 * well, and then only its identity tells.
 */
function overlaps(source: string, folder: string, files: HostFiles): boolean {
  if (isWithin(source, folder) || isWithin(folder, source)) return true;
  const [sourceId, folderId] = [files.identity(source), files.identity(folder)];
  const real = files.realPath(folder) ?? folder;
  return (
    (sourceId !== undefined && ancestors(real).some((path) => files.identity(path) === sourceId)) ||
    (folderId !== undefined && ancestors(source).some((path) => files.identity(path) === folderId))
  );
}

/** The path itself, its parents, and the root. */
function ancestors(path: string): readonly string[] {
  const all = [path];
  for (let at = path; at !== "/"; all.push(at)) at = posix.dirname(at);
  return all;
}

/** Makes the step that mounts a path below the volume (`""`: all of it). */
function mounter(
  { source, target }: VolumeRequest,
  rules: VolumeRules,
  files: HostFiles,
): (path: string, readOnly: boolean) => RootStep {
  const owner = rules.idmap ? (rules.caller ?? folderOwner(source, files)) : undefined;
  const idmap = owner === undefined ? undefined : { hostUid: owner.uid, hostGid: owner.gid };
  return (path, readOnly) => ({ kind: "volume", source: source + path, target: target + path, readOnly, idmap });
}

/**
 * A caller from the network has no id on this machine: the agent then acts with that of the folder's owner. Never with
 * root's, whose files it may see as everybody else may.
 */
function folderOwner(source: string, files: HostFiles): { readonly uid: number; readonly gid: number } | undefined {
  const owner = files.owner(source);
  return owner === undefined || owner.uid === 0 ? undefined : owner;
}

function tooManyGuards(request: VolumeRequest): DriverError {
  return new DriverError(
    "volume_refused",
    `${escapeUntrusted(request.source)} holds too many repositories and start-up files to keep each read-only`,
    { next: "Mount one project, or mount it :ro, or :rw-all to open them all" },
  );
}

/**
 * A Unix socket in a mounted folder would connect the agent to whatever listens on the host, past the network capture:
 * each one known now is covered with a file that nobody can connect to. One that is made later is not.
 */
function maskedSockets(request: VolumeRequest, inside: readonly string[]): RootStep[] {
  if (inside.length > MAX_MASKED_SOCKETS) {
    throw new DriverError(
      "volume_refused",
      `${escapeUntrusted(request.source)} holds ${inside.length} sockets of services`,
      {
        next: "Mount a folder of ordinary files",
      },
    );
  }
  return inside.map((path) => mask(request.target + path.slice(request.source.length)));
}

/** Parents below the home are the agent's own; elsewhere init makes them. */
function homeParents(target: string): RootStep[] {
  const steps: RootStep[] = [];
  for (let parent = posix.dirname(target); parent !== HOME && isWithin(parent, HOME); parent = posix.dirname(parent)) {
    steps.unshift({ kind: "directory", target: parent, mode: 0o755, owner: "agent" });
  }
  return steps;
}

function isNormal(path: string): boolean {
  return (
    path.startsWith("/") &&
    posix.normalize(path) === path &&
    (path === "/" || !path.endsWith("/")) &&
    !/[\u0000-\u001f\u007f:]/.test(path) &&
    // Half of a surrogate pair has no UTF-8: another path would be meant than was named.
    path.isWellFormed() &&
    Buffer.byteLength(path) <= MAX_PATH_BYTES &&
    path.split("/").every((name) => Buffer.byteLength(name) <= MAX_NAME_BYTES)
  );
}

function invalid(what: string, why: string): DriverError {
  return new DriverError("volume_invalid", `volume ${JSON.stringify(escapeUntrusted(what, 200))}: ${why}`, {
    next: "Write --volume SOURCE:TARGET[:ro] with absolute paths",
  });
}
