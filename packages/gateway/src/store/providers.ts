import { type Kysely, type Selectable, sql } from "kysely";
import { command, type Statement, statement } from "./command.ts";
import { RowReader } from "./damaged-row.ts";
import { deepFreeze } from "./frozen.ts";
import type { ReadCache } from "./read-cache.ts";
import {
  afterCursor,
  annotated,
  asText,
  CONFLICT,
  clearLabels,
  defined,
  labelConditions,
  labelStatements,
  objectColumns,
  objectFields,
  optionalNumber,
} from "./rows.ts";
import type { ProviderTable, Tables } from "./schema.ts";
import type { Queries } from "./sqlite.ts";
import type { CredentialFacts, ProviderRecord, ProviderRepository, SealedCredential } from "./types.ts";

/** `cache`: lasts until providers change. */
export function providerRepository({ db, rows }: Queries, cache: ReadCache): ProviderRepository {
  const complete = async (found: readonly Selectable<ProviderTable>[]): Promise<readonly ProviderRecord[]> => {
    if (found.length === 0) return [];
    const facts = await db
      .selectFrom("provider_credentials")
      .select(["provider_id", "key", "version", "expires_at"])
      .where(
        "provider_id",
        "in",
        found.map((row) => row.id),
      )
      .orderBy("key")
      .execute();
    const byProvider = Map.groupBy(facts, (fact) => fact.provider_id);
    return found.map((row) => {
      const reader = new RowReader();
      const fields = objectFields(row, reader);
      const config = reader.texts("config", row.config);
      return {
        ...fields,
        annotations: annotated(fields.annotations, reader),
        workspace: row.workspace,
        type: row.type,
        config,
        profileWorkspace: row.profile_workspace,
        credentials: new Map(
          (byProvider.get(row.id) ?? []).map((fact): [string, CredentialFacts] => [
            fact.key,
            { version: BigInt(fact.version), expiresAt: optionalNumber(fact.expires_at) },
          ]),
        ),
      };
    });
  };
  // Asked for every snapshot: building a query costs more than running it.
  const selectByName = db
    .selectFrom("providers")
    .selectAll()
    .where("workspace", "=", "")
    .where("name", "=", "")
    .compile();
  const selectCredentials = db
    .selectFrom("provider_credentials")
    .selectAll()
    .where("provider_id", "=", asText(""))
    .orderBy("key")
    .compile();
  return {
    async byId(id) {
      return (await complete(await db.selectFrom("providers").selectAll().where("id", "=", id).execute()))[0];
    },
    byName(workspace, name) {
      return cache.read(
        `provider ${JSON.stringify([workspace, name])}`,
        async () => {
          const found = rows(selectByName, [workspace, name]);
          return deepFreeze((await complete(found))[0]);
        },
        (record) => (record === undefined ? 0 : bytesOf(record)),
      );
    },
    async list({ workspace, labels, after, limit }) {
      let query = db.selectFrom("providers").selectAll();
      if (workspace !== undefined) query = query.where("workspace", "=", workspace);
      for (const condition of labelConditions("provider", "providers", labels)) query = query.where(condition);
      if (after !== undefined) query = query.where(afterCursor(after));
      const ordered = query.orderBy("created_at").orderBy("name").orderBy("workspace").orderBy("id").limit(limit);
      return complete(await ordered.execute());
    },
    credentials(providerId) {
      return cache.read(
        `credentials ${providerId}`,
        async () => {
          const credentials = rows(selectCredentials, [providerId]).map((row) => ({
            key: row.key,
            version: BigInt(row.version),
            expiresAt: optionalNumber(row.expires_at),
            sealed: row.sealed,
          }));
          return deepFreeze(credentials);
        },
        (credentials) =>
          credentials.reduce((sum, { key, sealed }) => sum + CREDENTIAL_BYTES + key.length + sealed.length, 0),
      );
    },
    create(record, credentials) {
      const insert = db.insertInto("providers").values({
        ...objectColumns(record),
        workspace: record.workspace,
        type: record.type,
        config: JSON.stringify(record.config),
        profile_workspace: record.profileWorkspace,
      });
      return command(
        statement("provider", insert),
        ...labelStatements(db, "provider", record.id, record.labels, true),
        ...credentials.map((credential) => putCredential(db, record.id, credential)),
      );
    },
    update(id, expected, patch, credentials = {}) {
      const columns = defined({
        labels: patch.labels && JSON.stringify(patch.labels),
        annotations: patch.annotations && JSON.stringify(patch.annotations),
        config: patch.config && JSON.stringify(patch.config),
        profile_workspace: patch.profileWorkspace,
        type: patch.type,
      });
      const update = db
        .updateTable("providers")
        .set((eb) => ({ ...columns, resource_version: eb("resource_version", "+", 1) }))
        .where("id", "=", id)
        .where("resource_version", "=", expected)
        .returning("resource_version");
      const stored = db.updateTable("provider_credentials").where("provider_id", "=", id);
      return {
        statements: [
          statement("provider", update, { expect: CONFLICT, returning: true }),
          ...(patch.labels === undefined ? [] : labelStatements(db, "provider", id, patch.labels, false)),
          ...(credentials.remove ?? []).map((key) =>
            statement(
              "credential",
              db.deleteFrom("provider_credentials").where("provider_id", "=", id).where("key", "=", key),
            ),
          ),
          ...[...(credentials.expirations ?? [])].map(([key, at]) =>
            statement("credential", stored.set({ expires_at: at ?? null }).where("key", "=", key)),
          ),
          ...(credentials.set ?? []).map((credential) => putCredential(db, id, credential)),
        ],
        result: ([rows]) => BigInt(rows![0]!.resource_version as number),
      };
    },
    remove(id, expected) {
      let remove = db.deleteFrom("providers").where("id", "=", id);
      if (expected !== "any") remove = remove.where("resource_version", "=", expected);
      // A name that stayed behind would give the next provider of that name to the sandbox, unasked.
      remove = remove.where(({ exists, not, selectFrom }) =>
        not(
          exists(
            selectFrom("sandbox_providers as used")
              .select("used.sandbox_id")
              .whereRef("used.workspace", "=", "providers.workspace")
              .whereRef("used.provider", "=", "providers.name"),
          ),
        ),
      );
      return command(
        statement("provider", remove, { expect: CONFLICT }),
        clearLabels(db, "provider", id),
        statement("credential", db.deleteFrom("provider_credentials").where("provider_id", "=", id)),
      );
    },
    unchanged(records) {
      const seen = db.selectFrom("providers").select("id");
      return command(
        ...records.map(({ id, resourceVersion }) =>
          statement("provider", seen.where("id", "=", id).where("resource_version", "=", resourceVersion), {
            expect: CONFLICT,
            returning: true,
          }),
        ),
      );
    },
    distinctKeys(workspace, provider) {
      const twice = sql`
        select own.sandbox_id from sandbox_providers own
        join providers this on this.workspace = own.workspace and this.name = own.provider
        join provider_credentials mine on mine.provider_id = this.id
        join sandbox_providers other on other.sandbox_id = own.sandbox_id and other.provider <> own.provider
        join providers that on that.workspace = other.workspace and that.name = other.provider
        join provider_credentials theirs on theirs.provider_id = that.id and theirs.key = mine.key
        where own.workspace = ${workspace} and own.provider = ${provider} limit 1`;
      return command(
        statement(
          "provider",
          { compile: () => twice.compile(db) },
          { expect: { rows: 0, otherwise: "store_conflict" }, returning: true },
        ),
      );
    },
  };
}

/** What a credential costs beside key and value, roughly. */
const CREDENTIAL_BYTES = 128;

function bytesOf({ labels, annotations, config, credentials }: ProviderRecord): number {
  const keys = [...credentials.keys()].reduce((sum, key) => sum + CREDENTIAL_BYTES + key.length, 0);
  return keys + JSON.stringify([labels, annotations, config]).length;
}

function putCredential(db: Kysely<Tables>, providerId: string, credential: SealedCredential): Statement {
  const columns = {
    version: credential.version,
    expires_at: credential.expiresAt ?? null,
    sealed: credential.sealed,
  };
  const upsert = db
    .insertInto("provider_credentials")
    .values({ provider_id: providerId, key: credential.key, ...columns })
    .onConflict((conflict) =>
      conflict.columns(["provider_id", "key"]).doUpdateSet(({ ref }) => ({
        version: ref("excluded.version"),
        expires_at: ref("excluded.expires_at"),
        sealed: ref("excluded.sealed"),
      })),
    );
  return statement("credential", upsert);
}
