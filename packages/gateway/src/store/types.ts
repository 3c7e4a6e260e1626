import type {
  ConfigSnapshotRevision,
  ProviderMutationReceipt,
  SandboxPolicy,
  SandboxSpec,
  SandboxStatus,
} from "@openshell/api";
import type { Command, CommandResults } from "./command.ts";

/**
 * The store as the rest of the gateway sees it: repositories read, commands write.
 *
 *     const [version] = await store.write(store.sandboxes.update(id, seen, { status }), store.intents.finish(id, operation));
 *
 * Reads see every write whose promise has resolved. A write is durable (fsync) when its promise resolves, and is all or
 * nothing whatever happens in between. Errors are {@link StoreError}s.
 */
export interface Store extends AsyncDisposable {
  readonly workspaces: WorkspaceRepository;
  readonly sandboxes: SandboxRepository;
  readonly policies: PolicyRepository;
  readonly settings: SettingsRepository;
  readonly providers: ProviderRepository;
  readonly secrets: SecretRepository;
  readonly admissions: AdmissionRepository;
  readonly hosts: HostRepository;
  readonly intents: IntentRepository;
  readonly idBlocks: IdBlockRepository;
  readonly operations: OperationRepository;

  /** Applies the commands in one transaction. Rejects with the first failed expectation; nothing is stored then. */
  write<const Commands extends readonly Command<unknown>[]>(...commands: Commands): Promise<CommandResults<Commands>>;
  /**
   * Reads a sandbox, lets `mutate` describe the change, and writes it if nobody was faster; repeats up to
   * {@link MAX_MODIFY_ATTEMPTS} times. `mutate` returns undefined to leave everything as it is, and must be free of
   * effects: it runs again on the newer record. Resolves with the record as it is then stored.
   *
   * @throws StoreError store_not_found, store_conflict.
   */
  modifySandbox(id: string, mutate: (record: SandboxRecord) => SandboxChange | undefined): Promise<SandboxRecord>;
  /**
   * Differs from its last value when a policy, setting, provider or credential was committed in between: at once for the
   * gateway's own writes, within 50 ms for those of another process. Reads of these between two equal values show one state.
   * Undefined while such a commit is under way.
   *
   * @throws StoreError store_closed
   */
  contentsVersion(): number | undefined;
  /** Milliseconds that one trivial read took. Rejects when the database cannot be read or the writer has failed. */
  check(): Promise<number>;
  /** Rejects once when the writer is lost; the process must end then. Never resolves. */
  readonly failed: Promise<never>;
}

/** Attempts of `modifySandbox`: more would mean that somebody writes in a loop. */
export const MAX_MODIFY_ATTEMPTS = 10;

export interface SandboxChange {
  readonly patch: SandboxPatch;
  /** Further commands of the same transaction. */
  readonly also?: readonly Command<unknown>[];
}

/** What every named object has. Times are milliseconds since the epoch. */
export interface ObjectFields {
  /** UUID. */
  readonly id: string;
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly annotations: Readonly<Record<string, string>>;
  readonly createdAt: number;
  readonly deletionAt: number | undefined;
  /** Grows by one with each change of the object; 1 after creation. */
  readonly resourceVersion: bigint;
}

/** Compare-and-swap: the version that the caller saw, or `any`. */
export type ExpectedVersion = bigint | "any";

/** Position after the last row of a page: the sort key of every object list. */
export interface ListCursor {
  readonly createdAt: number;
  readonly name: string;
  readonly workspace: string;
  readonly id: string;
}

export interface ListOptions {
  /** Undefined: all workspaces. */
  readonly workspace?: string | undefined;
  /** Every pair must be present. */
  readonly labels?: Readonly<Record<string, string>>;
  readonly after?: ListCursor | undefined;
  /** Rows at most. */
  readonly limit: number;
}

// ---- workspaces ------------------------------------------------------------------------------------------------------

export type WorkspacePhaseName = "active" | "terminating";

export interface WorkspaceRecord extends ObjectFields {
  readonly phase: WorkspacePhaseName;
}

