import { type Kysely, type Selectable, sql } from "kysely";
import { command, statement } from "./command.ts";
import { optionalNumber } from "./rows.ts";
import type { AdmissionTable, Tables } from "./schema.ts";
import type { Admission, AdmissionRepository } from "./types.ts";

export function admissionRepository(db: Kysely<Tables>): AdmissionRepository {
  return {
    async get(key) {
      const query = db
        .selectFrom("admissions")
        .selectAll()
        .where("caller", "=", key.caller)
        .where("method", "=", key.method)
        .where("workspace", "=", key.workspace)
        .where("request_id", "=", key.requestId);
      const row = await query.executeTakeFirst();
      return row && fromRow(row);
    },
    admit(key, fingerprint, at, expiredBefore, limit) {
      const purge = db
        .deleteFrom("admissions")
        .where("caller", "=", key.caller)
        .where("state", "=", "succeeded")
        .where("completed_at", "<", expiredBefore);
      const { caller, method, workspace, requestId } = key;
      const insert = sql`
        insert into admissions (caller, method, workspace, request_id, fingerprint, state, receipt, admitted_at, completed_at)
        select ${caller}, ${method}, ${workspace}, ${requestId}, ${fingerprint}, 'admitted', null, ${at}, null
        where (select count(*) from admissions where caller = ${caller}) < ${limit}`;
      return command(
        statement("request id", purge),
        statement(
          "request id",
          { compile: () => insert.compile(db) },
          {
            expect: { rows: 1, otherwise: "store_limit_reached" },
          },
        ),
      );
    },
    succeed(key, receipt, at) {
      const update = db
        .updateTable("admissions")
        .set({ state: "succeeded", receipt, completed_at: at })
        .where("caller", "=", key.caller)
        .where("method", "=", key.method)
        .where("workspace", "=", key.workspace)
        .where("request_id", "=", key.requestId)
        .where("state", "=", "admitted");
      return command(statement("request id", update, { expect: { rows: 1, otherwise: "store_conflict" } }));
    },
    withdraw(key) {
      const remove = db
        .deleteFrom("admissions")
        .where("caller", "=", key.caller)
        .where("method", "=", key.method)
        .where("workspace", "=", key.workspace)
        .where("request_id", "=", key.requestId)
        .where("state", "=", "admitted");
      return command(statement("request id", remove));
    },
  };
}

function fromRow(row: Selectable<AdmissionTable>): Admission {
  return {
    caller: row.caller,
    method: row.method,
    workspace: row.workspace,
    requestId: row.request_id,
    fingerprint: row.fingerprint,
    state: row.state as Admission["state"],
    receipt: row.receipt ?? undefined,
    admittedAt: Number(row.admitted_at),
    completedAt: optionalNumber(row.completed_at),
  };
}
