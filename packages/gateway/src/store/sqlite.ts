import { chmodSync, closeSync, constants, openSync } from "node:fs";
import { DatabaseSync, type StatementSync } from "node:sqlite";
import { RuntimeError } from "@openshell/base";
import { Kysely, type SqliteDatabase, SqliteDialect, type SqliteStatement, sql } from "kysely";
import { StoreError } from "./errors.ts";
import { type MigrationTarget, migrate } from "./migrate.ts";
import type { Tables } from "./schema.ts";

/** A reader waits this long for the rare exclusive moments of WAL (recovery after a crash, the last close). Milliseconds. */
const BUSY_TIMEOUT_MS = 5_000;
/** Prepared statements kept for each connection; the gateway has fewer different ones. */
const MAX_PREPARED = 256;

/**
 * Creates the database file if needed, private to this uid, and brings its schema up to date. The caller holds the
 * gateway's lock: nobody else has the file open.
 *
 * @throws RuntimeError store_unusable, store_too_new
 */
export function prepareDatabase(path: string): void {
  try {
    // Created here, so that it never exists with a wider mode; SQLite gives -wal and -shm the mode of the main file.
    closeSync(openSync(path, constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW, 0o600));
    chmodSync(path, 0o600);
    const database = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS });
    try {
      database.exec("pragma journal_mode = wal; pragma synchronous = full");
      migrate(migrationTarget(database));
    } finally {
      database.close();
    }
  } catch (cause) {
    if (cause instanceof RuntimeError) throw cause;
    throw new RuntimeError("store_unusable", `cannot open the database ${path}: ${(cause as Error).message}`, {
      next: "Check the free space and the rights of that file, or move it away to start with an empty one",
      cause,
    });
  }
}

/** A connection that can only read. */
export interface Reader extends Disposable {
  /** Rows show every transaction committed before the query began. */
  readonly db: Kysely<Tables>;
  /**
   * A number that differs from the last one when anything was committed in between, by whatever process.
   * https://www.sqlite.org/pragma.html#pragma_data_version
   */
  readonly version: () => number;
  /** @throws StoreError store_closed */
  readonly assertOpen: () => void;
  /** Reads one row of a table. Throws when that cannot be done. */
  readonly probe: () => void;
}

/** Opens a reader; queries after its end reject with StoreError store_closed. */
export function openReader(path: string): Reader {
  const database = adapt(new DatabaseSync(path, { readOnly: true, timeout: BUSY_TIMEOUT_MS }));
  const { assertOpen } = database;
  const db = new Kysely<Tables>({ dialect: new SqliteDialect({ database }) });
  return {
    db,
    assertOpen,
    version: () => (database.prepare("pragma data_version").all([])[0] as { data_version: number }).data_version,
    probe: () => void database.prepare("select count(*) from workspaces").all([]),
    [Symbol.dispose]: () => database.close(),
  };
}

/** What kysely's SQLite driver asks of a database, over node:sqlite. Statements are prepared once and kept. */
function adapt(database: DatabaseSync): SqliteDatabase & { readonly assertOpen: () => void } {
  const prepared = new Map<string, SqliteStatement>();
  let closed = false;
  const assertOpen = (): void => {
    if (closed) throw new StoreError("store_closed", "the store is closed");
  };
  return {
    assertOpen,
    prepare(text) {
      assertOpen();
      const known = prepared.get(text);
      if (known !== undefined) return known;
      if (prepared.size >= MAX_PREPARED) prepared.clear();
      const made = adaptStatement(database.prepare(text));
      prepared.set(text, made);
      return made;
    },
    close() {
      if (closed) return;
      closed = true;
      prepared.clear();
      database.close();
    },
  };
}

function adaptStatement(statement: StatementSync): SqliteStatement {
  type Parameters = Parameters_;
  return {
    // A statement has result columns exactly when it returns rows.
    reader: statement.columns().length > 0,
    all: (parameters) => statement.all(...(parameters as Parameters)),
    run: (parameters) => statement.run(...(parameters as Parameters)),
    iterate: (parameters) => statement.iterate(...(parameters as Parameters)) as IterableIterator<unknown>,
  };
}

type Parameters_ = (string | number | bigint | Uint8Array | null)[];

function migrationTarget(database: DatabaseSync): MigrationTarget {
  // Never executes: the connection is ours; kysely writes the SQL.
  const compiler = new Kysely<unknown>({ dialect: new SqliteDialect({ database: adapt(database) }) });
  return {
    compiler,
    bytes: sql`blob`,
    currentVersion() {
      database.exec(
        "create table if not exists schema_migrations (version integer primary key, name text not null, applied_at bigint not null)",
      );
      const row = database.prepare("select coalesce(max(version), 0) as version from schema_migrations").get();
      return Number(row?.version);
    },
    apply(version, name, statements) {
      database.exec("begin immediate");
      try {
        for (const { sql: text, parameters } of statements) {
          database.prepare(text).run(...(parameters as Parameters_));
        }
        database
          .prepare("insert into schema_migrations (version, name, applied_at) values (?, ?, ?)")
          .run(version, name, Date.now());
        database.exec("commit");
      } catch (error) {
        // A full disk has ended the transaction: the first error is the one that says so.
        if (database.isTransaction) database.exec("rollback");
        throw error;
      }
    },
  };
}
