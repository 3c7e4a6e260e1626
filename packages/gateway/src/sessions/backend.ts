import type { SandboxPolicy } from "@openshell/api";
import type {
  ComponentResult,
  Failure,
  IsolationReport,
  LogBatch,
  MainProcess,
  MainProcessExit,
  ProviderEnvironment,
  ReadinessObservation,
  RuntimeReady,
  SandboxConfig,
  SupervisorHello,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";

/** Who a session speaks for. */
export interface SessionIdentity {
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly sessionId: string;
  readonly instanceId: string;
}

/** The policy in the image is unusable and nobody gave another one: the start waits for it until the deadline. */
export interface UnusableCandidate {
  readonly source: "invalid";
  readonly reason: Failure;
}

/** The policy proposed for a first start. */
export interface StartupCandidate {
  readonly policy: SandboxPolicy;
  readonly hash: string;
  readonly version: number;
  readonly source: "gateway" | "image" | "default";
}

/** Both components, built from one read of the store, and the main process to start. */
export interface Bootstrap {
  readonly config: SandboxConfig;
  readonly environment: ProviderEnvironment;
  /** Only wanted for a first start. */
  readonly mainProcess: MainProcess;
  /** What was read: changes elsewhere do not concern it. */
  readonly workspace: string;
  readonly providers: readonly string[];
  /** Revision of the sandbox's own settings. */
  readonly settingsRevision: bigint;
}

/** What the supervisor answered to a delivered component. */
export interface AppliedComponents {
  readonly config: ComponentResult;
  readonly environment: ComponentResult;
}

/**
 * The rest of the gateway, as a supervisor session sees it. Every method that stores resolves when the fact is durable.
 * A method may throw SessionRefused: the session ends and the supervisor is told.
 */
export interface SessionBackend {
  /** Is this sandbox, in this generation, meant to run? Refuses otherwise. */
  admit(hello: SupervisorHello): Promise<void>;
  candidate(identity: SessionIdentity, hello: SupervisorHello): Promise<StartupCandidate | UnusableCandidate>;
  /** Stores what the supervisor prepared; `prepared` undefined means the candidate as it is. */
  adoptPolicy(
    identity: SessionIdentity,
    candidate: StartupCandidate,
    prepared: SandboxPolicy | undefined,
  ): Promise<void>;
  /** `first`: nothing of it runs yet. */
  bootstrap(identity: SessionIdentity, first: boolean): Promise<Bootstrap>;
  /** The configuration is in force. Resolves when that is durable: only then may the workload start. */
  configurationApplied(identity: SessionIdentity, bootstrap: Bootstrap, results: AppliedComponents): Promise<void>;
  /** A running sandbox refused what it was given on a reconnect. Resolves when that is durable. */
  configurationRefused(identity: SessionIdentity, bootstrap: Bootstrap, results: AppliedComponents): Promise<void>;
  /**
   * The start cannot go on with this configuration; it waits for a change. Resolves with the wall-clock time until which
   * it may: reconnects and further refusals of the same configuration do not move it.
   */
  configurationRejected(identity: SessionIdentity, reason: Failure): Promise<number>;
  /** Nobody corrected the configuration in time, or the start-up exchange failed for good: the start ends. */
  startFailed(identity: SessionIdentity, reason: Failure): Promise<void>;
  runtimeReady(identity: SessionIdentity, ready: RuntimeReady): Promise<void>;
  mainProcessExited(identity: SessionIdentity, exit: MainProcessExit): Promise<void>;
  /** `report`: what was in force, when a start was refused. */
  sandboxEnded(identity: SessionIdentity, reason: Failure | undefined, report?: IsolationReport): Promise<void>;
  /** What the supervisor shows that it has in force. */
  readiness(identity: SessionIdentity, observation: ReadinessObservation): void;
  logs(identity: SessionIdentity, batch: LogBatch): void;
  /** The current session of a sandbox ended without a successor. */
  disconnected(identity: SessionIdentity): void;
}
