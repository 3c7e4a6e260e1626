import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { ConfigSnapshotRevisionSchema, ProviderMutationReceiptSchema } from "@openshell/api";
import { type Kysely, type Selectable, sql } from "kysely";
import { command, type Statement, statement } from "./command.ts";
import { asText, optionalNumber } from "./rows.ts";
import type { ConfigOperationTable, Tables } from "./schema.ts";
import {
  KEPT_OPERATIONS,
  MAX_OPERATIONS,
  type NewOperation,
  type OperationRecord,
  type OperationRepository,
  type OperationState,
} from "./types.ts";

const SUBJECT = "operation";

export function operationRepository(db: Kysely<Tables>): OperationRepository {
  const rows = () => db.selectFrom("config_operations").selectAll();
  // Asked at every outcome and observation: building a query costs more than running it.
  const selectPending = rows()
    .where("sandbox_id", "=", asText(""))
    .where("state", "=", asText("pending"))
    .orderBy("position")
    .compile();
  const pending = () => db.updateTable("config_operations").where("state", "=", "pending");

  /** The next position is taken inside the transaction, so that two changes never share one. */
  const insert = (operation: NewOperation, at: number): Statement => {
    const { operationId, sandboxId, component, state, receipt } = operation;
    const target = toBinary(ConfigSnapshotRevisionSchema, operation.target);
    const given = receipt === undefined ? null : toBinary(ProviderMutationReceiptSchema, receipt);
    const query = sql`
      insert into config_operations (operation_id, sandbox_id, position, component, target, receipt, state, outcome, error, created_at, updated_at, completed_at)
      select ${operationId}, ${sandboxId}, newest.position + 1, ${component}, ${target}, ${given}, ${state}, 0, ${operation.error ?? ""}, ${at}, ${at}, ${state === "pending" ? null : at}
      from (select coalesce(max(position), 0) as position from config_operations where sandbox_id = ${asText(sandboxId)}) as newest`;
    return statement(SUBJECT, { compile: () => query.compile(db) });
  };

  const prune = (sandboxId: string): Statement => {
    const query = sql`
      delete from config_operations where sandbox_id = ${sandboxId} and position <=
        (select max(position) from config_operations where sandbox_id = ${asText(sandboxId)})
        - case when state = 'pending' then ${MAX_OPERATIONS} else ${KEPT_OPERATIONS} end`;
    return statement(SUBJECT, { compile: () => query.compile(db) });
  };

  return {
    async get(operationId) {
      const row = await rows().where("operation_id", "=", operationId).executeTakeFirst();
      return row && fromRow(row);
    },
    async pending(sandboxId) {
      const found = await db.executeQuery<Selectable<ConfigOperationTable>>({
        ...selectPending,
        parameters: [sandboxId, "pending"],
      });
      return found.rows.map(fromRow);
    },
    async list(sandboxId, { limit }) {
      const found = await rows()
        .where("sandbox_id", "=", asText(sandboxId))
        .orderBy("position", "desc")
        .limit(limit)
        .execute();
      return found.map(fromRow);
    },
    record(operations, at) {
      const sandboxIds = new Set(operations.map(({ sandboxId }) => sandboxId));
      return command(...operations.map((operation) => insert(operation, at)), ...[...sandboxIds].map(prune));
    },
    finish(operationIds, state, { outcome, error }, at) {
      if (operationIds.length === 0) return command();
      const columns = { state, outcome, error, updated_at: at, completed_at: at };
      return command(statement(SUBJECT, pending().set(columns).where("operation_id", "in", operationIds)));
    },
    note(operationIds, { outcome, error }, at) {
      if (operationIds.length === 0) return command();
      const columns = { outcome, error, updated_at: at };
      return command(statement(SUBJECT, pending().set(columns).where("operation_id", "in", operationIds)));
    },
    finishAll(sandboxId, state, at, component) {
      let query = pending().set({ state, updated_at: at, completed_at: at }).where("sandbox_id", "=", sandboxId);
      if (component !== undefined) query = query.where("component", "=", component);
      return command(statement(SUBJECT, query));
    },
  };
}

function fromRow(row: Selectable<ConfigOperationTable>): OperationRecord {
  return {
    operationId: row.operation_id,
    sandboxId: row.sandbox_id,
    component: row.component as OperationRecord["component"],
    target: fromBinary(ConfigSnapshotRevisionSchema, row.target),
    receipt: row.receipt === null ? undefined : fromBinary(ProviderMutationReceiptSchema, row.receipt),
    state: row.state as OperationState,
    outcome: Number(row.outcome),
    error: row.error,
    createdAt: Number(row.created_at),
    updatedAt: Number(row.updated_at),
    completedAt: optionalNumber(row.completed_at),
    position: Number(row.position),
  };
}
