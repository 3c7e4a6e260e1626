import type { Kysely, Selectable } from "kysely";
import { command, statement } from "./command.ts";
import { defined, optionalNumber } from "./rows.ts";
import type { HostTable, Tables } from "./schema.ts";
import type { HostRecord, HostRepository, HostState } from "./types.ts";

export function hostRepository(db: Kysely<Tables>): HostRepository {
  return {
    async get(id) {
      const row = await db.selectFrom("hosts").selectAll().where("id", "=", id).executeTakeFirst();
      return row && fromRow(row);
    },
    async current() {
      const query = db.selectFrom("hosts").selectAll().where("state", "in", ["starting", "live"]);
      return (await query.orderBy("created_at").execute()).map(fromRow);
    },
    async deathsSince(workspace, since) {
      const row = await db
        .selectFrom("hosts")
        .select((eb) => eb.fn.countAll<number | bigint>().as("count"))
        .where("workspace", "=", workspace)
        .where("state", "=", "died")
        .where("ended_at", ">=", since)
        .executeTakeFirstOrThrow();
      return Number(row.count);
    },
    create(record) {
      const insert = db.insertInto("hosts").values({
        id: record.id,
        workspace: record.workspace,
        sandbox_id: record.sandboxId ?? null,
        secret_hash: record.secretHash,
        state: "starting",
        pid: record.pid,
        start_time: record.startTime,
        boot_id: record.bootId,
        build: record.build,
        created_at: record.createdAt,
        ended_at: null,
      });
      return command(statement("host", insert));
    },
    update(id, patch) {
      const columns = defined({
        state: patch.state,
        pid: patch.pid,
        start_time: patch.startTime,
        build: patch.build,
        ended_at: patch.endedAt,
      });
      if (Object.keys(columns).length === 0) return command();
      return command(statement("host", db.updateTable("hosts").set(columns).where("id", "=", id)));
    },
    purge(endedBefore) {
      return command(statement("host", db.deleteFrom("hosts").where("ended_at", "<", endedBefore)));
    },
  };
}

function fromRow(row: Selectable<HostTable>): HostRecord {
  return {
    id: row.id,
    workspace: row.workspace,
    sandboxId: row.sandbox_id ?? undefined,
    secretHash: row.secret_hash,
    state: row.state as HostState,
    pid: Number(row.pid),
    startTime: row.start_time,
    bootId: row.boot_id,
    build: row.build,
    createdAt: Number(row.created_at),
    endedAt: optionalNumber(row.ended_at),
  };
}
