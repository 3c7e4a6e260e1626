import type { ColumnType, Insertable } from "kysely";

/**
 * Tables as kysely sees them. Times and versions are integers (milliseconds; 64 bits), JSON is text, messages are
 * protobuf bytes: types that SQLite and Postgres share.
 */
export interface Tables {
  workspaces: WorkspaceTable;
  sandboxes: SandboxTable;
  sandbox_providers: SandboxProviderTable;
  object_labels: LabelTable;
  policy_revisions: PolicyTable;
  settings: SettingTable;
  setting_scopes: SettingScopeTable;
  providers: ProviderTable;
  provider_credentials: CredentialTable;
  secrets: SecretTable;
  admissions: AdmissionTable;
  hosts: HostTable;
  intents: IntentTable;
  id_blocks: IdBlockTable;
  config_operations: ConfigOperationTable;
}

/** Integers: SQLite gives numbers below 2^53, Postgres drivers may give strings or bigints; repositories convert. */
export type Int = ColumnType<number | bigint, number | bigint, number | bigint>;
type NullableInt = ColumnType<number | bigint | null, number | bigint | null, number | bigint | null>;

interface ObjectTable {
  id: string;
  name: string;
  labels: string;
  annotations: string;
  created_at: Int;
  deletion_at: NullableInt;
  resource_version: Int;
}

export interface WorkspaceTable extends ObjectTable {
  phase: string;
}

export interface SandboxTable extends ObjectTable {
  workspace: string;
  phase: Int;
  spec: Uint8Array;
  status: Uint8Array;
  host_key_fingerprint: string;
  template_name: string | null;
  template_version: string | null;
  generation: Int;
  driver: string;
  driver_record: string;
  runtime_record: string;
}

/** Which sandbox names which provider: kept with the spec, to find those that a rotation concerns. */
export interface SandboxProviderTable {
  sandbox_id: string;
  workspace: string;
  provider: string;
}

/** Labels once more, for selectors; the object's row has them whole. */
export interface LabelTable {
  object_type: "sandbox" | "provider" | "workspace";
  object_id: string;
  key: string;
  value: string;
}

export interface PolicyTable {
  scope: string;
  version: Int;
  hash: string;
  policy: Uint8Array;
  status: string;
  load_error: string;
  created_at: Int;
  loaded_at: NullableInt;
  provenance: string;
}

export interface SettingTable {
  scope: string;
  key: string;
  /** `bool`, `string` or `int`. */
  type: string;
  value: string;
}

export interface SettingScopeTable {
  scope: string;
  revision: Int;
}

export interface ProviderTable extends ObjectTable {
  workspace: string;
  type: string;
  config: string;
  profile_workspace: string;
}

export interface CredentialTable {
  provider_id: string;
  key: string;
  version: Int;
  expires_at: NullableInt;
  sealed: Uint8Array;
}

export interface SecretTable {
  scope: string;
  name: string;
  version: Int;
  sealed: Uint8Array;
}

export interface AdmissionTable {
  caller: string;
  method: string;
  workspace: string;
  request_id: string;
  fingerprint: string;
  state: string;
  receipt: Uint8Array | null;
  admitted_at: Int;
  completed_at: NullableInt;
}

export interface HostTable {
  id: string;
  workspace: string;
  sandbox_id: string | null;
  secret_hash: Uint8Array;
  state: string;
  pid: Int;
  start_time: string;
  boot_id: string;
  build: string;
  created_at: Int;
  ended_at: NullableInt;
}

export interface IntentTable {
  subject: string;
  kind: string;
  operation_id: string;
  step: string;
  payload: string;
  created_at: Int;
  updated_at: Int;
}

export interface IdBlockTable {
  block: Int;
  sandbox_id: string;
}

export interface ConfigOperationTable {
  operation_id: string;
  sandbox_id: string;
  /** Order within the sandbox, from 1. */
  position: Int;
  /** `config` or `environment`. */
  component: string;
  /** An encoded openshell.v1.ConfigSnapshotRevision. */
  target: Uint8Array;
  /** An encoded openshell.v1.ProviderMutationReceipt. */
  receipt: Uint8Array | null;
  state: string;
  outcome: Int;
  error: string;
  created_at: Int;
  updated_at: Int;
  completed_at: NullableInt;
}

export type NewRow<Table> = Insertable<Table>;
