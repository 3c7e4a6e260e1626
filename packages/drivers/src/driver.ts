import { RuntimeError } from "@openshell/base";
import type { CaptureMode, IsolationLayer } from "@openshell/boundary";

/**
 * What the gateway asks of whatever runs sandboxes. One implementation a folder: `local/`, later docker, podman, vm, kubernetes.
 *
 * The gateway stores its intent before it calls, so every method may be called again after a crash with the same
 * arguments, at any point of its earlier run: `create` and `start` answer with what already runs for that generation,
 * `stop` and `delete` of something that is gone succeed. Calls for one sandbox must not overlap; the gateway keeps them in order.
 * A driver decides nothing about network or credentials, and is never handed a credential.
 */
export interface ComputeDriver extends AsyncDisposable {
  /** `local`, `docker`, … */
  readonly name: string;
  readonly capabilities: DriverCapabilities;

  /** Everything that can be refused before anything is stored; no side effect. Throws `DriverError`. */
  validate(intent: SandboxIntent): Promise<void>;
  /** Makes the sandbox's folders and starts init. On failure nothing of this generation is left running. */
  create(intent: SandboxIntent, onProgress?: OnProgress): Promise<StartedSandbox>;
  /** Starts a stopped sandbox as a new generation; its home is kept. Fails with `sandbox_not_found` when its folders are gone. */
  start(intent: SandboxIntent): Promise<StartedSandbox>;
  /**
   * Ends every process of the sandbox and keeps its files. The supervisor has asked the main process first (SIGTERM); what
   * still runs is killed. Resolves when nothing runs any more.
   */
  stop(sandboxId: string): Promise<void>;
  /** `stop`, then removes files, cgroups and sockets. Resolves when all are gone. */
  delete(sandboxId: string): Promise<DeleteResult>;
  /**
   * `stop`, for a sandbox that no record knows: its files are kept where no sandbox sees them, for a limited time, and are
   * no sandbox any more. Resolves with their folder; undefined when there is none.
   */
  setAside(sandboxId: string): Promise<string | undefined>;
  /** What exists for this id; undefined when nothing does. */
  inspect(sandboxId: string): Promise<DriverSandbox | undefined>;
  /** Everything this gateway's driver holds, for reconciling after a restart. */
  list(): Promise<readonly DriverSandbox[]>;
  /**
   * Start-up files in the sandbox's writable volumes that came or changed since its first start, and sockets of services outside
   * that came into any volume since its last one; the sandbox may run or not. Bounded in time and size. Nothing for a sandbox that has no such volume or does not exist.
   */
  plantedFiles(sandboxId: string): Promise<PlantedFiles>;
  /**
   * Ends of sandboxes as they happen, until `signal` aborts. A sandbox that ended while nobody watched is not repeated:
   * call `list()` after subscribing.
   */
  watch(signal: AbortSignal): AsyncIterable<DriverEvent>;
}

export interface DriverCapabilities {
  readonly driverName: string;
  readonly driverVersion: string;
  readonly cpuLimit: boolean;
  readonly memoryLimit: boolean;
  readonly gpu: boolean;
  readonly captureMode: CaptureMode;
  /** `root`: a block of host ids a sandbox. `user`: one id, inside = outside. */
  readonly identityMode: "root" | "user";
  /** Largest archive of a root file system that it takes, bytes; 0 where it takes none. */
  readonly archiveBytes: number;
}

/** Hears once a second or so what a long preparation does; false ends it, since nobody wants the sandbox any more. */
export type OnProgress = (message: string) => Promise<boolean>;

/** Everything a driver needs to run one generation of one sandbox. Plain data; persisted by the driver without `nonce`. */
export interface SandboxIntent {
  /** Unique over all time; letters, digits and hyphens. */
  readonly sandboxId: string;
  readonly name: string;
  readonly workspace: string;
  /** Grows with each start. */
  readonly generation: bigint;
  /** 32 random bytes a generation, stored by the gateway before the call; never logged. */
  readonly nonce: Uint8Array;
  /** Which block of host ids the store allotted to this sandbox (`identityMode: "root"`), else undefined. */
  readonly idBlock: number | undefined;
  /** Where the root comes from: the host's system folders, or an image on this machine. */
  readonly root: SandboxRoot;
  /** Host name inside; a DNS label. */
  readonly hostname: string;
  readonly process: ProcessIdentityRequest;
  readonly resources: ResourceLimits;
  readonly volumes: readonly VolumeRequest[];
  /**
   * The policy's read_write paths. One that neither the system nor a volume provides becomes a folder of the sandbox's own
   * that lasts as long as its home; one inside the system's folders stays read-only.
   */
  readonly writablePaths?: readonly string[];
  /** Ports that the policy's endpoints name: captured one by one where nothing better exists (`listener_per_port`). */
  readonly endpointPorts?: readonly number[];
  /** Who asked, as the kernel says (SO_PEERCRED of the user socket); undefined for a remote caller, who may name no volume outside `volume_roots`. */
  readonly caller: { readonly uid: number; readonly gid: number } | undefined;
  /** Certificate of the CA for inspected TLS; the key never comes here. */
  readonly inspectionCaPem: string;
  /** Further roots that the agent's clients trust, PEM; empty for none. */
  readonly additionalCaPem: string;
}

