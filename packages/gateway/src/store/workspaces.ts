import { type Selectable, sql } from "kysely";
import { command, statement } from "./command.ts";
import { deepFreeze } from "./frozen.ts";
import type { ReadCache } from "./read-cache.ts";
import { CONFLICT, labelConditions, labelStatements, objectColumns, objectFields } from "./rows.ts";
import type { WorkspaceTable } from "./schema.ts";
import type { Queries } from "./sqlite.ts";
import type { WorkspacePhaseName, WorkspaceRecord, WorkspaceRepository } from "./types.ts";

/** The record that `get` gives is shared and therefore frozen. */
export function workspaceRepository({ db, rows }: Queries, cache: ReadCache): WorkspaceRepository {
  const select = db.selectFrom("workspaces").selectAll().where("name", "=", "").compile();

  return {
    get(name) {
      return cache.read(
        `workspace ${name}`,
        async () => {
          const [row] = rows(select, [name]);
          return row && deepFreeze(fromRow(row));
        },
        (record) => (record === undefined ? 0 : JSON.stringify([record.labels, record.annotations]).length),
      );
    },
    async list({ labels, after, limit }) {
      let query = db
        .selectFrom("workspaces")
        .selectAll()
        .orderBy("created_at")
        .orderBy("name")
        .orderBy("id")
        .limit(limit);
      for (const condition of labelConditions("workspace", "workspaces", labels)) query = query.where(condition);
      if (after !== undefined) {
        query = query.where(sql<boolean>`(created_at, name, id) > (${after.createdAt}, ${after.name}, ${after.id})`);
      }
      return (await query.execute()).map(fromRow);
    },
    create(record) {
      const insert = db.insertInto("workspaces").values({ ...objectColumns(record), phase: record.phase });
      return command(
        statement("workspace", insert),
        ...labelStatements(db, "workspace", record.id, record.labels, true),
      );
    },
    setPhase(name, expected, phase, deletionAt) {
      let update = db
        .updateTable("workspaces")
        .set((eb) => ({ phase, resource_version: eb("resource_version", "+", 1) }))
        .where("name", "=", name);
      if (deletionAt !== undefined) update = update.set({ deletion_at: deletionAt });
      if (expected !== "any") update = update.where("resource_version", "=", expected);
      return {
        statements: [
          statement("workspace", update.returning("resource_version"), { expect: CONFLICT, returning: true }),
        ],
        result: ([rows]) => BigInt(rows![0]!.resource_version as number),
      };
    },
    remove(name) {
      const owned = db.selectFrom("workspaces").select("id").where("name", "=", name);
      return command(
        statement(
          "label",
          db.deleteFrom("object_labels").where("object_type", "=", "workspace").where("object_id", "in", owned),
        ),
        statement("secret", db.deleteFrom("secrets").where("scope", "=", `workspace:${name}`)),
        statement("workspace", db.deleteFrom("workspaces").where("name", "=", name), {
          expect: { rows: 1, otherwise: "store_not_found" },
        }),
      );
    },
  };
}

function fromRow(row: Selectable<WorkspaceTable>): WorkspaceRecord {
  return { ...objectFields(row), phase: row.phase as WorkspacePhaseName };
}
