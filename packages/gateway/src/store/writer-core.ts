import { DatabaseSync, type StatementSync } from "node:sqlite";
import type { Row, SqlValue, Statement } from "./command.ts";
import { type Changes, Commits, changesOf } from "./commits.ts";
import type { StoreErrorCode } from "./errors.ts";
import type { Reserve } from "./reserve.ts";

/**
 * The writer's work, free of threads. Imports little beside node:sqlite: the writer's bundle is small.
 */

/** One caller's write: its statements happen together or not at all. */
export type Batch = readonly Statement[];

export type BatchOutcome =
  | { readonly ok: true; readonly rows: readonly (readonly Row[])[] }
  | { readonly ok: false; readonly code: StoreErrorCode; readonly subject: string; readonly detail: string };

/** SQLITE_CONSTRAINT_PRIMARYKEY and SQLITE_CONSTRAINT_UNIQUE, https://www.sqlite.org/rescode.html. */
const UNIQUE_VIOLATIONS: readonly number[] = [1555, 2067];
/** SQLITE_BUSY and SQLITE_LOCKED, low bytes as well. */
const LOCKED: readonly number[] = [5, 6];
/** SQLITE_FULL, the low byte of every code for a disk without room. */
const DISK_FULL = 13;
/** SQLITE_IOERR_SHMSIZE: no room for the index of the WAL. */
const NO_SHARED_MEMORY = 4874;
/** Pages in the WAL (4 KiB each) after which a commit copies them back: 4 MiB keeps reads quick and the file small. */
const CHECKPOINT_PAGES = 1_000;
/** Nobody else should write; this covers a reader that recovers the WAL after a crash, and a backup. Milliseconds. */
const BUSY_TIMEOUT_MS = 10_000;
/** Prepared statements kept. */
const MAX_PREPARED = 512;

export class WriterCore {
  readonly #database: DatabaseSync;
  readonly #commits: Commits;
  readonly #prepared = new Map<string, StatementSync>();
  readonly #reserve: Reserve | undefined;
  #gaveReserve = false;
  #dataVersion: unknown;

  /** `busyTimeoutMs`: how long another program's lock is waited for. */
  constructor(path: string, commits: Commits = new Commits(), busyTimeoutMs = BUSY_TIMEOUT_MS, reserve?: Reserve) {
    this.#commits = commits;
    this.#reserve = reserve;
    this.#database = new DatabaseSync(path, { timeout: busyTimeoutMs });
    this.#database.exec(
      `pragma journal_mode = wal; pragma synchronous = full; pragma wal_autocheckpoint = ${CHECKPOINT_PAGES};` +
        // A savepoint's journal is a temporary file otherwise: a process without descriptors could store nothing.
        " pragma temp_store = memory",
    );
    this.#dataVersion = this.#readDataVersion();
  }

  /**
   * Runs all batches in one transaction, each behind a savepoint, so that one failing expectation undoes one batch and the
   * group pays for a single fsync. Nothing is reported as done before the commit.
   */
  run(batches: readonly Batch[]): readonly BatchOutcome[] {
    const outcomes = [...this.#runGroup(batches)];
    const full = (index: number): boolean => isFull(outcomes[index]!) && batches[index]!.some(({ reserve }) => reserve);
    let left = [...batches.keys()].filter(full);
    // Without the others there may be room; else the reserve makes some.
    let more = left.length > 0 && left.length < batches.length;
    while (left.length > 0) {
      if (!more) {
        if (this.#reserve?.give() !== true) break;
        this.#gaveReserve = true;
      }
      more = false;
      const again = this.#runGroup(left.map((index) => batches[index]!));
      for (const [position, index] of left.entries()) outcomes[index] = again[position]!;
      left = left.filter(full);
    }
    return outcomes;
  }

  /** Whether a write has used the reserve since it was whole. */
  get gaveReserve(): boolean {
    return this.#gaveReserve;
  }

  /** Makes the reserve whole while there is room; true when it is. */
  replenish(): boolean {
    const whole = this.#reserve?.take() ?? true;
    if (whole) this.#gaveReserve = false;
    return whole;
  }

  /** On this connection the number differs exactly when somebody else has committed: https://www.sqlite.org/pragma.html#pragma_data_version */
  lookForOthers(): void {
    const version = this.#readDataVersion();
    if (version !== this.#dataVersion) this.#commits.countForeign();
    this.#dataVersion = version;
  }

  #readDataVersion(): unknown {
    return this.#prepare("pragma data_version").get()?.["data_version"];
  }

  #runGroup(batches: readonly Batch[]): readonly BatchOutcome[] {
    try {
      this.#database.exec("begin immediate");
      this.lookForOthers();
      const outcomes = batches.map((batch) => this.#runBatch(batch));
      this.#commit(changesOf(batches));
      return outcomes;
    } catch (error) {
      this.#rollback();
      const detail = (error as Error).message;
      return batches.map(() => ({ ok: false, code: failureCode(error), subject: "", detail }));
    }
  }

  #commit(changes: Changes): void {
    this.#commits.begin(changes);
    try {
      this.#database.exec("commit");
    } finally {
      this.#commits.end(changes);
    }
  }

  close(): void {
    this.#prepared.clear();
    this.#database.close();
  }

  #runBatch(batch: Batch): BatchOutcome {
    this.#database.exec("savepoint batch");
    const { outcome, error } = this.#tryBatch(batch);
    try {
      this.#database.exec(outcome.ok ? "release batch" : "rollback to batch; release batch");
    } catch (missing) {
      // A disk error has ended the transaction and its savepoints: the group fails as one, for that reason.
      throw error ?? missing;
    }
    return outcome;
  }

  #tryBatch(batch: Batch): { readonly outcome: BatchOutcome; readonly error?: unknown } {
    const rows: (readonly Row[])[] = [];
    for (const statement of batch) {
      const { subject, expect } = statement;
      try {
        const prepared = this.#prepare(statement.sql);
        const parameters = statement.parameters as (string | number | bigint | Uint8Array | null)[];
        const returned = statement.returning ? (prepared.all(...parameters) as Record<string, SqlValue>[]) : [];
        const touched = statement.returning ? returned.length : Number(prepared.run(...parameters).changes);
        if (expect !== undefined && touched !== expect.rows) {
          const detail = `${touched} rows instead of ${expect.rows}`;
          return { outcome: { ok: false, code: expect.otherwise, subject, detail } };
        }
        rows.push(returned);
      } catch (error) {
        const detail = (error as Error).message;
        return { outcome: { ok: false, code: failureCode(error), subject, detail }, error };
      }
    }
    return { outcome: { ok: true, rows } };
  }

  #prepare(sql: string): StatementSync {
    const known = this.#prepared.get(sql);
    if (known !== undefined) return known;
    if (this.#prepared.size >= MAX_PREPARED) this.#prepared.clear();
    const made = this.#database.prepare(sql);
    this.#prepared.set(sql, made);
    return made;
  }

  #rollback(): void {
    try {
      this.#database.exec("rollback");
    } catch {
      // SQLite had ended the transaction by itself.
    }
  }
}

function isFull(outcome: BatchOutcome): boolean {
  return !outcome.ok && outcome.code === "store_full";
}

function failureCode(error: unknown): StoreErrorCode {
  const code = (error as { errcode?: number }).errcode ?? 0;
  if (UNIQUE_VIOLATIONS.includes(code)) return "store_already_exists";
  if (LOCKED.includes(code & 0xff)) return "store_busy";
  return (code & 0xff) === DISK_FULL || code === NO_SHARED_MEMORY ? "store_full" : "store_write_failed";
}