/**
 * `image`: absolute path of a folder that is a root file system, or of an archive of one. `staged`: an archive in the gateway's own
 * folder, copied there for this sandbox; it is there until the sandbox was created.
 */
export type SandboxRoot =
  | { readonly kind: "host" }
  | { readonly kind: "image"; readonly source: string }
  | { readonly kind: "staged"; readonly source: string };

/** The policy's process section; empty strings are "not given". */
export interface ProcessIdentityRequest {
  readonly runAsUser: string;
  readonly runAsGroup: string;
}

/** Undefined means the driver's default. */
export interface ResourceLimits {
  /** Thousandths of a CPU. */
  readonly cpuMillis: number | undefined;
  readonly memoryBytes: bigint | undefined;
  readonly pids: number | undefined;
}

/** One `SRC:DST[:ro]`, parsed. `rw` keeps git hooks, git configuration and start-up files read-only, `rw-all` does not. */
export interface VolumeRequest {
  /** Absolute host path. */
  readonly source: string;
  /** Absolute path inside. */
  readonly target: string;
  readonly access: "rw" | "ro" | "rw-all";
}

/** A running generation, and what a supervisor must know of it. */
export interface StartedSandbox {
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly record: ProcessRecord;
  readonly boundary: {
    readonly kind: "local";
    readonly socketPath: string;
    /** SO_NETNS_COOKIE of the sandbox's network namespace: the host checks every descriptor it is handed against it. */
    readonly netnsCookie: bigint;
  };
  readonly layout: WorkloadLayout;
  /** What the driver could and could not set up; part of the sandbox's isolation report. */
  readonly isolation: readonly IsolationLayer[];
}

/** Identifies a process beyond pid reuse and reboots: all three must match. */
export interface ProcessRecord {
  readonly bootId: string;
  readonly pid: number;
  /** Field 22 of /proc/PID/stat: clock ticks after boot. */
  readonly startTime: bigint;
}

/** What the root offers the agent; delivered to the supervisor, which compiles restrictions and spawns with it. */
export interface WorkloadLayout {
  readonly home: string;
  readonly workingDirectory: string;
  readonly uid: number;
  readonly gid: number;
  /** Paths that the filesystem rules open in addition to the policy's (volumes). */
  readonly readOnlyPaths: readonly string[];
  readonly readWritePaths: readonly string[];
  /** Processes and threads at once, for RLIMIT_NPROC (`compileRestrictions`): holds where no cgroup can. */
  readonly processLimit: number;
  /** Environment every agent process starts from: PATH, HOME, proxy and CA variables. No secret. */
  readonly environment: Readonly<Record<string, string>>;
  /** Host folder, without links, that is the image of the root: the supervisor looks into it. Undefined: the host's system folders. */
  readonly imageRoot?: string | undefined;
}

export interface DriverSandbox {
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly name: string;
  readonly workspace: string;
  /** Set while init runs. */
  readonly running: StartedSandbox | undefined;
}

export interface DeleteResult {
  /** False when there was nothing left to delete. */
  readonly existed: boolean;
}

/** What programs of the owner's would run from a volume without being asked, and what of theirs the agent can reach there. */
export interface PlantedFiles {
  /** On the host; names are the agent's choice. */
  readonly files: readonly { readonly path: string; readonly reason: string }[];
  /** How many more there are than are named. */
  readonly more: number;
  /** False when the volumes are too large to be looked through. */
  readonly complete: boolean;
}

export type DriverEvent =
  | {
      readonly kind: "ended";
      readonly sandboxId: string;
      readonly generation: bigint;
      readonly record: ProcessRecord;
    }
  /** Its files take more than the driver allows; it runs on until somebody stops it. */
  | {
      readonly kind: "disk_limit";
      readonly sandboxId: string;
      readonly generation: bigint;
      readonly usedBytes: number;
      readonly limitBytes: number;
    }
  /** It redirected a repository in a volume to a configuration of its own (`path`, which was moved aside). It runs on until somebody stops it. */
  | {
      readonly kind: "volume_redirect";
      readonly sandboxId: string;
      readonly generation: bigint;
      readonly path: string;
    }
  /** Its processes met a limit, `times` since the event before: forks were refused, or a process was killed for memory. It runs on. */
  | {
      readonly kind: "limit";
      readonly sandboxId: string;
      readonly generation: bigint;
      readonly limit: "processes" | "memory";
      readonly times: number;
    };

/** Stable codes of `DriverError`. */
export type DriverErrorCode =
  | "invalid_sandbox_id"
  | "invalid_intent"
  | "invalid_driver_config"
  | "identity_refused"
  | "image_invalid"
  | "image_refused"
  | "image_unavailable"
  | "volume_invalid"
  | "volume_refused"
  | "volume_unavailable"
  | "sandbox_not_found"
  | "generation_conflict"
  | "capture_unavailable"
  | "launch_failed"
  | "stop_failed"
  | "delete_failed"
  | "state_unreadable";

/** The one error of drivers. `retryable` says whether the same call may succeed later without a change. */
export class DriverError extends RuntimeError {
  readonly retryable: boolean;

  constructor(
    code: DriverErrorCode,
    message: string,
    options: { readonly next?: string; readonly cause?: unknown; readonly retryable?: boolean } = {},
  ) {
    super(code, message, options);
    this.name = "DriverError";
    this.retryable = options.retryable ?? false;
  }
}