export interface WorkspaceRepository {
  /** By name. */
  get(name: string): Promise<WorkspaceRecord | undefined>;
  list(options: Omit<ListOptions, "workspace">): Promise<readonly WorkspaceRecord[]>;
  create(record: Omit<WorkspaceRecord, "resourceVersion" | "deletionAt">): Command<void>;
  setPhase(name: string, expected: ExpectedVersion, phase: WorkspacePhaseName, deletionAt?: number): Command<bigint>;
  remove(name: string): Command<void>;
}

// ---- sandboxes -------------------------------------------------------------------------------------------------------

export interface SandboxRecord extends ObjectFields {
  readonly workspace: string;
  readonly spec: SandboxSpec;
  readonly status: SandboxStatus;
  readonly hostKeyFingerprint: string;
  readonly workloadTemplate: { readonly name: string; readonly resourceVersion: string } | undefined;
  /** Grows with each start; a boundary of another generation is never touched. 0 before the first start. */
  readonly generation: bigint;
  /** Name of the compute driver. */
  readonly driver: string;
  /** What the driver needs to find its resources again; JSON, its meaning belongs to the driver. No secrets. */
  readonly driverRecord: JsonValue;
  /** What the life cycle needs over a restart (host, epoch, …); JSON, its meaning belongs to the gateway's life cycle code. No secrets. */
  readonly runtimeRecord: JsonValue;
}

export type JsonValue =
  | null
  | boolean
  | number
  | string
  | readonly JsonValue[]
  | { readonly [key: string]: JsonValue | undefined };

export type NewSandbox = Omit<SandboxRecord, "resourceVersion" | "deletionAt">;

/** Fields left out stay as they are. */
export interface SandboxPatch {
  readonly labels?: Readonly<Record<string, string>>;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly deletionAt?: number;
  readonly spec?: SandboxSpec;
  readonly status?: SandboxStatus;
  readonly hostKeyFingerprint?: string;
  readonly generation?: bigint;
  readonly driver?: string;
  readonly driverRecord?: JsonValue;
  readonly runtimeRecord?: JsonValue;
}

export interface SandboxRepository {
  byId(id: string): Promise<SandboxRecord | undefined>;
  byName(workspace: string, name: string): Promise<SandboxRecord | undefined>;
  /** Oldest first, then by name, workspace, id. */
  list(options: ListOptions & { readonly phases?: readonly number[] }): Promise<readonly SandboxRecord[]>;
  /** Sandboxes of the workspace whose spec names the provider. */
  usingProvider(workspace: string, provider: string): Promise<readonly SandboxRecord[]>;
  /** Number of sandboxes by phase number; phases without one are absent. */
  countByPhase(): Promise<ReadonlyMap<number, number>>;
  /** @throws (at write) store_already_exists */
  create(record: NewSandbox): Command<void>;
  /** Result: the new resource version. @throws (at write) store_conflict */
  update(id: string, expected: ExpectedVersion, patch: SandboxPatch): Command<bigint>;
  /** Removes the row and what belongs to it alone: policies, settings, secrets, intent. Not its id block. */
  remove(id: string, expected: ExpectedVersion): Command<void>;
}

// ---- policies --------------------------------------------------------------------------------------------------------

/** Scope of the policy that overrides all sandboxes. */
export const GLOBAL_SCOPE = "__global__";

export type PolicyStatusName = "pending" | "loaded" | "failed" | "superseded";

export interface PolicyRevision {
  /** A sandbox id or {@link GLOBAL_SCOPE}. */
  readonly scope: string;
  /** From 1. */
  readonly version: number;
  readonly hash: string;
  readonly policy: SandboxPolicy;
  readonly status: PolicyStatusName;
  readonly loadError: string;
  readonly createdAt: number;
  readonly loadedAt: number | undefined;
  readonly provenance: Readonly<Record<string, string>>;
}

