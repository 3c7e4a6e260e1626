import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { ConfigSnapshotRevisionSchema, ProviderMutationReceiptSchema } from "@openshell/api";
import { type Selectable, sql } from "kysely";
import { type Command, command, type Statement, statement } from "./command.ts";
import { asText, optionalNumber } from "./rows.ts";
import type { ConfigOperationTable } from "./schema.ts";
import type { Queries } from "./sqlite.ts";
import { Templates } from "./templates.ts";
import {
  KEPT_OPERATIONS,
  MAX_OPERATIONS,
  type NewOperation,
  type OperationRecord,
  type OperationRepository,
  type OperationState,
} from "./types.ts";

const SUBJECT = "operation";
/** Ids in a statement whose text is kept. */
const MAX_TEMPLATE_IDS = 8;

export function operationRepository({ db, rows }: Queries): OperationRepository {
  const templates = new Templates();
  const all = () => db.selectFrom("config_operations").selectAll();
  // Asked at every outcome and observation: building a query costs more than running it.
  const selectPending = all()
    .where("sandbox_id", "=", asText(""))
    .where("state", "=", asText("pending"))
    .orderBy("position")
    .compile();
  const selectById = all().where("operation_id", "=", "").compile();
  const pending = () => db.updateTable("config_operations").where("state", "=", "pending");

  /** The next position is taken inside the transaction, so that two changes never share one. */
  const insert = (operation: NewOperation, at: number): Statement => {
    const { operationId, sandboxId, component, state, receipt } = operation;
    const target = toBinary(ConfigSnapshotRevisionSchema, operation.target);
    const given = receipt === undefined ? null : toBinary(ProviderMutationReceiptSchema, receipt);
    const error = operation.error ?? "";
    const completed = state === "pending" ? null : at;
    const query = () => sql`
      insert into config_operations (operation_id, sandbox_id, position, component, target, receipt, state, outcome, error, created_at, updated_at, completed_at)
      select ${operationId}, ${sandboxId}, newest.position + 1, ${component}, ${target}, ${given}, ${state}, 0, ${error}, ${at}, ${at}, ${completed}
      from (select coalesce(max(position), 0) as position from config_operations where sandbox_id = ${asText(sandboxId)}) as newest`;
    const parameters = [operationId, sandboxId, component, target, given, state, error, at, at, completed, sandboxId];
    return statement(
      SUBJECT,
      templates.of("insert", parameters, () => ({ compile: () => query().compile(db) })),
    );
  };

  const prune = (sandboxId: string): Statement => {
    const query = () => sql`
      delete from config_operations where sandbox_id = ${sandboxId} and position <=
        (select max(position) from config_operations where sandbox_id = ${asText(sandboxId)})
        - case when state = 'pending' then ${MAX_OPERATIONS} else ${KEPT_OPERATIONS} end`;
    const parameters = [sandboxId, sandboxId, MAX_OPERATIONS, KEPT_OPERATIONS];
    return statement(
      SUBJECT,
      templates.of("prune", parameters, () => ({ compile: () => query().compile(db) })),
    );
  };

  /** A change of those among them that are pending. */
  const change = (
    operationIds: readonly string[],
    columns: {
      readonly state?: OperationState;
      readonly outcome: number;
      readonly error: string;
      readonly updated_at: number;
      readonly completed_at?: number;
    },
  ): Command<void> => {
    if (operationIds.length === 0) return command();
    const query = () => pending().set(columns).where("operation_id", "in", operationIds);
    // Few are open at a time; a long list is no text worth keeping.
    if (operationIds.length > MAX_TEMPLATE_IDS) return command(statement(SUBJECT, query()));
    const parameters = [...Object.values(columns), "pending", ...operationIds];
    const key = `${Object.keys(columns).join(" ")} ${operationIds.length}`;
    return command(statement(SUBJECT, templates.of(key, parameters, query)));
  };

  return {
    async get(operationId) {
      const [row] = rows(selectById, [operationId]);
      return row && fromRow(row);
    },
    async pending(sandboxId) {
      return rows(selectPending, [sandboxId, "pending"]).map(fromRow);
    },
    async list(sandboxId, { limit }) {
      const found = await all()
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
      return change(operationIds, { state, outcome, error, updated_at: at, completed_at: at });
    },
    note(operationIds, { outcome, error }, at) {
      return change(operationIds, { outcome, error, updated_at: at });
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
