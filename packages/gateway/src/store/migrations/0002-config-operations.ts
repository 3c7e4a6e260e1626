import type { Migration } from "../migrate.ts";

/** What became of changes of configuration: one row a change and sandbox. */
export const configOperations: Migration = {
  version: 2,
  name: "config-operations",
  statements(db, bytes) {
    return [
      db.schema
        .createTable("config_operations")
        .addColumn("operation_id", "text", (column) => column.primaryKey())
        .addColumn("sandbox_id", "text", (column) => column.notNull())
        .addColumn("position", "bigint", (column) => column.notNull())
        .addColumn("component", "text", (column) => column.notNull())
        .addColumn("target", bytes, (column) => column.notNull())
        .addColumn("receipt", bytes)
        .addColumn("state", "text", (column) => column.notNull())
        .addColumn("outcome", "integer", (column) => column.notNull())
        .addColumn("error", "text", (column) => column.notNull())
        .addColumn("created_at", "bigint", (column) => column.notNull())
        .addColumn("updated_at", "bigint", (column) => column.notNull())
        .addColumn("completed_at", "bigint")
        .addUniqueConstraint("config_operations_position", ["sandbox_id", "position"]),
      db.schema
        .createIndex("config_operations_state")
        .on("config_operations")
        .columns(["sandbox_id", "state", "position"]),
    ].map((query) => query.compile());
  },
};
