import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { constants, DatabaseSync, type StatementSync } from "node:sqlite";
import { create } from "@bufbuild/protobuf";
import { ConfigSnapshotRevisionSchema, SandboxPolicySchema, SandboxStatusSchema } from "@openshell/api";
import { type CompiledQuery, Kysely, SqliteDialect } from "kysely";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import type { Command, SqlValue } from "./command.ts";
import { operationRepository } from "./operations.ts";
import { policyRepository } from "./policies.ts";
import { providerRepository } from "./providers.ts";
import { ReadCache } from "./read-cache.ts";
import { sandboxRepository } from "./sandboxes.ts";
import type { Tables } from "./schema.ts";
import { settingsRepository } from "./settings.ts";
import { prepareDatabase, type Queries } from "./sqlite.ts";

type Values = (string | number | bigint | Uint8Array | null)[];

/** SQLite asks its authorizer while it plans a statement, and at no other time: https://www.sqlite.org/c3ref/set_authorizer.html. */
describe("statements of every delivery", () => {
  let folder: string;
  let database: DatabaseSync;
  let queries: Queries;
  let asked = 0;
  const prepared = new Map<string, StatementSync>();
  const prepare = (sql: string): StatementSync => {
    const known = prepared.get(sql);
    if (known !== undefined) return known;
    const made = database.prepare(sql);
    prepared.set(sql, made);
    return made;
  };
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), "openshell-planning-"));
    const path = join(folder, "gateway.db");
    prepareDatabase(path);
    database = new DatabaseSync(path);
    database.setAuthorizer(() => {
      asked += 1;
      return constants.SQLITE_OK;
    });
    const connection = {
      prepare: (sql: string) => ({
        reader: true,
        all: (values: readonly unknown[]) => prepare(sql).all(...(values as Values)),
        run: () => expect.unreachable(),
        iterate: () => expect.unreachable(),
      }),
      close: () => {},
    };
    queries = {
      db: new Kysely<Tables>({ dialect: new SqliteDialect({ database: connection }) }),
      rows: <Row>({ sql }: CompiledQuery<Row>, values: readonly SqlValue[]) =>
        prepare(sql).all(...(values as Values)) as Row[],
    };
  });
  afterEach(() => {
    prepared.clear();
    database.close();
    rmSync(folder, { recursive: true });
  });

  const write = ({ statements }: Command<unknown>): void => {
    for (const { sql, parameters } of statements) prepare(sql).all(...(parameters as Values));
  };
  const uncached = () => new ReadCache(() => undefined, 0);
  const at = 1;
  const revision = {
    hash: "h",
    policy: create(SandboxPolicySchema, {}),
    status: "pending",
    createdAt: at,
    provenance: {},
  } as const;
  const operation = (sandboxId: string, operationId: string) => ({
    operationId,
    sandboxId,
    component: "config" as const,
    target: create(ConfigSnapshotRevisionSchema, {}),
    state: "pending" as const,
  });
  const result = { outcome: 1, error: "" };

  it.each<[string, () => (id: string) => unknown]>([
    ["the newest policy", () => (id) => policyRepository(queries).latest(id)],
    ["a policy by its version", () => (id) => policyRepository(queries).get(id, id.length)],
    ["settings", () => (id) => settingsRepository(queries, uncached()).get(id)],
    ["open operations", () => (id) => operationRepository(queries).pending(id)],
    ["a sandbox", () => (id) => sandboxRepository(queries, uncached()).byId(id)],
    ["a sandbox by name", () => (id) => sandboxRepository(queries, uncached()).byName("default", id)],
    ["sandboxes of a provider", () => (id) => sandboxRepository(queries, uncached()).usingProvider("default", id)],
    ["a provider", () => (id) => providerRepository(queries, uncached()).byName("default", id)],
    ["credentials", () => (id) => providerRepository(queries, uncached()).credentials(id)],
    ["a policy's addition", () => (id) => write(policyRepository(queries).append({ scope: id, ...revision }))],
    ["a policy's status", () => (id) => write(policyRepository(queries).setStatus(id, 1, "loaded", at))],
    ["a setting", () => (id) => write(settingsRepository(queries, uncached()).set(id, "k", id))],
    ["an operation", () => (id) => write(operationRepository(queries).record([operation(id, id)], at))],
    ["an operation's end", () => (id) => write(operationRepository(queries).finish([id], "applied", result, at))],
    [
      "a sandbox's status",
      () => (id) =>
        write(sandboxRepository(queries, uncached()).update(id, 1n, { status: create(SandboxStatusSchema, {}) })),
    ],
  ])("%s: planned once", async (_, statements) => {
    const run = statements();
    await run("first");
    const once = asked;
    expect(once).toBeGreaterThan(0);
    for (const id of ["second", "third"]) await run(id);
    expect(asked).toBe(once);
  });

  it("a change of a policy read every revision before it", () => {
    const policies = policyRepository(queries);
    const updates = [
      policies.append({ scope: "s", ...revision }),
      policies.setStatus("s", 2, "loaded", at),
      policies.setStatus("s", 2, "failed", at, "why"),
    ].flatMap(({ statements }) => statements.filter(({ sql }) => sql.startsWith("update")));
    expect(updates).toHaveLength(4);
    for (const { sql, parameters } of updates) {
      const plan = prepare(`explain query plan ${sql}`).all(...(parameters as Values)) as { detail: string }[];
      // By the whole key, or by status: of those that are current there is one, perhaps two.
      for (const { detail } of plan) expect(detail).toMatch(/\(scope=\? AND (status|version)=\?/);
    }
  });
});
