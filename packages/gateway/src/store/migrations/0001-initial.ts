import { type Kysely, sql } from "kysely";
import type { Migration } from "../migrate.ts";

/** Everything that the first release stores. */
export const initial: Migration = {
  version: 1,
  name: "initial",
  statements(db, bytes) {
    const object = <T extends string>(table: T) =>
      db.schema
        .createTable(table)
        .addColumn("id", "text", (column) => column.primaryKey())
        .addColumn("name", "text", (column) => column.notNull())
        .addColumn("labels", "text", (column) => column.notNull())
        .addColumn("annotations", "text", (column) => column.notNull())
        .addColumn("created_at", "bigint", (column) => column.notNull())
        .addColumn("deletion_at", "bigint")
        .addColumn("resource_version", "bigint", (column) => column.notNull());
    const text = (column: ColumnBuilder) => column.notNull();

    return [
      object("workspaces").addColumn("phase", "text", text).addUniqueConstraint("workspaces_name", ["name"]),

      object("sandboxes")
        .addColumn("workspace", "text", text)
        .addColumn("phase", "integer", text)
        .addColumn("spec", bytes, text)
        .addColumn("status", bytes, text)
        .addColumn("host_key_fingerprint", "text", text)
        .addColumn("template_name", "text")
        .addColumn("template_version", "text")
        .addColumn("generation", "bigint", text)
        .addColumn("driver", "text", text)
        .addColumn("driver_record", "text", text)
        .addColumn("runtime_record", "text", text)
        .addUniqueConstraint("sandboxes_workspace_name", ["workspace", "name"]),
      db.schema.createIndex("sandboxes_order").on("sandboxes").columns(["created_at", "name", "workspace", "id"]),
      db.schema
        .createIndex("sandboxes_workspace_order")
        .on("sandboxes")
        .columns(["workspace", "created_at", "name", "id"]),
      db.schema.createIndex("sandboxes_phase").on("sandboxes").columns(["phase"]),

      db.schema
        .createTable("sandbox_providers")
        .addColumn("sandbox_id", "text", text)
        .addColumn("workspace", "text", text)
        .addColumn("provider", "text", text)
        .addPrimaryKeyConstraint("sandbox_providers_key", ["sandbox_id", "provider"]),
      db.schema
        .createIndex("sandbox_providers_provider")
        .on("sandbox_providers")
        .columns(["workspace", "provider", "sandbox_id"]),

      db.schema
        .createTable("object_labels")
        .addColumn("object_type", "text", text)
        .addColumn("object_id", "text", text)
        .addColumn("key", "text", text)
        .addColumn("value", "text", text)
        .addPrimaryKeyConstraint("object_labels_key", ["object_type", "object_id", "key"]),

      db.schema
        .createTable("policy_revisions")
        .addColumn("scope", "text", text)
        .addColumn("version", "integer", text)
        .addColumn("hash", "text", text)
        .addColumn("policy", bytes, text)
        .addColumn("status", "text", text)
        .addColumn("load_error", "text", text)
        .addColumn("created_at", "bigint", text)
        .addColumn("loaded_at", "bigint")
        .addColumn("provenance", "text", text)
        .addPrimaryKeyConstraint("policy_revisions_key", ["scope", "version"]),

      db.schema
        .createTable("setting_scopes")
        .addColumn("scope", "text", (column) => column.primaryKey())
        .addColumn("revision", "bigint", text),
      db.schema
        .createTable("settings")
        .addColumn("scope", "text", text)
        .addColumn("key", "text", text)
        .addColumn("type", "text", text)
        .addColumn("value", "text", text)
        .addPrimaryKeyConstraint("settings_key", ["scope", "key"]),

      object("providers")
        .addColumn("workspace", "text", text)
        .addColumn("type", "text", text)
        .addColumn("config", "text", text)
        .addColumn("profile_workspace", "text", text)
        .addUniqueConstraint("providers_workspace_name", ["workspace", "name"]),
      db.schema.createIndex("providers_order").on("providers").columns(["created_at", "name", "workspace", "id"]),
      db.schema
        .createTable("provider_credentials")
        .addColumn("provider_id", "text", text)
        .addColumn("key", "text", text)
        .addColumn("version", "bigint", text)
        .addColumn("expires_at", "bigint")
        .addColumn("sealed", bytes, text)
        .addPrimaryKeyConstraint("provider_credentials_key", ["provider_id", "key"]),

      db.schema
        .createTable("secrets")
        .addColumn("scope", "text", text)
        .addColumn("name", "text", text)
        .addColumn("version", "bigint", text)
        .addColumn("sealed", bytes, text)
        .addPrimaryKeyConstraint("secrets_key", ["scope", "name"]),

      db.schema
        .createTable("admissions")
        .addColumn("caller", "text", text)
        .addColumn("method", "text", text)
        .addColumn("workspace", "text", text)
        .addColumn("request_id", "text", text)
        .addColumn("fingerprint", "text", text)
        .addColumn("state", "text", text)
        .addColumn("receipt", bytes)
        .addColumn("admitted_at", "bigint", text)
        .addColumn("completed_at", "bigint")
        .addPrimaryKeyConstraint("admissions_key", ["caller", "method", "workspace", "request_id"]),

      db.schema
        .createTable("hosts")
        .addColumn("id", "text", (column) => column.primaryKey())
        .addColumn("workspace", "text", text)
        .addColumn("sandbox_id", "text")
        .addColumn("secret_hash", bytes, text)
        .addColumn("state", "text", text)
        .addColumn("pid", "integer", text)
        .addColumn("start_time", "text", text)
        .addColumn("boot_id", "text", text)
        .addColumn("build", "text", text)
        .addColumn("created_at", "bigint", text)
        .addColumn("ended_at", "bigint"),

      db.schema
        .createTable("intents")
        .addColumn("subject", "text", (column) => column.primaryKey())
        .addColumn("kind", "text", text)
        .addColumn("operation_id", "text", text)
        .addColumn("step", "text", text)
        .addColumn("payload", "text", text)
        .addColumn("created_at", "bigint", text)
        .addColumn("updated_at", "bigint", text),

      db.schema
        .createTable("id_blocks")
        .addColumn("block", "integer", (column) => column.primaryKey())
        .addColumn("sandbox_id", "text", (column) => column.notNull().unique()),

      // The workspace that every installation has. Its id is fixed: two gateways made from nothing agree on it.
      sql`insert into workspaces (id, name, labels, annotations, created_at, deletion_at, resource_version, phase)
          values ('00000000-0000-4000-8000-000000000001', 'default', '{}', '{}', 0, null, 1, 'active')`,
    ].map((node) => node.compile(db));
  },
};

type ColumnBuilder = Parameters<
  NonNullable<Parameters<ReturnType<Kysely<unknown>["schema"]["createTable"]>["addColumn"]>[2]>
>[0];
