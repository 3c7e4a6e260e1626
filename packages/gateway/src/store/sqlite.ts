import { closeSync, constants, fchmodSync, fstatSync, lstatSync, openSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { DatabaseSync, type StatementSync } from "node:sqlite";
import { RuntimeError, systemCode } from "@openshell/base";
import { type CompiledQuery, Kysely, type SqliteDatabase, SqliteDialect, type SqliteStatement, sql } from "kysely";
import type { SqlValue } from "./command.ts";
import { StoreError } from "./errors.ts";
import { type MigrationTarget, migrate, refuseNewer } from "./migrate.ts";
import type { Tables } from "./schema.ts";

/** A reader waits this long for the rare exclusive moments of WAL (recovery after a crash, the last close). Milliseconds. */
const BUSY_TIMEOUT_MS = 5_000;
/** The smallest page that SQLite has. Bytes. */
const MIN_DATABASE_BYTES = 512;
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
    checkWhole(path, createFile(path));
    const database = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS });
    try {
      database.exec("pragma journal_mode = wal; pragma synchronous = full");
      migrate(path, migrationTarget(database));
    } finally {
      database.close();
    }
  } catch (cause) {
    if (cause instanceof RuntimeError) throw cause;
    throw unusable(path, (cause as Error).message.split("\n")[0]!, cause);
  }
}

/**
 * Refuses a state folder with sandboxes whose database is gone: an empty one in its place would know none of them, and
 * what no record knows is ended and set aside. Looks before anything of a first start is made.
 *
 * @throws RuntimeError store_unusable
 */
export function checkDatabaseIsThere(state: string): void {
  const path = join(state, "gateway.db");
  const stat = lstatSync(path, { throwIfNoEntry: false });
  if (stat !== undefined && stat.size > 0) return;
  const sandboxes = countSandboxes(join(state, "sandboxes"));
  if (sandboxes === 0) return;
  const kept = sandboxes === 1 ? "1 sandbox is" : `${sandboxes} sandboxes are`;
  throw unusable(path, `it is ${stat === undefined ? "missing" : "empty"}, and the files of ${kept} beside it`);
}

function countSandboxes(folder: string): number {
  try {
    return readdirSync(folder).filter((name) => !name.startsWith(".")).length;
  } catch (error) {
    if (systemCode(error) === "ENOENT") return 0;
    throw error;
  }
}

function unusable(path: string, problem: string, cause?: unknown): RuntimeError {
  return new RuntimeError("store_unusable", `cannot open the database ${path}: ${problem}`, {
    next: `Check the free space and the rights of that file; restore a damaged one from a backup, or move the whole folder ${dirname(path)} away to start anew`,
    cause,
  });
}

/** Made here, so that it never exists with a wider mode; SQLite gives -wal and -shm the mode of the main file. Its size. */
function createFile(path: string): number {
  const flags = constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const fd = openSync(path, flags, 0o600);
  try {
    const stat = fstatSync(fd);
    if (!stat.isFile()) throw unusable(path, "it is no regular file");
    if (stat.uid !== process.getuid?.()) throw unusable(path, `it belongs to uid ${stat.uid}`);
    fchmodSync(fd, 0o600);
    return stat.size;
  } finally {
    closeSync(fd);
  }
}

/** Reads through all of it before anything is written: a damaged database stays as it is, for whoever can repair it. */
function checkWhole(path: string, size: number): void {
  if (size === 0) return;
  // SQLite itself takes so short a file for an empty one.
  if (size < MIN_DATABASE_BYTES) throw unusable(path, `it is damaged (${size} bytes are no database)`);
  const database = new DatabaseSync(path, { readOnly: true, timeout: BUSY_TIMEOUT_MS });
  try {
    const number = (pragma: string) => Number(Object.values(database.prepare(`pragma ${pragma}`).get() ?? {})[0]);
    const bytes = number("page_count") * number("page_size");
    // SQLite takes the end of a last page that was cut off for zeros. With a log, a crash may have left one that the log holds.
    const log = lstatSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0;
    if (log === 0 && size < bytes) throw unusable(path, `it is damaged (${size} of ${bytes} bytes are left)`);
    const found = Object.values(database.prepare("pragma quick_check(1)").get() ?? {})[0];
    if (found !== "ok") throw unusable(path, `it is damaged (${String(found).replaceAll(/\s+/g, " ").slice(0, 200)})`);
    const known = database
      .prepare("select count(*) as count from sqlite_schema where name = 'schema_migrations'")
      .get();
    if (known?.["count"] === 0) return;
    const row = database.prepare("select coalesce(max(version), 0) as version from schema_migrations").get();
    refuseNewer(path, Number(row?.["version"]));
  } finally {
    database.close();
  }
}

/** What repositories read with. Rows show every transaction committed before the query began. */
export interface Queries {
  readonly db: Kysely<Tables>;
  /** The rows of a query that was built once, for these parameters, at once: for what is asked all the time. */
  readonly rows: <Row>(query: CompiledQuery<Row>, parameters: readonly SqlValue[]) => readonly Row[];
}

/** A connection that can only read. */
export interface Reader extends Queries, Disposable {
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
    rows: <Row>({ sql: text }: CompiledQuery<Row>, parameters: readonly SqlValue[]) =>
      database.prepare(text).all(parameters) as Row[],
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
