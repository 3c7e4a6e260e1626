import type { Kysely } from "kysely";
import { command, statement } from "./command.ts";
import type { Tables } from "./schema.ts";
import type { SecretRepository } from "./types.ts";

export function secretRepository(db: Kysely<Tables>): SecretRepository {
  return {
    async get(scope, name) {
      const row = await db
        .selectFrom("secrets")
        .select(["version", "sealed"])
        .where("scope", "=", scope)
        .where("name", "=", name)
        .executeTakeFirst();
      return row && { version: BigInt(row.version), sealed: row.sealed };
    },
    put(scope, name, version, sealed) {
      const upsert = db
        .insertInto("secrets")
        .values({ scope, name, version, sealed })
        .onConflict((conflict) =>
          conflict
            .columns(["scope", "name"])
            .doUpdateSet(({ ref }) => ({ version: ref("excluded.version"), sealed: ref("excluded.sealed") }))
            .where("secrets.version", "<", version),
        );
      return command(statement("secret", upsert, { expect: { rows: 1, otherwise: "store_conflict" } }));
    },
    remove(scope, name) {
      return command(statement("secret", db.deleteFrom("secrets").where("scope", "=", scope).where("name", "=", name)));
    },
  };
}
