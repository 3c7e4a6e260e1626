import { posix } from "node:path";
import { escapeUntrusted } from "@openshell/base";
import type { RootStep } from "@openshell/boundary/local/plan.ts";
import { DriverError, type VolumeRequest } from "../driver.ts";
import { type HostFiles, hostFiles } from "./host-files.ts";
import { HOME, isWithin, mask, SYSTEM_DIRECTORIES } from "./root-view.ts";

/** More would be a mistake; each costs several mounts. */
export const MAX_VOLUMES = 32;
const MAX_PATH_BYTES = 1_024;
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

/**
 * What the owner's shell, editor or git later runs from a folder. Read-only inside unless the volume is `rw-all`, since
 * the agent could plant code there that runs outside. What is not there yet cannot be guarded this way.
 */
const START_UP_NAMES: readonly string[] = [
  ".bash_login",
  ".bash_logout",
  ".bash_profile",
  ".bashrc",
  ".cshrc",
  ".devcontainer",
  ".emacs",
  ".emacs.d",
  ".envrc",
  ".exrc",
  ".gitconfig",
  ".idea",
  ".inputrc",
  ".nvimrc",
  ".profile",
  ".ssh",
  ".tcshrc",
  ".vimrc",
  ".vscode",
  ".xprofile",
  ".xsession",
  ".zlogin",
  ".zprofile",
  ".zshenv",
  ".zshrc",
];
const GIT_GUARDED: readonly string[] = ["hooks", "config", "config.worktree"];

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
  files: HostFiles = hostFiles,
): VolumePlan {
  if (requests.length > MAX_VOLUMES) {
    throw new DriverError("volume_invalid", `${requests.length} volumes exceed ${MAX_VOLUMES}`);
  }
  const targets: string[] = [];
  const steps: RootStep[] = [];
  for (const request of requests) {
    checkTarget(request, targets);
    targets.push(request.target);
    const isFolder = checkSource(request, rules, files);
    steps.push(...mountSteps(request, isFolder, rules, files));
  }
  const paths = (readOnly: boolean): string[] =>
    requests.filter((request) => (request.access === "ro") === readOnly).map((request) => request.target);
  return { steps, readOnlyPaths: paths(true), readWritePaths: paths(false) };
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
  if (!mayByUid && !rules.volumeRoots.some((root) => isWithin(source, root))) {
    throw new DriverError("volume_refused", `this caller may not mount ${shown}`, {
      next: "Ask over the gateway's local socket as its own user, or have the folder added to [local] volume_roots",
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

function mountSteps(request: VolumeRequest, isFolder: boolean, rules: VolumeRules, files: HostFiles): RootStep[] {
  const owner = rules.idmap ? rules.caller : undefined;
  const idmap = owner === undefined ? undefined : { hostUid: owner.uid, hostGid: owner.gid };
  const mount = (source: string, target: string, readOnly: boolean): RootStep => ({
    kind: "volume",
    source,
    target,
    readOnly,
    idmap,
  });
  const steps = [...homeParents(request.target), mount(request.source, request.target, request.access === "ro")];
  if (request.access === "rw" && isFolder) {
    for (const name of guarded(request.source, files)) {
      steps.push(mount(`${request.source}/${name.path}`, `${request.target}/${name.path}`, name.readOnly));
    }
  }
  if (isFolder) steps.push(...maskedSockets(request, files));
  return steps;
}

/**
 * A Unix socket in a mounted folder would connect the agent to whatever listens on the host, past the network capture:
 * each one known now is covered with a file that nobody can connect to. One that is made later is not.
 */
function maskedSockets(request: VolumeRequest, files: HostFiles): RootStep[] {
  const inside = files
    .sockets()
    .filter((path) => isWithin(path, request.source) && isNormal(path) && files.kind(path) === "other");
  if (inside.length > MAX_MASKED_SOCKETS) {
    throw new DriverError(
      "volume_refused",
      `${escapeUntrusted(request.source)} holds ${inside.length} sockets of running services`,
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

/**
 * What of a writable folder becomes read-only. `.git` itself is mounted as well, writable: a mount point cannot be
 * renamed away, so the agent cannot put another repository's hooks in its place.
 */
function guarded(source: string, files: HostFiles): { readonly path: string; readonly readOnly: boolean }[] {
  const found: { path: string; readOnly: boolean }[] = [];
  const addReadOnly = (path: string): void => {
    const kind = files.kind(`${source}/${path}`);
    if (kind === "directory" || kind === "file") found.push({ path, readOnly: true });
  };
  const git = files.kind(`${source}/.git`);
  if (git === "directory") {
    found.push({ path: ".git", readOnly: false });
    for (const name of GIT_GUARDED) addReadOnly(`.git/${name}`);
  } else if (git === "file") addReadOnly(".git");
  for (const name of START_UP_NAMES) addReadOnly(name);
  return found;
}

function isNormal(path: string): boolean {
  return (
    path.startsWith("/") &&
    posix.normalize(path) === path &&
    (path === "/" || !path.endsWith("/")) &&
    !/[\u0000-\u001f\u007f:]/.test(path) &&
    Buffer.byteLength(path) <= MAX_PATH_BYTES
  );
}

function invalid(what: string, why: string): DriverError {
  return new DriverError("volume_invalid", `volume ${JSON.stringify(escapeUntrusted(what, 200))}: ${why}`, {
    next: "Write --volume SOURCE:TARGET[:ro] with absolute paths",
  });
}