export interface PolicyRepository {
  latest(scope: string): Promise<PolicyRevision | undefined>;
  get(scope: string, version: number): Promise<PolicyRevision | undefined>;
  /** Newest first, versions below `before` when given. */
  list(
    scope: string,
    options: { readonly before?: number | undefined; readonly limit: number },
  ): Promise<readonly PolicyRevision[]>;
  /**
   * Stores the next revision and marks older pending and loaded ones superseded. Result: its version.
   * `expectedLatest`: the version that the caller built on (0: none).
   */
  append(
    revision: Omit<PolicyRevision, "version" | "loadError" | "loadedAt" | "status"> & {
      readonly status: "pending" | "loaded";
      readonly expectedLatest?: number;
    },
  ): Command<number>;
  /** Outcome of a revision. `loaded` supersedes older ones. Unknown revisions are ignored. */
  setStatus(scope: string, version: number, status: "loaded" | "failed", at: number, error?: string): Command<void>;
}

// ---- settings --------------------------------------------------------------------------------------------------------

export type SettingValue = boolean | string | bigint;

export interface Settings {
  /** Grows by one with each change of the scope; 0 before the first. */
  readonly revision: bigint;
  readonly values: ReadonlyMap<string, SettingValue>;
}

export interface SettingsRepository {
  /** `scope`: a sandbox id or {@link GLOBAL_SCOPE}. */
  get(scope: string): Promise<Settings>;
  /** Result: the scope's new revision. */
  set(scope: string, key: string, value: SettingValue): Command<bigint>;
  remove(scope: string, key: string): Command<bigint>;
}

// ---- providers -------------------------------------------------------------------------------------------------------

export interface ProviderRecord extends ObjectFields {
  readonly workspace: string;
  readonly type: string;
  readonly config: Readonly<Record<string, string>>;
  readonly profileWorkspace: string;
  /** What is known of the stored credentials without opening them, by key. */
  readonly credentials: ReadonlyMap<string, CredentialFacts>;
}

export interface CredentialFacts {
  /** The provider's resource version that stored the value. */
  readonly version: bigint;
  readonly expiresAt: number | undefined;
}

/** An encrypted credential, made by `sealCredential` (store/credentials.ts). */
export interface SealedCredential extends CredentialFacts {
  readonly key: string;
  readonly sealed: Uint8Array;
}

export interface ProviderPatch {
  readonly labels?: Readonly<Record<string, string>>;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly config?: Readonly<Record<string, string>>;
  readonly profileWorkspace?: string;
  readonly type?: string;
}

export interface ProviderRepository {
  byId(id: string): Promise<ProviderRecord | undefined>;
  byName(workspace: string, name: string): Promise<ProviderRecord | undefined>;
  list(options: ListOptions): Promise<readonly ProviderRecord[]>;
  credentials(providerId: string): Promise<readonly SealedCredential[]>;
  /** The credentials' version must be 1n. */
  create(
    record: Omit<ProviderRecord, "resourceVersion" | "deletionAt" | "credentials">,
    credentials: readonly SealedCredential[],
  ): Command<void>;
  /**
   * Result: the new resource version, which is `expected + 1n`; `set` must be sealed for it. `expirations` changes the
   * expiry of stored credentials (undefined: none) without their value.
   */
  update(
    id: string,
    expected: bigint,
    patch: ProviderPatch,
    credentials?: {
      readonly set?: readonly SealedCredential[];
      readonly remove?: readonly string[];
      readonly expirations?: ReadonlyMap<string, number | undefined>;
    },
  ): Command<bigint>;
  /** Only while no sandbox names it. @throws (at write) store_conflict */
  remove(id: string, expected: ExpectedVersion): Command<void>;
  /** Stores nothing: what is written with it was decided on these records. @throws (at write) store_conflict unless each is as it was read. */
  unchanged(records: readonly Pick<ProviderRecord, "id" | "resourceVersion">[]): Command<void>;
  /**
   * Stores nothing, and comes after the change: every sandbox that names the provider has one owner of each variable.
   * @throws (at write) store_conflict
   */
  distinctKeys(workspace: string, provider: string): Command<void>;
}

// ---- secrets ---------------------------------------------------------------------------------------------------------

