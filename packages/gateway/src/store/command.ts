import type { Compilable } from "kysely";
import type { StoreErrorCode } from "./errors.ts";

/** What SQLite and Postgres take as a parameter and give back in a column. */
export type SqlValue = string | number | bigint | Uint8Array | null;

/** One row as the database gave it. */
export type Row = Readonly<Record<string, SqlValue>>;

/**
 * One statement of a write, as plain data: it crosses to the writer thread by structured clone.
 *
 * A statement with `returning` (a query as well) yields rows. `expect` makes the whole write fail, with nothing stored, when another number
 * of rows was touched (or returned).
 */
export interface Statement {
  readonly sql: string;
  readonly parameters: readonly SqlValue[];
  readonly returning: boolean;
  readonly expect?: Expectation;
  /** It ends a sandbox or records its end: the write may use the space that is kept for that on a full disk. */
  readonly reserve?: true;
  /** Label for errors: the kind of thing written, such as `sandbox`. */
  readonly subject: string;
}

export interface Expectation {
  readonly rows: number;
  readonly otherwise: Extract<StoreErrorCode, "store_conflict" | "store_not_found" | "store_limit_reached">;
}

/**
 * A change described as data. Repositories make commands; `Store.write` applies any number of them in one transaction:
 * all or none, in order. A command may be used once or many times; making it has no effect.
 */
export interface Command<Result = void> {
  readonly statements: readonly Statement[];
  /** Makes the result from the rows of each statement (empty for those without `returning`). */
  readonly result: (rows: readonly (readonly Row[])[]) => Result;
}

/** The results of a list of commands, in order. */
export type CommandResults<Commands extends readonly Command<unknown>[]> = {
  -readonly [Index in keyof Commands]: Commands[Index] extends Command<infer Result> ? Result : never;
};

/** A statement from a kysely query. `returning` must be true exactly when it yields rows: a select, or a RETURNING clause. */
export function statement(
  subject: string,
  query: Compilable,
  options: { readonly expect?: Expectation; readonly returning?: boolean } = {},
): Statement {
  const { sql, parameters } = query.compile();
  const base = { sql, parameters: parameters as readonly SqlValue[], returning: options.returning ?? false, subject };
  return options.expect === undefined ? base : { ...base, expect: options.expect };
}

/** A command without a result. */
export function command(...statements: readonly Statement[]): Command<void> {
  return { statements, result: () => undefined };
}

/** The command, which may use the space that is kept for ending sandboxes. */
export function reserved<Result>(one: Command<Result>): Command<Result> {
  return { ...one, statements: one.statements.map((each) => ({ ...each, reserve: true as const })) };
}

/** Several commands as one without a result. */
export function combine(...commands: readonly Command<unknown>[]): Command<void> {
  return command(...commands.flatMap((part) => part.statements));
}
