import type { Readable, Writable } from "node:stream";

/**
 * How a supervisor drives a sandbox, whatever runs it. Two implementations: `local/` (same kernel, descriptors over a
 * Unix socket) and `remote/` (another kernel, TLS).
 *
 * Order: attach → confirm → start → run. Nothing can be spawned before `confirm`; a boundary that was confirmed by an
 * earlier host process says so and is re-attached instead (`state`).
 */
export interface Boundary extends AsyncDisposable {
  readonly sandboxId: string;
  readonly generation: bigint;
  /** What init had done when this host attached. */
  readonly state: BoundaryState;
  readonly capture: CaptureSockets;
  /** What init and the launcher could set up; confirm adds the layers that it applies. */
  readonly isolation: readonly IsolationLayer[];

  /** Hands over the restrictions; starts the zygote from which every agent process is forked. Once a generation. */
  confirm(restrictions: Restrictions): Promise<readonly IsolationLayer[]>;
  /** Starts the main process. Once a generation; its stdio outlives this host. */
  startMain(spec: SpawnSpec): Promise<SandboxProcess>;
  /** The main process of a re-attached boundary, if it was started; its status stays available until acknowledged. */
  readonly main: SandboxProcess | undefined;
  /** Starts one more process. Ends with this host. */
  spawn(spec: SpawnSpec): Promise<SandboxProcess>;
  /**
   * Tries each canary (docs/architecture/isolation.md) as the agent, in a process under the agent's restrictions that
   * executes no program. One answer a canary, in order: the negative errno, 0 for done, or a value. After `confirm`; at
   * most {@link MAX_CANARIES}. Rejects with `canaries_unanswered` when the process did not say all.
   */
  probe(canaries: readonly string[]): Promise<readonly bigint[]>;
  /** Who owns the agent's end of a connection. Empty when nobody can be found: identity unavailable, so deny. */
  identify(socket: SocketPair): Promise<readonly SocketOwner[]>;
  /** Stores ≤ 256 KiB for a successor (the synthetic-address table). Latest wins. */
  saveState(blob: Uint8Array): Promise<void>;
  /** What the predecessor saved; empty when there is none. */
  loadState(): Promise<Uint8Array>;
  /** Lets the workload of a re-attached boundary run again, which stays frozen from the loss of its host until this host serves its sockets. Nothing happens otherwise. */
  resume(): Promise<void>;
  /** Until `thaw`, also across hosts. */
  freeze(): Promise<void>;
  thaw(): Promise<void>;
  /** SIGTERM to the main process, SIGKILL to everything after `graceMs`; resolves when init is gone. */
  terminate(graceMs: number): Promise<void>;
  /** Resolves once, when the boundary is over for whatever reason. */
  readonly ended: Promise<BoundaryEnd>;
}

/** Canaries of one probe (native/init/probe.c). */
export const MAX_CANARIES = 64;

export type BoundaryState = "fresh" | "confirmed" | "main_started" | "main_exited";

export interface BoundaryEnd {
  /** `detached`: this host let go, the sandbox lives on. `terminated`: init is gone. */
  readonly kind: "detached" | "terminated";
  readonly reason: string;
}

export type CaptureMode = "sk_lookup" | "nft" | "listener_per_port";

/** Descriptors created inside the sandbox's network namespace, checked (domain, type, listening state, namespace cookie). Owned by the receiver. */
export interface CaptureSockets {
  readonly mode: CaptureMode;
  /** Listening TCP sockets: port 3128 for both families, or one for each captured port in `listener_per_port`. */
  readonly tcp: readonly CaptureListener[];
  /** Bound UDP 127.0.0.1:53. */
  readonly dnsUdp: number;
  /** Listening TCP 127.0.0.1:53. */
  readonly dnsTcp: number;
}

export interface CaptureListener {
  readonly fd: number;
  readonly family: 4 | 6;
  readonly port: number;
}

export interface IsolationLayer {
  readonly name: string;
  readonly enforced: boolean;
  readonly detail: string;
}

/** What binds every agent process; compiled here, applied by init as told. */
export interface Restrictions {
  readonly landlock: LandlockRuleset | undefined;
  /** Classic BPF program, 8 bytes an instruction, little endian. */
  readonly seccomp: Uint8Array;
  readonly rlimits: readonly Rlimit[];
  /** Umask of agent processes. */
  readonly umask: number;
}

export interface LandlockRuleset {
  readonly handledFs: bigint;
  readonly handledNet: bigint;
  readonly scoped: bigint;
  /**
   * Paths inside the sandbox's root; a path that does not exist is skipped unless `required`. For one that is no folder
   * init keeps the rights that files have (execute, write, read, truncate, ioctl: 0xC007): the kernel refuses the rest.
   */
  readonly rules: readonly { readonly path: string; readonly access: bigint; readonly required: boolean }[];
}

export interface Rlimit {
  /** RLIMIT_* number of the running architecture. */
  readonly resource: number;
  readonly soft: bigint;
  readonly hard: bigint;
}

export interface SpawnSpec {
  /** argv; argv[0] is looked up in the PATH of `env` inside the sandbox. */
  readonly argv: readonly string[];
  /** Complete environment. */
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  readonly stdio:
    | { readonly kind: "pipes" }
    | { readonly kind: "pty"; readonly rows: number; readonly columns: number };
}

/** A process of the sandbox. Streams are backed by descriptors that init handed out: bytes flow kernel → host. */
export interface SandboxProcess {
  /** Pid inside the sandbox. */
  readonly pid: number;
  /** Write end of stdin, or the PTY master (then `stdout` is the same stream and `stderr` undefined). */
  readonly stdin: Writable;
  readonly stdout: Readable;
  readonly stderr: Readable | undefined;
  /** Resolves when the kernel has reported the status; output may still be in the pipes. Rejects only if the boundary ends first. */
  readonly exit: Promise<ExitStatus>;
  /** To the process; `group` reaches its process group, on a PTY the foreground group. */
  signal(number: number, target?: "process" | "group"): Promise<void>;
  resize(rows: number, columns: number): Promise<void>;
  /** The agent reads end of file next. */
  closeStdin(): Promise<void>;
  /** Main process only: init may forget the status. */
  acknowledgeExit(): Promise<void>;
}

/** As wait(2) gave it; never invented. */
export type ExitStatus =
  | { readonly kind: "exited"; readonly code: number }
  | { readonly kind: "signaled"; readonly signal: number };

export interface SocketPair {
  readonly family: 4 | 6;
  /** The agent's own address and port. */
  readonly local: { readonly address: string; readonly port: number };
  /** The destination the agent asked for. */
  readonly remote: { readonly address: string; readonly port: number };
}

/** One process that holds the socket; a socket may have several, and every one must be allowed. */
export interface SocketOwner {
  readonly pid: number;
  /** Path inside the sandbox; ` (deleted)` already resolved. */
  readonly exe: string;
  /** Open descriptor of the executable for hashing; the receiver closes it. Undefined when it could not be opened: identity unavailable. */
  readonly exeFd: number | undefined;
  readonly exeKey: ExecutableKey | undefined;
  /** Nearest first, up to init exclusive, ≤ 64. */
  readonly ancestors: readonly {
    readonly pid: number;
    readonly exe: string;
  }[];
}

/** fstat of the executable, nanosecond times (docs/architecture/egress.md). */
export interface ExecutableKey {
  readonly dev: bigint;
  readonly ino: bigint;
  readonly size: bigint;
  readonly mtimeNs: bigint;
  readonly ctimeNs: bigint;
}
