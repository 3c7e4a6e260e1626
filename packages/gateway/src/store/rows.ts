import { type Kysely, type RawBuilder, sql } from "kysely";
import { type Statement, statement } from "./command.ts";
import { DAMAGED_ANNOTATION, damagedText, RowReader } from "./damaged-row.ts";
import type { Tables } from "./schema.ts";
import type { ListCursor, ObjectFields } from "./types.ts";

/** Shared between the repositories: columns to values and back, labels, keyset pages. */

/**
 * A text to compare a column with, in queries that also sort or join. Beside those SQLite plans a query anew each time that a bare
 * parameter is bound, which costs several times what running it does.
 */
export function asText(text: string): RawBuilder<string> {
  return sql<string>`cast(${text} as text)`;
}

interface ObjectRow {
  readonly id: string;
  readonly name: string;
  readonly labels: string;
  readonly annotations: string;
  readonly created_at: number | bigint;
  readonly deletion_at: number | bigint | null;
  readonly resource_version: number | bigint;
}

/** `reader` notes what of the row is damaged; without one, the annotations say it. */
export function objectFields(row: ObjectRow, reader?: RowReader): ObjectFields {
  const own = reader ?? new RowReader();
  const labels = own.texts("labels", row.labels);
  const annotations = own.texts("annotations", row.annotations);
  return {
    id: row.id,
    name: row.name,
    labels,
    annotations: reader === undefined ? annotated(annotations, own) : annotations,
    createdAt: Number(row.created_at),
    deletionAt: optionalNumber(row.deletion_at),
    resourceVersion: BigInt(row.resource_version),
  };
}

/** The annotations, and what is damaged where something is. */
export function annotated(
  annotations: ObjectFields["annotations"],
  { damaged }: RowReader,
): ObjectFields["annotations"] {
  return damaged.length === 0 ? annotations : { ...annotations, [DAMAGED_ANNOTATION]: damagedText(damaged) };
}

/** The columns of a new object; its version is 1. */
export function objectColumns(record: Omit<ObjectFields, "deletionAt" | "resourceVersion">) {
  return {
    id: record.id,
    name: record.name,
    labels: JSON.stringify(record.labels),
    annotations: JSON.stringify(record.annotations),
    created_at: record.createdAt,
    deletion_at: null,
    resource_version: 1,
  };
}

export function optionalNumber(value: number | bigint | null): number | undefined {
  return value === null ? undefined : Number(value);
}

/** What is defined of `columns`: an update sets only that. */
export function defined<Columns extends object>(columns: Columns): Partial<Columns> {
  return Object.fromEntries(Object.entries(columns).filter(([, value]) => value !== undefined)) as Partial<Columns>;
}

export type LabelledType = "sandbox" | "provider" | "workspace";

/** Statements that make the label index say `labels`; `fresh` when it says nothing yet. */
export function labelStatements(
  db: Kysely<Tables>,
  type: LabelledType,
  id: string,
  labels: Readonly<Record<string, string>>,
  fresh: boolean,
): readonly Statement[] {
  const rows = Object.entries(labels).map(([key, value]) => ({ object_type: type, object_id: id, key, value }));
  return [
    ...(fresh ? [] : [clearLabels(db, type, id)]),
    ...(rows.length === 0 ? [] : [statement("label", db.insertInto("object_labels").values(rows))]),
  ];
}

export function clearLabels(db: Kysely<Tables>, type: LabelledType, id: string): Statement {
  return statement("label", db.deleteFrom("object_labels").where("object_type", "=", type).where("object_id", "=", id));
}

/** Conditions: the object in `table` has every pair. */
export function labelConditions(
  type: LabelledType,
  table: "sandboxes" | "providers" | "workspaces",
  labels: Readonly<Record<string, string>> | undefined,
): readonly RawBuilder<boolean>[] {
  return Object.entries(labels ?? {}).map(
    ([key, value]) =>
      sql<boolean>`exists (select 1 from object_labels l where l.object_type = ${type} and l.object_id = ${sql.ref(`${table}.id`)} and l.key = ${key} and l.value = ${value})`,
  );
}

/** Condition: the row comes after the cursor in the order created_at, name, workspace, id. */
export function afterCursor(cursor: ListCursor): RawBuilder<boolean> {
  const { createdAt, name, workspace, id } = cursor;
  return sql<boolean>`(created_at, name, workspace, id) > (${createdAt}, ${name}, ${workspace}, ${id})`;
}

export const CONFLICT = { rows: 1, otherwise: "store_conflict" } as const;
