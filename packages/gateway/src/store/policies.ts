import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { type SandboxPolicy, SandboxPolicySchema } from "@openshell/api/generated/sandbox_pb.js";
import { type Selectable, sql } from "kysely";
import { command, statement } from "./command.ts";
import { damagedText, RowReader } from "./damaged-row.ts";
import { asText, optionalNumber } from "./rows.ts";
import type { PolicyTable } from "./schema.ts";
import { sharedMessages } from "./shared-messages.ts";
import type { Queries } from "./sqlite.ts";
import { Templates } from "./templates.ts";
import type { PolicyRepository, PolicyRevision, PolicyStatusName } from "./types.ts";

/** What became of a policy, which is no change of it. */
const STATUS = "policy status";
/** Of decoded policies that are kept. */
const DECODED_POLICY_BYTES = 4 * 1024 * 1024;

/** Policies that it gives are shared and therefore frozen. */
export function policyRepository({ db, rows }: Queries): PolicyRepository {
  const templates = new Templates();
  /** Read for every snapshot, and the same for many sandboxes. */
  const policyOf = sharedMessages(SandboxPolicySchema, DECODED_POLICY_BYTES);
  const all = db.selectFrom("policy_revisions").selectAll();
  const newest = (scope: string) => all.where("scope", "=", asText(scope)).orderBy("version", "desc");
  // Asked for every snapshot: building a query costs more than running it.
  const selectLatest = newest("").limit(sql.lit(1)).compile();
  const selectVersion = all.where("scope", "=", "").where("version", "=", 0).compile();
  const supersede = (scope: string) =>
    db
      .updateTable("policy_revisions")
      .set({ status: "superseded" })
      .where("scope", "=", scope)
      .where("status", "in", CURRENT);
  return {
    async latest(scope) {
      const [row] = rows(selectLatest, [scope]);
      return row && fromRow(row, policyOf);
    },
    async get(scope, version) {
      const [row] = rows(selectVersion, [scope, version]);
      return row && fromRow(row, policyOf);
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
      const provenance = JSON.stringify(revision.provenance);
      const { hash, status } = revision;
      const insert = () => sql`
        insert into policy_revisions (scope, version, hash, policy, status, load_error, created_at, loaded_at, provenance)
        select ${scope}, latest.version + 1, ${hash}, ${policy}, ${status}, '', ${createdAt}, ${loadedAt}, ${provenance}
        from (select coalesce(max(version), 0) as version from policy_revisions where scope = ${scope}) as latest
        where ${expectedLatest === undefined ? sql`1 = 1` : sql`latest.version = ${expectedLatest}`}
        returning version`;
      const expected = expectedLatest === undefined ? [] : [expectedLatest];
      const parameters = [scope, hash, policy, status, createdAt, loadedAt, provenance, scope, ...expected];
      return {
        statements: [
          statement(
            "policy",
            templates.of("supersede", ["superseded", scope, ...CURRENT], () => supersede(scope)),
          ),
          statement(
            "policy",
            templates.of(`append ${expected.length}`, parameters, () => ({ compile: () => insert().compile(db) })),
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
      const columns = { status, load_error: error, ...(status === "loaded" ? { loaded_at: at } : {}) };
      const update = templates.of(`status ${status}`, [...Object.values(columns), scope, version], () =>
        db.updateTable("policy_revisions").set(columns).where("scope", "=", scope).where("version", "=", version),
      );
      const older = templates.of("older", ["superseded", scope, ...CURRENT, version], () =>
        supersede(scope).where("version", "<", version),
      );
      return command(...(status === "loaded" ? [statement(STATUS, older)] : []), statement(STATUS, update));
    },
  };
}

/** States of a revision that a later one takes the place of. */
const CURRENT = ["pending", "loaded"] as const satisfies readonly PolicyStatusName[];

/** For people who look: a revision whose row is damaged is one that cannot be in force. Whoever needs its rules fails. */
function listed(row: Selectable<PolicyTable>): PolicyRevision {
  const reader = new RowReader();
  const provenance = reader.texts("provenance", row.provenance);
  const policy = reader.read("policy", () => fromBinary(SandboxPolicySchema, row.policy), create(SandboxPolicySchema));
  const facts = { ...fromRow({ ...row, provenance: "{}" }, () => policy), provenance };
  return reader.damaged.length === 0 ? facts : { ...facts, status: "failed", loadError: damagedText(reader.damaged) };
}

function fromRow(row: Selectable<PolicyTable>, policyOf: (bytes: Uint8Array) => SandboxPolicy): PolicyRevision {
  return {
    scope: row.scope,
    version: Number(row.version),
    hash: row.hash,
    policy: policyOf(row.policy),
    status: row.status as PolicyStatusName,
    loadError: row.load_error,
    createdAt: Number(row.created_at),
    loadedAt: optionalNumber(row.loaded_at),
    provenance: JSON.parse(row.provenance),
  };
}
