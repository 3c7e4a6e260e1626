import type { Selectable } from "kysely";
import { type Command, type Statement, statement } from "./command.ts";
import type { ReadCache } from "./read-cache.ts";
import { asText } from "./rows.ts";
import type { SettingScopeTable } from "./schema.ts";
import type { Queries } from "./sqlite.ts";
import type { SettingsRepository, SettingValue } from "./types.ts";

/** A scope with one of its values; a scope without any has one row. */
type SettingRow = Pick<Selectable<SettingScopeTable>, "revision"> & {
  readonly [Column in "key" | "type" | "value"]: string | null;
};

/** `cache`: lasts until settings change. */
export function settingsRepository({ db, rows }: Queries, cache: ReadCache): SettingsRepository {
  /** Adds the statement that counts the scope's revision up and makes that the result. */
  const revised = (scope: string, change: Statement): Command<bigint> => {
    const count = db
      .insertInto("setting_scopes")
      .values({ scope, revision: 1 })
      .onConflict((conflict) =>
        conflict.column("scope").doUpdateSet((eb) => ({ revision: eb("setting_scopes.revision", "+", 1) })),
      )
      .returning("revision");
    return {
      statements: [change, statement("setting", count, { returning: true })],
      result: ([, rows]) => BigInt(rows![0]!.revision as number),
    };
  };
  // One statement, so that values and revision are of the same moment. Built once: that costs more than running it.
  const select = db
    .selectFrom("setting_scopes")
    .leftJoin("settings", "settings.scope", "setting_scopes.scope")
    .select(["setting_scopes.revision", "settings.key", "settings.type", "settings.value"])
    .where("setting_scopes.scope", "=", asText(""))
    .compile();
  return {
    get(scope) {
      return cache.read(
        `settings ${scope}`,
        async () => {
          const found: readonly SettingRow[] = rows(select, [scope]);
          const values = found.flatMap(({ key, type, value }) =>
            key === null || type === null || value === null ? [] : [[key, decode(type, value)] as const],
          );
          return { revision: BigInt(found[0]?.revision ?? 0), values: new Map(values) };
        },
        ({ values }) => [...values].reduce((sum, [key, value]) => sum + key.length + String(value).length, 0),
      );
    },
    set(scope, key, value) {
      const encoded = encode(value);
      const upsert = db
        .insertInto("settings")
        .values({ scope, key, ...encoded })
        .onConflict((conflict) =>
          conflict
            .columns(["scope", "key"])
            .doUpdateSet(({ ref }) => ({ type: ref("excluded.type"), value: ref("excluded.value") })),
        );
      return revised(scope, statement("setting", upsert));
    },
    remove(scope, key) {
      const remove = db.deleteFrom("settings").where("scope", "=", scope).where("key", "=", key);
      return revised(scope, statement("setting", remove));
    },
  };
}

function encode(value: SettingValue): { readonly type: string; readonly value: string } {
  if (typeof value === "boolean") return { type: "bool", value: value ? "true" : "false" };
  if (typeof value === "bigint") return { type: "int", value: value.toString() };
  return { type: "string", value };
}

function decode(type: string, value: string): SettingValue {
  if (type === "bool") return value === "true";
  if (type !== "int") return value;
  // No number: one that nothing has. The version of the gateway's policy is one, and then it is missing, and not unset.
  return /^-?\d{1,19}$/.test(value) ? BigInt(value) : -1n;
}