/** Encrypted values that are no provider's: attach nonces, inspection CA keys. `scope` is a sandbox id or `workspace:<name>`. */
export interface SecretRepository {
  /** The sealed value; open it with the vault under the same scope, name and version. */
  get(scope: string, name: string): Promise<{ readonly version: bigint; readonly sealed: Uint8Array } | undefined>;
  /** `version` must grow. */
  put(scope: string, name: string, version: bigint, sealed: Uint8Array): Command<void>;
  remove(scope: string, name: string): Command<void>;
}

// ---- admissions (request ids) ----------------------------------------------------------------------------------------

export interface AdmissionKey {
  /** Identity provider, issuer and subject of the caller, joined by the caller of the store. */
  readonly caller: string;
  readonly method: string;
  /** Requested workspace, or the name for workspace methods. */
  readonly workspace: string;
  /** Canonical request id. */
  readonly requestId: string;
}

export interface Admission extends AdmissionKey {
  readonly fingerprint: string;
  /** `admitted` stays so for ever when the outcome was lost. */
  readonly state: "admitted" | "succeeded";
  /** What a replay needs; its meaning belongs to the method. Set when succeeded. */
  readonly receipt: Uint8Array | undefined;
  readonly admittedAt: number;
  readonly completedAt: number | undefined;
}

export interface AdmissionRepository {
  get(key: AdmissionKey): Promise<Admission | undefined>;
  /**
   * Takes the id. Successes of this caller that completed before `expiredBefore` are purged first, so an expired id can be
   * taken again. @throws (at write) store_already_exists, store_limit_reached (more than `limit` of this caller)
   */
  admit(key: AdmissionKey, fingerprint: string, at: number, expiredBefore: number, limit: number): Command<void>;
  /** Records success. @throws (at write) store_conflict when it was not admitted (any more) */
  succeed(key: AdmissionKey, receipt: Uint8Array, at: number): Command<void>;
  /** Forgets an admission whose work certainly did not begin. */
  withdraw(key: AdmissionKey): Command<void>;
}

// ---- hosts -----------------------------------------------------------------------------------------------------------

export type HostState = "starting" | "live" | "ended" | "died";

export interface HostRecord {
  readonly id: string;
  readonly workspace: string;
  /** Set for a host of one sandbox. */
  readonly sandboxId: string | undefined;
  /** SHA-256 of the secret. */
  readonly secretHash: Uint8Array;
  readonly state: HostState;
  /** 0 until known. */
  readonly pid: number;
  /** Start time of the process in clock ticks since boot (field 22 of /proc/PID/stat), "" until known. */
  readonly startTime: string;
  readonly bootId: string;
  readonly build: string;
  readonly createdAt: number;
  readonly endedAt: number | undefined;
}

export interface HostRepository {
  get(id: string): Promise<HostRecord | undefined>;
  /** Starting and live ones. */
  current(): Promise<readonly HostRecord[]>;
  /** Deaths of the workspace's hosts at or after `since`. */
  deathsSince(workspace: string, since: number): Promise<number>;
  create(record: Omit<HostRecord, "state" | "endedAt">): Command<void>;
  update(
    id: string,
    patch: {
      readonly state?: HostState;
      readonly pid?: number;
      readonly startTime?: string;
      readonly build?: string;
      readonly endedAt?: number;
    },
  ): Command<void>;
  /** Forgets hosts that ended before. */
  purge(endedBefore: number): Command<void>;
}

// ---- intents ---------------------------------------------------------------------------------------------------------

/** A life-cycle operation that must be finished, or taken up again after a crash. One a subject: a later one replaces it. */
export interface Intent {
  /** Sandbox id. */
  readonly subject: string;
  /** `create`, `start`, `stop`, `delete`, … */
  readonly kind: string;
  /** UUID; guards against late writers of a replaced operation. */
  readonly operationId: string;
  /** How far it got; its values belong to the operation. */
  readonly step: string;
  readonly payload: JsonValue;
  readonly createdAt: number;
  readonly updatedAt: number;
}

