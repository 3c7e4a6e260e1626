import type { RootStep } from "@openshell/boundary/local/plan.ts";
import { JAVA_TRUST_STORES, SYSTEM_BUNDLES, TRUST_FILES } from "./ca-bundle.ts";
import { type HostFiles, hostFiles } from "./host-files.ts";

/** Home of the agent and default working directory, as in OpenShell 0.1. */
export const HOME = "/sandbox";
/** Name of the agent's account inside. */
export const AGENT_USER = "sandbox";

/** Folder of the trust files inside. */
export const TRUST_FOLDER = "/etc/openshell-tls";
export const CA_BUNDLE_PATH = `${TRUST_FOLDER}/${TRUST_FILES.bundle}`;
export const JAVA_TRUST_STORE_PATH = `${TRUST_FOLDER}/${TRUST_FILES.javaTrustStore}`;

/**
 * Host folders that the agent sees, read-only. Programs and libraries only: /opt, /srv, /var, /home and /root hold data and
 * configuration of other people and services, and come in by a volume or not at all.
 */
export const SYSTEM_DIRECTORIES: readonly string[] = [
  "/usr",
  "/bin",
  "/sbin",
  "/lib",
  "/lib32",
  "/lib64",
  "/libx32",
  "/nix/store",
  "/gnu/store",
];

/**
 * Parts of the host's /etc that programs need and that say nothing about its owner. Absent on purpose: accounts and
 * passwords, keys (ssh, ssl/private), machine-id, environment, profile.d, and files of package managers and clients
 * (npmrc, pip.conf, gitconfig, wgetrc, krb5.conf, apt), which may hold credentials, proxies or internal addresses.
 * An entry that ends in `*` stands for every name that begins with it.
 */
export const ETC_ENTRIES: readonly string[] = [
  "alternatives",
  "bash_completion",
  "bash_completion.d",
  "ca-certificates",
  "ca-certificates.conf",
  "crypto-policies",
  "debian_version",
  "ethertypes",
  "fonts",
  "gai.conf",
  "inputrc",
  "java-*",
  "ld.so.cache",
  "ld.so.conf",
  "ld.so.conf.d",
  "locale.alias",
  "locale.conf",
  "localtime",
  "lsb-release",
  "magic",
  "magic.mime",
  "maven/logging",
  "maven/m2.conf",
  "mime.types",
  "networks",
  "os-release",
  "perl",
  "pki/ca-trust/extracted",
  "pki/tls/certs",
  "pki/tls/openssl.cnf",
  "protocols",
  "python*",
  "redhat-release",
  "rpc",
  "services",
  "shells",
  "ssl/ca-bundle.pem",
  "ssl/cert.pem",
  "ssl/certs",
  "ssl/openssl.cnf",
  "terminfo",
  "timezone",
];

/**
 * Files of /proc that speak of the whole machine or of its user: keyrings are told apart by user id, not by namespace, and
 * a gateway that runs as a user shares its id with the agent. Covered by a file that cannot be opened.
 */
export const MASKED_PROC: readonly string[] = [
  "/proc/kcore",
  "/proc/key-users",
  "/proc/keys",
  "/proc/kmsg",
  "/proc/latency_stats",
  "/proc/sysrq-trigger",
  "/proc/timer_list",
];

/** The root's own tmpfs: synthesised files only. */
const ROOT_BYTES = 8n << 20n;

/** A writable folder that the policy names and that lasts as long as the home. */
export interface OwnFolder {
  /** Path inside. */
  readonly target: string;
  /** Host folder without links. */
  readonly source: string;
}

/** What the view depends on. */
export interface RootViewInput {
  readonly uid: number;
  readonly gid: number;
  readonly hostname: string;
  readonly shell: string;
  /** Host folder of the sandbox's trust files, without links. */
  readonly trustFolder: string;
  /** Host folder of the persistent home, without links. */
  readonly homeFolder: string;
  /** Size limit of /tmp. */
  readonly tmpBytes: bigint;
  /** Folders of the sandbox's own for writable paths that nothing else provides. */
  readonly ownFolders: readonly OwnFolder[];
  /** Steps of `planVolumes`, carried out after everything else is in place. */
  readonly volumes: readonly RootStep[];
}

