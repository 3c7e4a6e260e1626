import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  SandboxConditionSchema,
  SandboxPhase,
  SandboxSpecSchema,
  type SandboxStatus,
  SandboxStatusSchema,
} from "@openshell/api/generated/openshell_pb.js";
import { SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import type { Kysely, Selectable } from "kysely";
import { type Command, command, reserved, type SqlValue, type Statement, statement } from "./command.ts";
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
import { sharedMessages } from "./shared-messages.ts";
import type { Queries } from "./sqlite.ts";
import { Templates } from "./templates.ts";
import type { SandboxPatch, SandboxRecord, SandboxRepository } from "./types.ts";

/** Bytes of the rows whose decoded form is kept; decoded they take several times as much. */
export const DECODED_SANDBOX_BYTES = 4 * 1024 * 1024;
/** Of decoded policies that are kept for the next sandbox with the same one. */
const DECODED_POLICY_BYTES = 1024 * 1024;

/** Phases on the way to a sandbox that does not run, and of one that does not. */
const ENDS: ReadonlySet<SandboxPhase> = new Set([
  SandboxPhase.STOPPING,
  SandboxPhase.STOPPED,
  SandboxPhase.COMPLETED,
  SandboxPhase.ERROR,
  SandboxPhase.DELETING,
]);

/** Records that it gives are shared and therefore frozen. */
export function sandboxRepository({ db, rows }: Queries, cache: ReadCache): SandboxRepository {
  const templates = new Templates();
  const records = new DecodedSandboxes();
  const fromRow = (row: Selectable<SandboxTable>): SandboxRecord => records.of(row);
  const bytesOf = (record: SandboxRecord | undefined): number => (record === undefined ? 0 : records.bytesOf(record));
  // Building a query costs more than running it.
  const all = db.selectFrom("sandboxes").selectAll();
  const selectById = all.where("id", "=", "").compile();
  const versions = db.selectFrom("sandboxes").select(["id", "resource_version"]);
  const versionById = versions.where("id", "=", "").compile();
  const versionByName = versions.where("workspace", "=", "").where("name", "=", "").compile();

  /** Reads no more than a version where what it names is known. */
  const read = async (query: typeof versionById, parameters: readonly string[]): Promise<SandboxRecord | undefined> => {
    const [version] = rows(query, parameters);
    if (version === undefined) return undefined;
    const known = records.known(version);
    if (known !== undefined) return known;
    const [row] = rows(selectById, [version.id]);
    return row && fromRow(row);
  };

  return {
    byId(id) {
      return cache.read(`sandbox id ${id}`, () => read(versionById, [id]), bytesOf);
    },
    byName(workspace, name) {
      const key = `sandbox ${JSON.stringify([workspace, name])}`;
      return cache.read(key, () => read(versionByName, [workspace, name]), bytesOf);
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
      // What is stored now is what is kept once that is durable: nobody changes it in between.
      const { spec, status } = deepFreeze(patch);
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
      const parameters = [...(Object.values(columns) as SqlValue[]), 1, id, ...(expected === "any" ? [] : [expected])];
      const update = templates.of(`${Object.keys(columns).join(" ")} ${expected === "any"}`, parameters, () => {
        const any = db
          .updateTable("sandboxes")
          .set((eb) => ({ ...columns, resource_version: eb("resource_version", "+", 1) }))
          .where("id", "=", id)
          .returning("resource_version");
        return expected === "any" ? any : any.where("resource_version", "=", expected);
      });
      const updated: Command<bigint> = {
        statements: [
          statement("sandbox", update, { expect: CONFLICT, returning: true }),
          ...(patch.labels === undefined ? [] : labelStatements(db, "sandbox", id, patch.labels, false)),
          ...(spec === undefined ? [] : providerStatements(db, id, spec.providers, false)),
        ],
        result: ([rows]) => {
          const version = BigInt(rows![0]!.resource_version as number);
          if (expected !== "any") records.updated(id, expected, patch, version);
          return version;
        },
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
  /** Sandboxes are created by the hundred, with the same policy: the largest part of what is kept of them. */
  readonly #policies = sharedMessages(SandboxPolicySchema, DECODED_POLICY_BYTES);

  known(row: Pick<Selectable<SandboxTable>, "id" | "resource_version">): SandboxRecord | undefined {
    const known = this.#records.get(row.id)?.value;
    return known?.resourceVersion === BigInt(row.resource_version) ? known : undefined;
  }

  of(row: Selectable<SandboxTable>): SandboxRecord {
    const known = this.known(row);
    if (known !== undefined) return known;
    const reader = new RowReader();
    const decoded = decode(row, reader);
    const { policy } = decoded.spec;
    if (policy !== undefined) decoded.spec.policy = this.#policies(toBinary(SandboxPolicySchema, policy));
    const record = deepFreeze(decoded);
    const { spec, status, labels, annotations, driver_record, runtime_record } = row;
    const text = labels.length + annotations.length + driver_record.length + runtime_record.length;
    const bytes = FIXED_ROW_BYTES + spec.length + status.length + text;
    this.#bytes.set(record, bytes);
    // What is read of a damaged row is not all that is in it: no change of it can be worked out.
    if (reader.damaged.length === 0) this.#records.set(row.id, record, bytes);
    return record;
  }

  /** A change was stored: what it made is known without reading it, where it says what it made as the database does. */
  updated(id: string, expected: bigint, patch: SandboxPatch, version: bigint): void {
    const before = this.#records.get(id)?.value;
    if (before?.resourceVersion !== expected || !Object.keys(patch).every((field) => UNALTERED.has(field))) return;
    const record = Object.freeze({ ...before, ...patch, resourceVersion: version });
    const bytes = this.bytesOf(before);
    this.#bytes.set(record, bytes);
    this.#records.set(id, record, bytes);
  }

  /** It was removed: nobody asks for it again. */
  forget(id: string): void {
    this.#records.delete(id);
  }

  bytesOf(record: SandboxRecord): number {
    return this.#bytes.get(record) ?? 0;
  }
}

/** Fields of a change that come out of the database as they went into it. */
const UNALTERED: ReadonlySet<string> = new Set<keyof SandboxPatch>(["status", "annotations"]);

/** Columns of limited length, roughly. */
const FIXED_ROW_BYTES = 512;

function decode(row: Selectable<SandboxTable>, reader: RowReader): SandboxRecord {
  const workloadTemplate =
    row.template_name === null ? undefined : { name: row.template_name, resourceVersion: row.template_version ?? "" };
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
