import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { SandboxSpecSchema, SandboxStatusSchema } from "@openshell/api/generated/openshell_pb.js";
import type { Kysely, Selectable } from "kysely";
import { command, type Statement, statement } from "./command.ts";
import {
  afterCursor,
  CONFLICT,
  clearLabels,
  defined,
  labelConditions,
  labelStatements,
  objectColumns,
  objectFields,
} from "./rows.ts";
import type { SandboxTable, Tables } from "./schema.ts";
import type { SandboxRecord, SandboxRepository } from "./types.ts";

export function sandboxRepository(db: Kysely<Tables>): SandboxRepository {
  return {
    async byId(id) {
      const row = await db.selectFrom("sandboxes").selectAll().where("id", "=", id).executeTakeFirst();
      return row && fromRow(row);
    },
    async byName(workspace, name) {
      const query = db.selectFrom("sandboxes").selectAll().where("workspace", "=", workspace).where("name", "=", name);
      const row = await query.executeTakeFirst();
      return row && fromRow(row);
    },
    async list({ workspace, labels, after, limit, phases }) {
      let query = db.selectFrom("sandboxes").selectAll();
      if (workspace !== undefined) query = query.where("workspace", "=", workspace);
      if (phases !== undefined) query = query.where("phase", "in", phases);
      for (const condition of labelConditions("sandbox", "sandboxes", labels)) query = query.where(condition);
      if (after !== undefined) query = query.where(afterCursor(after));
      const ordered = query.orderBy("created_at").orderBy("name").orderBy("workspace").orderBy("id").limit(limit);
      return (await ordered.execute()).map(fromRow);
    },
    async usingProvider(workspace, provider) {
      const rows = await db
        .selectFrom("sandboxes")
        .selectAll("sandboxes")
        .innerJoin("sandbox_providers as used", "used.sandbox_id", "sandboxes.id")
        .where("used.workspace", "=", workspace)
        .where("used.provider", "=", provider)
        .orderBy("sandboxes.created_at")
        .orderBy("sandboxes.id")
        .execute();
      return rows.map(fromRow);
    },
    async countByPhase() {
      const rows = await db
        .selectFrom("sandboxes")
        .select(["phase", (eb) => eb.fn.countAll<number | bigint>().as("count")])
        .groupBy("phase")
        .execute();
      return new Map(rows.map(({ phase, count }) => [Number(phase), Number(count)]));
    },
    create(record) {
      const insert = db.insertInto("sandboxes").values({
        ...objectColumns(record),
        workspace: record.workspace,
        phase: record.status.phase,
        spec: toBinary(SandboxSpecSchema, record.spec),
        status: toBinary(SandboxStatusSchema, record.status),
        host_key_fingerprint: record.hostKeyFingerprint,
        template_name: record.workloadTemplate?.name ?? null,
        template_version: record.workloadTemplate?.resourceVersion ?? null,
        generation: record.generation,
        driver: record.driver,
        driver_record: JSON.stringify(record.driverRecord),
        runtime_record: JSON.stringify(record.runtimeRecord),
      });
      return command(
        statement("sandbox", insert),
        ...labelStatements(db, "sandbox", record.id, record.labels, true),
        ...providerStatements(db, record.id, record.spec.providers, true),
      );
    },
    update(id, expected, patch) {
      const { spec, status } = patch;
      const columns = defined({
        labels: patch.labels && JSON.stringify(patch.labels),
        annotations: patch.annotations && JSON.stringify(patch.annotations),
        deletion_at: patch.deletionAt,
        spec: spec && toBinary(SandboxSpecSchema, spec),
        status: status && toBinary(SandboxStatusSchema, status),
        phase: status?.phase,
        host_key_fingerprint: patch.hostKeyFingerprint,
        generation: patch.generation,
        driver: patch.driver,
        driver_record: patch.driverRecord === undefined ? undefined : JSON.stringify(patch.driverRecord),
        runtime_record: patch.runtimeRecord === undefined ? undefined : JSON.stringify(patch.runtimeRecord),
      });
      let update = db
        .updateTable("sandboxes")
        .set((eb) => ({ ...columns, resource_version: eb("resource_version", "+", 1) }))
        .where("id", "=", id);
      if (expected !== "any") update = update.where("resource_version", "=", expected);
      return {
        statements: [
          statement("sandbox", update.returning("resource_version"), { expect: CONFLICT, returning: true }),
          ...(patch.labels === undefined ? [] : labelStatements(db, "sandbox", id, patch.labels, false)),
          ...(spec === undefined ? [] : providerStatements(db, id, spec.providers, false)),
        ],
        result: ([rows]) => BigInt(rows![0]!.resource_version as number),
      };
    },
    remove(id, expected) {
      let remove = db.deleteFrom("sandboxes").where("id", "=", id);
      if (expected !== "any") remove = remove.where("resource_version", "=", expected);
      return command(
        statement("sandbox", remove, { expect: CONFLICT }),
        clearLabels(db, "sandbox", id),
        clearProviders(db, id),
        statement("policy", db.deleteFrom("policy_revisions").where("scope", "=", id)),
        statement("setting", db.deleteFrom("settings").where("scope", "=", id)),
        statement("setting", db.deleteFrom("setting_scopes").where("scope", "=", id)),
        statement("secret", db.deleteFrom("secrets").where("scope", "=", id)),
        statement("intent", db.deleteFrom("intents").where("subject", "=", id)),
      );
    },
  };
}

function clearProviders(db: Kysely<Tables>, id: string): Statement {
  return statement("attachment", db.deleteFrom("sandbox_providers").where("sandbox_id", "=", id));
}

/** The workspace comes from the sandbox's row, written before in the same transaction. */
function providerStatements(
  db: Kysely<Tables>,
  id: string,
  providers: readonly string[],
  fresh: boolean,
): readonly Statement[] {
  const insert = (provider: string): Statement =>
    statement(
      "attachment",
      db
        .insertInto("sandbox_providers")
        .columns(["sandbox_id", "workspace", "provider"])
        .expression((eb) =>
          eb
            .selectFrom("sandboxes")
            .select(["id", "workspace", eb.val(provider).as("provider")])
            .where("id", "=", id),
        ),
    );
  return [...(fresh ? [] : [clearProviders(db, id)]), ...[...new Set(providers)].map(insert)];
}

function fromRow(row: Selectable<SandboxTable>): SandboxRecord {
  const workloadTemplate =
    row.template_name === null ? undefined : { name: row.template_name, resourceVersion: row.template_version ?? "" };
  return {
    ...objectFields(row),
    workspace: row.workspace,
    spec: row.spec.length === 0 ? create(SandboxSpecSchema) : fromBinary(SandboxSpecSchema, row.spec),
    status: fromBinary(SandboxStatusSchema, row.status),
    hostKeyFingerprint: row.host_key_fingerprint,
    workloadTemplate,
    generation: BigInt(row.generation),
    driver: row.driver,
    driverRecord: JSON.parse(row.driver_record),
    runtimeRecord: JSON.parse(row.runtime_record),
  };
}