/** The root of a sandbox on the host's system, in the order in which it is built. Only paths of the constant lists above are taken from the host. */
export function planRoot(input: RootViewInput, files: HostFiles = hostFiles): readonly RootStep[] {
  const directory = (target: string, mode = 0o755): RootStep => ({ kind: "directory", target, mode, owner: "root" });
  return [
    { kind: "tmpfs", target: "/", mode: 0o755, sizeBytes: ROOT_BYTES, noexec: false, owner: "root" },
    ...["/etc", "/home", "/run", "/var", "/var/cache", "/var/lib", "/var/log"].map((target) => directory(target)),
    ...SYSTEM_DIRECTORIES.flatMap((path) => systemDirectory(path, files)),
    ...etcSteps(files),
    { kind: "proc", target: "/proc" },
    ...MASKED_PROC.filter((path) => files.kind(path) !== undefined).map(mask),
    { kind: "dev", target: "/dev" },
    { kind: "tmpfs", target: "/tmp", mode: 0o1777, sizeBytes: input.tmpBytes, noexec: false, owner: "root" },
    { kind: "symlink", target: "/var/tmp", to: "/tmp" },
    { kind: "symlink", target: "/var/run", to: "/run" },
    // Where OpenShell 0.1 keeps the certificates; programs configured for it find them.
    { kind: "symlink", target: "/run/openshell-supervisor-ca", to: TRUST_FOLDER },
    { kind: "volume", source: input.homeFolder, target: HOME, readOnly: false, idmap: undefined },
    ...trustMounts(input.trustFolder, files),
    ...synthesisedFiles(input),
    ...input.ownFolders.map(
      ({ source, target }): RootStep => ({ kind: "volume", source, target, readOnly: false, idmap: undefined }),
    ),
    ...input.volumes,
    { kind: "seal", target: "/" },
  ];
}

/**
 * True when `path` (absolute, on the host) is there for the agent as well: it, and what it links to, lies in a system
 * directory, a visible part of /etc, or below one of `volumeSources`.
 */
export function visibleInside(
  path: string,
  volumeSources: readonly string[] = [],
  files: HostFiles = hostFiles,
): boolean {
  const real = files.realPath(path);
  if (real === undefined) return false;
  const within = (candidate: string, folders: readonly string[]): boolean =>
    folders.some((folder) => isWithin(candidate, folder));
  // Reading /etc costs more than all the rest, and every start of a sandbox asks for each folder of PATH.
  const visible = (candidate: string): boolean =>
    within(candidate, SYSTEM_DIRECTORIES) ||
    within(candidate, volumeSources) ||
    (isWithin(candidate, "/etc") && within(candidate, etcEntries(files)));
  return visible(path) && visible(real);
}

/** True when `path` is `folder` or below it; both absolute and normal. */
export function isWithin(path: string, folder: string): boolean {
  return path === folder || folder === "/" || path.startsWith(`${folder}/`);
}

function systemDirectory(path: string, files: HostFiles): RootStep[] {
  const kind = files.kind(path);
  if (kind === "directory") return [readOnlyBind(path, path)];
  // Merged /usr: /bin → usr/bin. A link that leads elsewhere would show a folder that is not on the list.
  if (kind === "symlink") {
    const real = files.realPath(path);
    if (real !== undefined && SYSTEM_DIRECTORIES.some((folder) => isWithin(real, folder))) {
      return [{ kind: "symlink", target: path, to: files.readLink(path) }];
    }
  }
  return [];
}

/** The list with its patterns resolved against the host. */
function etcEntries(files: HostFiles): readonly string[] {
  let names: readonly string[] | undefined;
  return ETC_ENTRIES.flatMap((entry) => {
    if (!entry.endsWith("*")) return [`/etc/${entry}`];
    names ??= files.list("/etc");
    return names.filter((name) => name.startsWith(entry.slice(0, -1))).map((name) => `/etc/${name}`);
  });
}

/**
 * A link into something visible stays a link, so that it follows the host's updates (and the merged bundle mounted over
 * its target); everything else is bound by its real path.
 */
function etcSteps(files: HostFiles): RootStep[] {
  const entries = etcEntries(files);
  const visible = [...SYSTEM_DIRECTORIES, ...entries.filter((entry) => files.kind(entry) === "directory")];
  return entries.flatMap((path): RootStep[] => {
    const kind = files.kind(path);
    const real = kind === undefined ? undefined : files.realPath(path);
    if (real === undefined) return [];
    if (kind === "symlink" && visible.some((folder) => isWithin(real, folder))) {
      return [{ kind: "symlink", target: path, to: real }];
    }
    const realKind = files.kind(real);
    return realKind === "directory" || realKind === "file" ? [readOnlyBind(real, path)] : [];
  });
}

