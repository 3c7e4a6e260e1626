import { RuntimeError } from "@openshell/base";
import type { CompiledQuery, Expression, Kysely } from "kysely";
import { initial } from "./migrations/0001-initial.ts";
import { configOperations } from "./migrations/0002-config-operations.ts";
import { currentPolicies } from "./migrations/0003-current-policies.ts";

/** One numbered step of the schema. Steps that a release has carried are never changed, only followed by others. */
export interface Migration {
  readonly version: number;
  readonly name: string;
  /** `bytes`: the column type of byte strings in this database. */
  readonly statements: (db: Kysely<unknown>, bytes: Expression<unknown>) => readonly CompiledQuery[];
}

/** In order; versions run from 1 without gaps. */
export const migrations: readonly Migration[] = [initial, configOperations, currentPolicies];

/** The version that this build needs. */
export const SCHEMA_VERSION = migrations.length;

/** What a database must do for migrations; everything of one step happens in one transaction. */
export interface MigrationTarget {
  readonly compiler: Kysely<unknown>;
  readonly bytes: Expression<unknown>;
  /** 0 for an empty database. */
  currentVersion(): number;
  apply(version: number, name: string, statements: readonly CompiledQuery[]): void;
}

/**
 * Brings the database to {@link SCHEMA_VERSION}. Resumes after a crash: a step is either recorded and done or neither.
 *
 * @throws RuntimeError store_too_new when a newer build wrote the database: it may mean things that this one would break.
 */
export function migrate(path: string, target: MigrationTarget): void {
  const current = target.currentVersion();
  refuseNewer(path, current);
  for (const migration of migrations.slice(current)) {
    target.apply(migration.version, migration.name, migration.statements(target.compiler, target.bytes));
  }
}

/** @throws RuntimeError store_too_new */
export function refuseNewer(path: string, version: number): void {
  if (version <= SCHEMA_VERSION) return;
  throw new RuntimeError(
    "store_too_new",
    `the database ${path} has schema version ${version}; this build knows ${SCHEMA_VERSION} at most`,
    { next: "Use the newer OpenShell that wrote it, or another gateway name" },
  );
}