export interface IntentRepository {
  get(subject: string): Promise<Intent | undefined>;
  all(): Promise<readonly Intent[]>;
  put(intent: Omit<Intent, "createdAt" | "updatedAt">, at: number): Command<void>;
  /** @throws (at write) store_conflict when another operation took over */
  advance(subject: string, operationId: string, step: string, at: number, payload?: JsonValue): Command<void>;
  /** @throws (at write) store_conflict when another operation took over */
  finish(subject: string, operationId: string): Command<void>;
}

// ---- id blocks -------------------------------------------------------------------------------------------------------

/** 65,536 host ids of one sandbox. */
export interface IdBlock {
  readonly index: number;
  readonly sandboxId: string;
}

export interface IdBlockRepository {
  of(sandboxId: string): Promise<IdBlock | undefined>;
  all(): Promise<readonly IdBlock[]>;
  /** The lowest free block, or the one that the sandbox has. Result: its index. @throws (at write) store_limit_reached */
  allot(sandboxId: string): Command<number>;
  /** Only when no file owned by its ids exists any more. */
  release(sandboxId: string): Command<void>;
}

// ---- operations of configuration delivery --------------------------------------------------------------------------

/** States of a change on its way into a sandbox. All but `pending` are final. */
export type OperationState = "pending" | "applied" | "inactive" | "failed" | "superseded" | "cancelled";

/** A change of configuration and what became of it. Written in the transaction of the change itself. */
export interface OperationRecord {
  /** UUID. */
  readonly operationId: string;
  readonly sandboxId: string;
  readonly component: "config" | "environment";
  /** What is to be in force. */
  readonly target: ConfigSnapshotRevision;
  /** What the caller of a provider's change was given; its `receipt_id` is the operation's id. */
  readonly receipt: ProviderMutationReceipt | undefined;
  readonly state: OperationState;
  /** ConfigApplyOutcome of the last attempt; 0 before one was answered. */
  readonly outcome: number;
  /** Why the last attempt did not succeed: bounded, without secrets. Empty after success. */
  readonly error: string;
  readonly createdAt: number;
  readonly updatedAt: number;
  /** When it became final. */
  readonly completedAt: number | undefined;
  /** Order within the sandbox, from 1. */
  readonly position: number;
}

export type NewOperation = Pick<OperationRecord, "operationId" | "sandboxId" | "component" | "target" | "state"> & {
  readonly receipt?: ProviderMutationReceipt | undefined;
  readonly error?: string;
};

/** What an attempt came to. */
export interface OperationResult {
  readonly outcome: number;
  readonly error: string;
}

export interface OperationRepository {
  get(operationId: string): Promise<OperationRecord | undefined>;
  /** Oldest first; at most {@link MAX_OPERATIONS} exist. */
  pending(sandboxId: string): Promise<readonly OperationRecord[]>;
  /** Newest first. */
  list(sandboxId: string, options: { readonly limit: number }): Promise<readonly OperationRecord[]>;
  /**
   * Adds operations, in order. Of each sandbox the newest {@link KEPT_OPERATIONS} are kept, pending ones up to
   * {@link MAX_OPERATIONS}.
   */
  record(operations: readonly NewOperation[], at: number): Command<void>;
  /** Makes pending operations final; those that are final already stay as they are. */
  finish(
    operationIds: readonly string[],
    state: Exclude<OperationState, "pending">,
    result: OperationResult,
    at: number,
  ): Command<void>;
  /** What the last attempt of pending operations came to. */
  note(operationIds: readonly string[], result: OperationResult, at: number): Command<void>;
  /** Every pending operation of the sandbox becomes final: it is being deleted, or a newer state is wanted. */
  finishAll(
    sandboxId: string,
    state: "cancelled" | "superseded",
    at: number,
    component?: OperationRecord["component"],
  ): Command<void>;
}

/** Operations kept of one sandbox once they are final. */
export const KEPT_OPERATIONS = 200;
/** Operations of one sandbox in all: a pending one beyond them is forgotten as well. */
export const MAX_OPERATIONS = 1_000;