/** Covers a file: on a mount without devices /dev/null can neither be opened nor connected to. */
export function mask(target: string): RootStep {
  return { kind: "bind", source: "/dev/null", target, readOnly: true, recursive: false, optional: false, noexec: true };
}

function readOnlyBind(source: string, target: string): RootStep {
  return { kind: "bind", source, target, readOnly: true, recursive: true, optional: true, noexec: false };
}

/**
 * The trust files in their own folder, and over the system's bundle and Java store where those are files of the view: for
 * clients that read no variable (GnuTLS, wget, the JVM).
 */
function trustMounts(folder: string, files: HostFiles): RootStep[] {
  const mount = (source: string, target: string): RootStep => ({
    kind: "volume",
    source,
    target,
    readOnly: true,
    idmap: undefined,
  });
  const over = (paths: readonly string[], name: string): RootStep[] =>
    visibleFiles(paths, files).map((path) => mount(`${folder}/${name}`, path));
  return [
    mount(folder, TRUST_FOLDER),
    ...over(SYSTEM_BUNDLES, TRUST_FILES.bundle),
    ...over(JAVA_TRUST_STORES, TRUST_FILES.javaTrustStore),
  ];
}

/** Real paths of those that are regular files below a visible part of /etc under their own name; each once. */
function visibleFiles(paths: readonly string[], files: HostFiles): readonly string[] {
  const etc = etcEntries(files).filter((entry) => files.kind(entry) === "directory");
  const real = paths.flatMap((path) => files.realPath(path) ?? []);
  return [...new Set(real)].filter((path) => files.kind(path) === "file" && etc.some((entry) => isWithin(path, entry)));
}

/** True when the system's JVM finds the merged roots by itself. */
export function coversJava(files: HostFiles = hostFiles): boolean {
  return visibleFiles(JAVA_TRUST_STORES, files).length > 0;
}

function synthesisedFiles(input: RootViewInput): RootStep[] {
  const file = (target: string, content: string): RootStep => ({
    kind: "file",
    target,
    mode: 0o644,
    content: new TextEncoder().encode(content),
  });
  return [
    file("/etc/passwd", passwd(input.uid, input.gid, input.shell)),
    file("/etc/group", group(input.gid)),
    file("/etc/hostname", `${input.hostname}\n`),
    file("/etc/hosts", hostsFile(input.hostname)),
    file("/etc/resolv.conf", "nameserver 127.0.0.1\n"),
    file("/etc/nsswitch.conf", NSSWITCH),
    file("/etc/profile", PROFILE),
    file("/etc/bash.bashrc", BASHRC),
    { kind: "symlink", target: "/etc/mtab", to: "/proc/self/mounts" },
  ];
}

/** Accounts by name only: there is no password anywhere inside. An id that the agent has is the agent's. */
function passwd(uid: number, gid: number, shell: string): string {
  const lines = ["root:x:0:0:root:/root:/usr/sbin/nologin", `${AGENT_USER}:x:${uid}:${gid}::${HOME}:${shell}`];
  if (uid !== 65_534) lines.push("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin");
  return `${lines.join("\n")}\n`;
}

function group(gid: number): string {
  const lines = ["root:x:0:", "tty:x:5:", `${AGENT_USER}:x:${gid}:`].filter(
    (line) => gid !== 5 || !line.startsWith("tty"),
  );
  if (gid !== 65_534) lines.push("nogroup:x:65534:");
  return `${lines.join("\n")}\n`;
}

/** /etc/hosts of a sandbox. */
export function hostsFile(hostname: string): string {
  return `127.0.0.1 localhost\n127.0.1.1 ${hostname}\n::1 localhost ip6-localhost ip6-loopback\n`;
}

const NSSWITCH = `passwd: files
group: files
shadow: files
hosts: files dns
networks: files
protocols: files
services: files
ethers: files
rpc: files
`;

/** Distributions' own would reset PATH, which the sandbox's environment sets. */
const PROFILE = `if [ -n "$BASH_VERSION" ] && [ -n "$PS1" ] && [ -r /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi
`;

const BASHRC = `[ -n "$PS1" ] || return
PS1='\\u@\\h:\\w\\$ '
`;
