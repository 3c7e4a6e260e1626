import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  SandboxConditionSchema,
  SandboxPhase,
  SandboxSpecSchema,
  type SandboxStatus,
  SandboxStatusSchema,
} from "@openshell/api/generated/openshell_pb.js";
import type { Kysely, Selectable } from "kysely";
import { type Command, command, reserved, type Statement, statement } from "./command.ts";
import { damagedText, RowReader } from "./damaged-row.ts";
import { deepFreeze } from "./frozen.ts";
import { type ReadCache, WeightedCache } from "./read-cache.ts";
import {
  afterCursor,
  asText,
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

/** Bytes of the rows whose decoded form is kept; decoded they take several times as much. */
export const DECODED_SANDBOX_BYTES = 4 * 1024 * 1024;

/** Phases on the way to a sandbox that does not run, and of one that does not. */
const ENDS: ReadonlySet<SandboxPhase> = new Set([
  SandboxPhase.STOPPING,
  SandboxPhase.STOPPED,
  SandboxPhase.COMPLETED,
  SandboxPhase.ERROR,
  SandboxPhase.DELETING,
]);

/** Records that it gives are shared and therefore frozen. */
export function sandboxRepository(db: Kysely<Tables>, cache: ReadCache): SandboxRepository {
  const records = new DecodedSandboxes();
  const fromRow = (row: Selectable<SandboxTable>): SandboxRecord => records.of(row);
  const bytesOf = (record: SandboxRecord | undefined): number => (record === undefined ? 0 : records.bytesOf(record));
  // Building a query costs more than running it.
  const all = db.selectFrom("sandboxes").selectAll();
  const selectById = all.where("id", "=", "").compile();
  const selectByName = all.where("workspace", "=", "").where("name", "=", "").compile();

  return {
    byId(id) {
      return cache.read(
        `sandbox id ${id}`,
        async () => {
          const { rows } = await db.executeQuery<Selectable<SandboxTable>>({ ...selectById, parameters: [id] });
          return rows[0] && fromRow(rows[0]);
        },
        bytesOf,
      );
    },
    byName(workspace, name) {
      return cache.read(
        `sandbox ${JSON.stringify([workspace, name])}`,
        async () => {
          const { rows } = await db.executeQuery<Selectable<SandboxTable>>({
            ...selectByName,
            parameters: [workspace, name],
          });
          return rows[0] && fromRow(rows[0]);
        },
        bytesOf,
      );
    },
    list(options) {
      const { workspace, labels, after, limit, phases } = options;
      const start = after && [after.createdAt, after.name, after.workspace, after.id];
      return cache.read(
        `sandboxes ${JSON.stringify([workspace ?? null, labels ?? {}, start ?? [], limit, phases ?? null])}`,
        async () => {
          let query = db.selectFrom("sandboxes").selectAll();
          if (workspace !== undefined) query = query.where("workspace", "=", workspace);
          if (phases !== undefined) query = query.where("phase", "in", phases);
          for (const condition of labelConditions("sandbox", "sandboxes", labels)) query = query.where(condition);
          if (after !== undefined) query = query.where(afterCursor(after));
          const ordered = query.orderBy("created_at").orderBy("name").orderBy("workspace").orderBy("id").limit(limit);
          return Object.freeze((await ordered.execute()).map(fromRow));
        },
        (rows) => rows.reduce((sum, record) => sum + bytesOf(record), 0),
      );
    },
    async usingProvider(workspace, provider) {
      const rows = await db
        .selectFrom("sandboxes")
        .selectAll("sandboxes")
        .innerJoin("sandbox_providers as used", "used.sandbox_id", "sandboxes.id")
        .where("used.workspace", "=", asText(workspace))
        .where("used.provider", "=", asText(provider))
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
      const updated: Command<bigint> = {
        statements: [
          statement("sandbox", update.returning("resource_version"), { expect: CONFLICT, returning: true }),
          ...(patch.labels === undefined ? [] : labelStatements(db, "sandbox", id, patch.labels, false)),
          ...(spec === undefined ? [] : providerStatements(db, id, spec.providers, false)),
        ],
        result: ([rows]) => BigInt(rows![0]!.resource_version as number),
      };
      const ends = patch.deletionAt !== undefined || (status !== undefined && ENDS.has(status.phase));
      return ends ? reserved(updated) : updated;
    },
    remove(id, expected) {
      let remove = db.deleteFrom("sandboxes").where("id", "=", id);
      if (expected !== "any") remove = remove.where("resource_version", "=", expected);
      const removal = command(
        statement("sandbox", remove, { expect: CONFLICT }),
        clearLabels(db, "sandbox", id),
        clearProviders(db, id),
        statement("policy", db.deleteFrom("policy_revisions").where("scope", "=", id)),
        statement("setting", db.deleteFrom("settings").where("scope", "=", id)),
        statement("setting", db.deleteFrom("setting_scopes").where("scope", "=", id)),
        statement("secret", db.deleteFrom("secrets").where("scope", "=", id)),
        statement("intent", db.deleteFrom("intents").where("subject", "=", id)),
        statement("operation", db.deleteFrom("config_operations").where("sandbox_id", "=", id)),
      );
      return reserved({ ...removal, result: () => records.forget(id) });
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

/**
 * Decoded rows by id and resource version, which every update raises: together they name one content, since ids are
 * never used again. So a change of one sandbox costs no decoding of the others.
 */
class DecodedSandboxes {
  readonly #records = new WeightedCache<SandboxRecord>(DECODED_SANDBOX_BYTES);
  readonly #bytes = new WeakMap<SandboxRecord, number>();

  of(row: Selectable<SandboxTable>): SandboxRecord {
    const known = this.#records.get(row.id)?.value;
    if (known !== undefined && known.resourceVersion === BigInt(row.resource_version)) return known;
    const record = deepFreeze(decode(row));
    const { spec, status, labels, annotations, driver_record, runtime_record } = row;
    const text = labels.length + annotations.length + driver_record.length + runtime_record.length;
    const bytes = FIXED_ROW_BYTES + spec.length + status.length + text;
    this.#bytes.set(record, bytes);
    this.#records.set(row.id, record, bytes);
    return record;
  }

  /** It was removed: nobody asks for it again. */
  forget(id: string): void {
    this.#records.delete(id);
  }

  bytesOf(record: SandboxRecord): number {
    return this.#bytes.get(record) ?? 0;
  }
}

/** Columns of limited length, roughly. */
const FIXED_ROW_BYTES = 512;

function decode(row: Selectable<SandboxTable>): SandboxRecord {
  const workloadTemplate =
    row.template_name === null ? undefined : { name: row.template_name, resourceVersion: row.template_version ?? "" };
  const reader = new RowReader();
  const fields = objectFields(row, reader);
  const spec = reader.read("spec", () => fromBinary(SandboxSpecSchema, row.spec), create(SandboxSpecSchema));
  const status = reader.read("status", () => fromBinary(SandboxStatusSchema, row.status), create(SandboxStatusSchema));
  const driverRecord = reader.read("driver record", () => JSON.parse(row.driver_record), null);
  const runtimeRecord = reader.read("runtime record", () => JSON.parse(row.runtime_record), null);
  return {
    ...fields,
    workspace: row.workspace,
    spec,
    status:
      reader.damaged.length === 0 ? status : damagedStatus(status, Number(row.phase), damagedText(reader.damaged)),
    hostKeyFingerprint: row.host_key_fingerprint,
    workloadTemplate,
    generation: BigInt(row.generation),
    driver: row.driver,
    driverRecord,
    runtimeRecord,
  };
}

/** It has failed, for whoever looks and for the gateway: it is ended where it runs, and can be deleted. */
function damagedStatus(status: SandboxStatus, stored: SandboxPhase, message: string): SandboxStatus {
  const facts = { type: "Ready", status: "False", reason: "RecordDamaged", message };
  const ready = create(SandboxConditionSchema, facts);
  const others = status.conditions.filter(({ type }) => type !== "Ready");
  const phase = stored === SandboxPhase.DELETING ? SandboxPhase.DELETING : SandboxPhase.ERROR;
  return create(SandboxStatusSchema, { ...status, phase, conditions: [...others, ready] });
}
