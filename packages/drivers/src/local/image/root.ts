import { posix } from "node:path";
import type { RootStep } from "@openshell/boundary/local/plan.ts";
import type { VolumeRequest } from "../../driver.ts";
import type { TrustFiles } from "../ca-bundle.ts";
import { HOME, hostsFile, isWithin, MASKED_PROC, mask, TRUST_FOLDER } from "../root-view.ts";
import { groupFor, passwdFor } from "./accounts.ts";
import type { ImageFacts } from "./facts.ts";
import type { SeedEntry } from "./seed.ts";

/** The tmpfs that carries the overlay's parts until they are mounted; nothing of it stays visible. */
const STAGING_BYTES = 1n << 20n;
/** Provided by mounts; a policy's writable path there needs no folder. */
const PROVIDED: readonly string[] = [HOME, "/dev", "/proc", "/sys", "/tmp"];
/** More writable paths than these get no folder of their own. */
const MAX_AGENT_FOLDERS = 64;

/** What an image root depends on. Host folders are without links. */
export interface ImageRootInput {
  readonly image: ImageFacts;
  readonly uid: number;
  readonly gid: number;
  readonly hostname: string;
  readonly workingDirectory: string;
  readonly writablePaths: readonly string[];
  readonly volumes: readonly VolumeRequest[];
  readonly trust: TrustFiles;
}

/** Content of the seed layer, in the order in which it is written. */
export function seedEntries(input: ImageRootInput, isFolder: (path: string) => boolean): readonly SeedEntry[] {
  const { image, uid, gid, hostname, trust } = input;
  const point = (path: string, folder = true): SeedEntry => ({ kind: "point", path, folder });
  const file = (path: string, content: string): SeedEntry => ({ kind: "file", path, content });
  const agentFolders = [input.workingDirectory, ...input.writablePaths].filter(
    (path) =>
      path.startsWith("/") &&
      path !== "/" &&
      posix.normalize(path) === path &&
      !path.endsWith("/") &&
      !PROVIDED.some((taken) => isWithin(path, taken)) &&
      !input.volumes.some(({ target }) => isWithin(path, target)),
  );
  return [
    ...["/proc", "/dev", "/tmp", HOME, TRUST_FOLDER].map((path) => point(path)),
    ...input.volumes
      .filter(({ target }) => !isWithin(target, HOME) && !isWithin(target, "/tmp"))
      .map(({ source, target }) => point(target, isFolder(source))),
    file("/etc/passwd", passwdFor(image.passwd, { uid, gid, shell: image.shell }).text),
    file("/etc/group", groupFor(image.group, gid)),
    file("/etc/hostname", `${hostname}\n`),
    file("/etc/hosts", hostsFile(hostname)),
    file("/etc/resolv.conf", "nameserver 127.0.0.1\n"),
    { kind: "link", path: "/run/openshell-supervisor-ca", to: TRUST_FOLDER },
    ...image.bundles.map((path): SeedEntry => ({ kind: "replacement", path, content: trust.bundlePem })),
    ...image.javaStores.map((path): SeedEntry => ({ kind: "replacement", path, content: trust.javaTrustStore })),
    ...agentFolders.slice(0, MAX_AGENT_FOLDERS).map((path): SeedEntry => ({ kind: "agent-folder", path })),
  ];
}

/** Host folders of one sandbox. */
export interface ImageRootFolders {
  readonly seed: string;
  readonly overlay: string;
  readonly home: string;
  readonly trust: string;
}

/**
 * The root on an image: seed and image under the sandbox's own writable layer, then what every sandbox has of its own.
 * `idmap`: ids on disk are those inside (a gateway as root).
 */
export function planImageRoot(options: {
  readonly imageRoot: string;
  readonly folders: ImageRootFolders;
  readonly idmap: boolean;
  readonly tmpBytes: bigint;
  readonly volumes: readonly RootStep[];
  readonly hasProc: (path: string) => boolean;
}): readonly RootStep[] {
  const { folders } = options;
  const layer = (source: string, target: string): RootStep => ({
    kind: "volume",
    source,
    target,
    readOnly: true,
    idmap: options.idmap ? "sandbox" : undefined,
  });
  const own = (source: string, target: string, readOnly: boolean): RootStep => ({
    kind: "volume",
    source,
    target,
    readOnly,
    idmap: undefined,
  });
  return [
    { kind: "tmpfs", target: "/", mode: 0o755, sizeBytes: STAGING_BYTES, noexec: true, owner: "root" },
    layer(folders.seed, "/seed"),
    layer(options.imageRoot, "/image"),
    own(folders.overlay, "/own", false),
    { kind: "overlay", target: "/root", lower: ["/seed", "/image"], upper: "/own/upper", work: "/own/work" },
    { kind: "proc", target: "/proc" },
    ...MASKED_PROC.filter(options.hasProc).map(mask),
    { kind: "dev", target: "/dev" },
    { kind: "tmpfs", target: "/tmp", mode: 0o1777, sizeBytes: options.tmpBytes, noexec: false, owner: "root" },
    own(folders.home, HOME, false),
    own(folders.trust, TRUST_FOLDER, true),
    ...options.volumes,
  ];
}
