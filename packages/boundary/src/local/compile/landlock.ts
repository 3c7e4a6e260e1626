import type { LandlockRuleset } from "../../boundary.ts";

/** Filesystem rights by bit (linux/landlock.h); the comment names the ABI that brought them. */
export const ACCESS_FS = {
  execute: 1n << 0n,
  writeFile: 1n << 1n,
  readFile: 1n << 2n,
  readDir: 1n << 3n,
  removeDir: 1n << 4n,
  removeFile: 1n << 5n,
  makeChar: 1n << 6n,
  makeDir: 1n << 7n,
  makeReg: 1n << 8n,
  makeSock: 1n << 9n,
  makeFifo: 1n << 10n,
  makeBlock: 1n << 11n,
  makeSym: 1n << 12n,
  /** 2: rename and link across folders. */
  refer: 1n << 13n,
  /** 3. */
  truncate: 1n << 14n,
  /** 5: ioctl on devices opened from now on. */
  ioctlDev: 1n << 15n,
} as const;

/** 6: what a domain may not reach outside itself. */
export const SCOPE = { abstractUnixSocket: 1n << 0n, signal: 1n << 1n } as const;

/** Without TRUNCATE (ABI 3, Linux 6.2) a file that may only be read could be emptied. */
export const MINIMUM_LANDLOCK_ABI = 3;
/** Newest ABI whose rights are known here; a newer kernel is used as this one. */
export const MAXIMUM_LANDLOCK_ABI = 7;

/** Rights that mean something for a file; the kernel refuses the others in a rule for one, so init drops them there. */
export const FILE_RIGHTS =
  ACCESS_FS.execute | ACCESS_FS.writeFile | ACCESS_FS.readFile | ACCESS_FS.truncate | ACCESS_FS.ioctlDev;

const READ = ACCESS_FS.execute | ACCESS_FS.readFile | ACCESS_FS.readDir;
/** Everything but device nodes and ioctl on devices. */
const READ_WRITE =
  READ |
  ACCESS_FS.writeFile |
  ACCESS_FS.removeDir |
  ACCESS_FS.removeFile |
  ACCESS_FS.makeDir |
  ACCESS_FS.makeReg |
  ACCESS_FS.makeSock |
  ACCESS_FS.makeFifo |
  ACCESS_FS.makeSym |
  ACCESS_FS.refer |
  ACCESS_FS.truncate;
const DEVICE = ACCESS_FS.readFile | ACCESS_FS.writeFile | ACCESS_FS.truncate;
const TERMINAL = DEVICE | ACCESS_FS.ioctlDev;

/**
 * What every program needs, whatever the policy lists: the system directories to read, the usual devices, a temporary
 * folder. The sandbox's root holds nothing else of the host (packages/drivers/src/local/root-view.ts).
 */
export const BASE_READ_ONLY: readonly string[] = [
  "/usr",
  "/bin",
  "/sbin",
  "/lib",
  "/lib32",
  "/lib64",
  "/libx32",
  "/nix/store",
  "/gnu/store",
  "/etc",
  "/proc",
  "/run/openshell-supervisor-ca",
  "/dev/random",
  "/dev/urandom",
];
export const BASE_READ_WRITE: readonly string[] = ["/tmp", "/var/tmp", "/dev/shm"];
const BASE_DEVICES: readonly string[] = ["/dev/null", "/dev/zero", "/dev/full"];
const BASE_TERMINALS: readonly string[] = ["/dev/tty", "/dev/ptmx", "/dev/pts"];

/** The policy's filesystem section and what the root adds to it. Paths are absolute and lexically normal. */
export interface FilesystemRules {
  readonly readOnly: readonly string[];
  readonly readWrite: readonly string[];
  /** Adds the working directory to the writable paths. */
  readonly includeWorkdir: boolean;
  readonly workingDirectory: string;
  /** Volumes: `WorkloadLayout.readOnlyPaths` and `readWritePaths`. */
  readonly layoutReadOnly: readonly string[];
  readonly layoutReadWrite: readonly string[];
  /** `hard_requirement` makes a listed path that is missing an error. */
  readonly compatibility: "best_effort" | "hard_requirement";
}

/**
 * The ruleset for a kernel with this Landlock ABI (0: none), or undefined when the kernel has none that protects
 * (below `MINIMUM_LANDLOCK_ABI`). The caller decides what that means: refuse under `hard_requirement`, else report it.
 *
 * A path listed twice gets the union of its rights. A read-only path below a writable one stays writable: Landlock adds
 * rights along the path, it never takes any away. Network rights are not handled, since the capture decides there.
 */
export function compileLandlock(rules: FilesystemRules, abi: number): LandlockRuleset | undefined {
  if (abi < MINIMUM_LANDLOCK_ABI) return undefined;
  const handledFs = handledRights(abi);
  const byPath = new Map<string, { access: bigint; required: boolean }>();
  const add = (paths: readonly string[], access: bigint, required: boolean): void => {
    for (const path of paths) {
      const known = byPath.get(path);
      byPath.set(path, {
        access: (known?.access ?? 0n) | (access & handledFs),
        required: required || (known?.required ?? false),
      });
    }
  };
  const required = rules.compatibility === "hard_requirement";

  add(BASE_READ_ONLY, READ, false);
  add(BASE_READ_WRITE, READ_WRITE, false);
  add(BASE_DEVICES, DEVICE, false);
  add(BASE_TERMINALS, TERMINAL, false);
  // Names only: the entries themselves are listed above.
  add(["/dev"], ACCESS_FS.readDir, false);
  add(rules.readOnly, READ, required);
  add(rules.readWrite, READ_WRITE, required);
  if (rules.includeWorkdir) add([rules.workingDirectory], READ_WRITE, true);
  add(rules.layoutReadOnly, READ, true);
  add(rules.layoutReadWrite, READ_WRITE, true);

  return {
    handledFs,
    handledNet: 0n,
    scoped: abi >= 6 ? SCOPE.abstractUnixSocket | SCOPE.signal : 0n,
    rules: [...byPath].map(([path, rule]) => ({ path, access: rule.access, required: rule.required })),
  };
}

/** Every right that the ABI knows is handled, so that what is not granted is refused. */
function handledRights(abi: number): bigint {
  const known = Math.min(abi, MAXIMUM_LANDLOCK_ABI);
  let rights = (1n << 13n) - 1n;
  if (known >= 2) rights |= ACCESS_FS.refer;
  if (known >= 3) rights |= ACCESS_FS.truncate;
  if (known >= 5) rights |= ACCESS_FS.ioctlDev;
  return rights;
}
