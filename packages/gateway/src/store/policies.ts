import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import { type Kysely, type Selectable, sql } from "kysely";
import { command, statement } from "./command.ts";
import { damagedText, RowReader } from "./damaged-row.ts";
import { asText, optionalNumber } from "./rows.ts";
import type { PolicyTable, Tables } from "./schema.ts";
import type { PolicyRepository, PolicyRevision, PolicyStatusName } from "./types.ts";

/** What became of a policy, which is no change of it. */
const STATUS = "policy status";

export function policyRepository(db: Kysely<Tables>): PolicyRepository {
  const newest = (scope: string) =>
    db.selectFrom("policy_revisions").selectAll().where("scope", "=", asText(scope)).orderBy("version", "desc");
  // Asked for every snapshot: building a query costs more than running it.
  const selectLatest = newest("").limit(sql.lit(1)).compile();
  const supersede = (scope: string) =>
    db
      .updateTable("policy_revisions")
      .set({ status: "superseded" })
      .where("scope", "=", scope)
      .where("status", "in", ["pending", "loaded"]);
  return {
    async latest(scope) {
      const { rows } = await db.executeQuery<Selectable<PolicyTable>>({ ...selectLatest, parameters: [scope] });
      return rows[0] && fromRow(rows[0]);
    },
    async get(scope, version) {
      const row = await newest(scope).where("version", "=", version).executeTakeFirst();
      return row && fromRow(row);
    },
    async list(scope, { before, limit }) {
      let query = newest(scope).limit(limit);
      if (before !== undefined) query = query.where("version", "<", before);
      return (await query.execute()).map(listed);
    },
    append(revision) {
      const { scope, expectedLatest, createdAt } = revision;
      const policy = toBinary(SandboxPolicySchema, revision.policy);
      const loadedAt = revision.status === "loaded" ? createdAt : null;
      // The next number is taken inside the transaction; a caller that built on another revision touches no row.
      const insert = sql`
        insert into policy_revisions (scope, version, hash, policy, status, load_error, created_at, loaded_at, provenance)
        select ${scope}, latest.version + 1, ${revision.hash}, ${policy}, ${revision.status}, '', ${createdAt}, ${loadedAt}, ${JSON.stringify(revision.provenance)}
        from (select coalesce(max(version), 0) as version from policy_revisions where scope = ${scope}) as latest
        where ${expectedLatest === undefined ? sql`1 = 1` : sql`latest.version = ${expectedLatest}`}
        returning version`;
      return {
        statements: [
          statement("policy", supersede(scope)),
          statement(
            "policy",
            { compile: () => insert.compile(db) },
            {
              expect: { rows: 1, otherwise: "store_conflict" },
              returning: true,
            },
          ),
        ],
        result: ([, rows]) => Number(rows![0]!.version),
      };
    },
    setStatus(scope, version, status, at, error = "") {
      const update = db
        .updateTable("policy_revisions")
        .set({ status, load_error: error, ...(status === "loaded" ? { loaded_at: at } : {}) })
        .where("scope", "=", scope)
        .where("version", "=", version);
      const older = supersede(scope).where("version", "<", version);
      return command(...(status === "loaded" ? [statement(STATUS, older)] : []), statement(STATUS, update));
    },
  };
}

/** For people who look: a revision whose row is damaged is one that cannot be in force. Whoever needs its rules fails. */
function listed(row: Selectable<PolicyTable>): PolicyRevision {
  const reader = new RowReader();
  const provenance = reader.texts("provenance", row.provenance);
  const policy = reader.read("policy", () => fromBinary(SandboxPolicySchema, row.policy), create(SandboxPolicySchema));
  const facts = { ...fromRow({ ...row, policy: NONE, provenance: "{}" }), policy, provenance };
  return reader.damaged.length === 0 ? facts : { ...facts, status: "failed", loadError: damagedText(reader.damaged) };
}

const NONE = new Uint8Array();

function fromRow(row: Selectable<PolicyTable>): PolicyRevision {
  return {
    scope: row.scope,
    version: Number(row.version),
    hash: row.hash,
    policy: fromBinary(SandboxPolicySchema, row.policy),
    status: row.status as PolicyStatusName,
    loadError: row.load_error,
    createdAt: Number(row.created_at),
    loadedAt: optionalNumber(row.loaded_at),
    provenance: JSON.parse(row.provenance),
  };
}
