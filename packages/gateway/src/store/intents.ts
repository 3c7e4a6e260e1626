import type { Kysely, Selectable } from "kysely";
import { command, statement } from "./command.ts";
import { CONFLICT } from "./rows.ts";
import type { IntentTable, Tables } from "./schema.ts";
import type { Intent, IntentRepository } from "./types.ts";

export function intentRepository(db: Kysely<Tables>): IntentRepository {
  return {
    async get(subject) {
      const row = await db.selectFrom("intents").selectAll().where("subject", "=", subject).executeTakeFirst();
      return row && fromRow(row);
    },
    async all() {
      return (await db.selectFrom("intents").selectAll().orderBy("created_at").orderBy("subject").execute()).map(
        fromRow,
      );
    },
    put(intent, at) {
      const columns = {
        kind: intent.kind,
        operation_id: intent.operationId,
        step: intent.step,
        payload: JSON.stringify(intent.payload),
        created_at: at,
        updated_at: at,
      };
      const upsert = db
        .insertInto("intents")
        .values({ subject: intent.subject, ...columns })
        .onConflict((conflict) =>
          conflict.column("subject").doUpdateSet(({ ref }) => ({
            kind: ref("excluded.kind"),
            operation_id: ref("excluded.operation_id"),
            step: ref("excluded.step"),
            payload: ref("excluded.payload"),
            created_at: ref("excluded.created_at"),
            updated_at: ref("excluded.updated_at"),
          })),
        );
      return command(statement("intent", upsert));
    },
    advance(subject, operationId, step, at, payload) {
      const update = db
        .updateTable("intents")
        .set({ step, updated_at: at, ...(payload === undefined ? {} : { payload: JSON.stringify(payload) }) })
        .where("subject", "=", subject)
        .where("operation_id", "=", operationId);
      return command(statement("intent", update, { expect: CONFLICT }));
    },
    finish(subject, operationId) {
      const remove = db.deleteFrom("intents").where("subject", "=", subject).where("operation_id", "=", operationId);
      return command(statement("intent", remove, { expect: CONFLICT }));
    },
  };
}

function fromRow(row: Selectable<IntentTable>): Intent {
  return {
    subject: row.subject,
    kind: row.kind,
    operationId: row.operation_id,
    step: row.step,
    payload: JSON.parse(row.payload),
    createdAt: Number(row.created_at),
    updatedAt: Number(row.updated_at),
  };
}
