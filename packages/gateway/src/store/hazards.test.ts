import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { SCHEMA_VERSION } from "./migrate.ts";
import { Reserve } from "./reserve.ts";
import { prepareDatabase } from "./sqlite.ts";
import { openStore } from "./store.ts";
import { MAX_WAITING_WRITES } from "./writer.ts";
import { type Batch, type BatchOutcome, WriterCore } from "./writer-core.ts";

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-store-"));
  path = join(folder, "gateway.db");
});
afterEach(() => rmSync(folder, { recursive: true }));

const moduleUrl = (name: string) => JSON.stringify(new URL(name, import.meta.url).href);

/** Runs a module of a few lines in a process of its own. */
const child = (source: string, prepare = "") =>
  spawn("/bin/sh", ["-c", `${prepare} exec "$@"`, "sh", process.execPath, "--input-type=module", "-e", source]);

describe("the store's hazards", () => {
  it("loses nothing acknowledged and keeps no half of a write when it is killed while writing", async () => {
    for (let round = 0; round < 4; round++) {
      const writer = child(`
        import { openStore } from ${moduleUrl("./store.ts")};
        import { writeSync } from "node:fs";
        const store = await openStore(${JSON.stringify(path)});
        const intent = (subject) => ({ subject, kind: "create", operationId: "o", step: "s", payload: null });
        for (let index = 0; ; index++) {
          const id = "${round}-" + index;
          await Promise.all([0, 1, 2].map(async (part) => {
            const subject = id + "-" + part;
            await store.write(store.intents.put(intent(subject), 1), store.settings.set(subject, "k", "v"), store.intents.put(intent(subject + "-second"), 1));
            writeSync(1, subject + "\\n");
          }));
        }`);
      let said = "";
      writer.stdout.on("data", (data) => (said += data));
      await once(writer.stdout, "data");
      await sleep(30 + round * 25);
      const ended = once(writer, "exit");
      writer.kill("SIGKILL");
      await ended;

      await using store = await openStore(path);
      const acknowledged = said.split("\n").slice(0, -1);
      expect(acknowledged.length).toBeGreaterThan(2);
      const subjects = new Set((await store.intents.all()).map((intent) => intent.subject));
      for (const subject of acknowledged) expect(subjects).toContain(subject);
      for (const subject of subjects) {
        const first = subject.replace(/-second$/, "");
        expect([subjects.has(first), subjects.has(`${first}-second`)]).toEqual([true, true]);
        expect((await store.settings.get(first)).values.get("k")).toBe("v");
      }
    }
  });

  it("never says that the database is locked, whatever else reads and writes it", async () => {
    await using store = await openStore(path);
    // A backup tool that holds a read transaction, and one that takes the write lock for a while.
    const other = child(`
      import { DatabaseSync } from "node:sqlite";
      import { writeSync } from "node:fs";
      const reader = new DatabaseSync(${JSON.stringify(path)}), writer = new DatabaseSync(${JSON.stringify(path)}, { timeout: 5000 });
      reader.exec("begin"); reader.prepare("select count(*) from intents").get();
      for (let index = 0; index < 4; index++) {
        writer.exec("begin immediate");
        writeSync(1, "locked");
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 120);
        writer.exec("commit");
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 150);
      }`);
    const exited = once(other, "exit");
    await once(other.stdout, "data");
    let writes = 0;
    let running = true;
    const write = async (): Promise<void> => {
      while (running) {
        const subject = randomUUID();
        await store.write(
          store.intents.put({ subject, kind: "k", operationId: "o", step: "s", payload: "x".repeat(500) }, 1),
        );
        expect(await store.intents.get(subject)).toBeDefined();
        writes++;
      }
    };
    const writers = Array.from({ length: 16 }, write);
    expect(await exited).toEqual([0, null]);
    running = false;
    await Promise.all(writers);
    expect(writes).toBeGreaterThan(16);
    expect((await store.intents.all()).length).toBe(writes);
  });

  it("names what is in the way when another program never lets go of the database", () => {
    prepareDatabase(path);
    const core = new WriterCore(path, undefined, 20);
    const other = new DatabaseSync(path);
    const batch: Batch = [{ sql: "delete from intents", parameters: [], subject: "intent", returning: false }];
    other.exec("begin immediate");
    expect(core.run([batch])).toMatchObject([{ ok: false, code: "store_busy" }]);
    other.exec("commit");
    expect(core.run([batch])).toMatchObject([{ ok: true }]);
    other.close();
    core.close();
  });

  it("keeps the log of writes small while readers come and go", async () => {
    await using store = await openStore(path);
    for (let round = 0; round < 40; round++) {
      const puts = Array.from({ length: 50 }, (_, index) =>
        store.write(
          store.intents.put(
            { subject: `s${index}`, kind: "k", operationId: "o", step: "s", payload: "x".repeat(4000) },
            round,
          ),
        ),
      );
      await Promise.all([...puts, store.intents.all()]);
    }
    expect(statSync(`${path}-wal`).size).toBeLessThan(12 * 1024 * 1024);
  });

  it("refuses writes beyond the queue's limit and does the rest", async () => {
    await using store = await openStore(path);
    const writes = Array.from({ length: MAX_WAITING_WRITES + 100 }, (_, index) =>
      store.write(store.settings.set("s", "k", BigInt(index))),
    );
    const results = await Promise.allSettled(writes);
    const refused = results.filter((result) => result.status === "rejected");
    expect(refused).toHaveLength(100);
    expect(refused[0]).toMatchObject({ reason: { code: "store_overloaded" } });
    expect((await store.settings.get("s")).revision).toBe(BigInt(MAX_WAITING_WRITES));
  });

  it("refuses more bytes than it can hold, and stores what it took in several groups", async () => {
    await using store = await openStore(path);
    const value = new Uint8Array(3 * 1024 * 1024);
    const writes = Array.from({ length: 25 }, (_, index) =>
      store.write(store.secrets.put("s", `k${index}`, 1n, value)),
    );
    const results = await Promise.allSettled(writes);
    const taken = results.filter((result) => result.status === "fulfilled").length;
    expect(taken).toBe(21);
    expect((await store.secrets.get("s", "k20"))?.sealed).toHaveLength(value.length);
    expect(await store.secrets.get("s", "k24")).toBeUndefined();
  });

  it("refuses a database of a newer build, and one that is none", async () => {
    prepareDatabase(path);
    const database = new DatabaseSync(path);
    database.exec(`insert into schema_migrations values (${SCHEMA_VERSION + 1}, 'future', 0)`);
    database.close();
    await expect(openStore(path)).rejects.toMatchObject({ code: "store_too_new" });
    const garbage = join(folder, "garbage.db");
    writeFileSync(garbage, "this is not a database at all, not even a little");
    await expect(openStore(garbage)).rejects.toMatchObject({ code: "store_unusable" });
  });
});

describe("WriterCore", () => {
  const insert = (subject: string): Batch[number] => ({
    sql: "insert into intents values (?, 'k', 'o', 's', ?, 1, 1)",
    parameters: [subject, "x".repeat(8_000)],
    returning: false,
    subject: "intent",
  });
  const count = (core: WriterCore): number => {
    const sql = "select count(*) as n from intents";
    const [outcome] = core.run([[{ sql, parameters: [], returning: true, subject: "" }]]);
    return outcome!.ok ? Number(outcome!.rows[0]![0]!.n) : -1;
  };

  it("undoes a failing batch whole and commits the others of its group", () => {
    prepareDatabase(path);
    const core = new WriterCore(path);
    const outcomes = core.run([
      [insert("a")],
      [insert("b"), insert("a")],
      [insert("c")],
      [{ ...insert("d"), sql: "nonsense" }],
    ]);
    expect(outcomes.map((outcome) => (outcome.ok ? "ok" : outcome.code))).toEqual([
      "ok",
      "store_already_exists",
      "ok",
      "store_write_failed",
    ]);
    expect(count(core)).toBe(2);
    core.close();
  });

  it("refused writes for want of a descriptor for a savepoint's journal", async () => {
    const writer = child(
      `
      import { openSync } from "node:fs";
      import { prepareDatabase } from ${moduleUrl("./sqlite.ts")};
      import { WriterCore } from ${moduleUrl("./writer-core.ts")};
      const path = ${JSON.stringify(path)};
      prepareDatabase(path);
      const core = new WriterCore(path);
      const statement = (sql) => ({ sql, parameters: [], subject: "" });
      core.run([[statement("create table t (id integer primary key, text text)")]]);
      const rows = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000)";
      core.run([[statement(rows + " insert into t select i, hex(zeroblob(500)) from n")]]);
      try {
        for (;;) openSync("/dev/null");
      } catch (error) {
        console.log(error.code);
      }
      const [outcome] = core.run([[statement("update t set text = text || 'x'")]]);
      console.log(outcome.ok ? "stored" : outcome.detail);
    `,
      "ulimit -n 64 &&",
    );
    let output = "";
    writer.stdout.on("data", (chunk) => (output += chunk));
    writer.stderr.on("data", (chunk) => (output += chunk));
    await once(writer, "close");
    expect(output).toBe("EMFILE\nstored\n");
  });

  it("says no to a write that finds the disk full, and works again when there is room", () => {
    prepareDatabase(path);
    const core = new WriterCore(path);
    const pages = (limit: number): Batch => [
      { sql: `pragma max_page_count = ${limit}`, parameters: [], returning: true, subject: "" },
    ];
    core.run([pages(60)]);
    let stored = 0;
    for (let index = 0; index < 100; index++) {
      const [outcome] = core.run([[insert(`s${index}`)]]);
      if (outcome!.ok) stored++;
      else expect(outcome).toMatchObject({ code: "store_full" });
    }
    expect(stored).toBeGreaterThan(0);
    expect(stored).toBeLessThan(100);
    expect(count(core)).toBe(stored);
    core.run([pages(100_000)]);
    expect(core.run([[insert("later")]])[0]).toMatchObject({ ok: true });
    expect(count(core)).toBe(stored + 1);
    core.close();
  });

  it("stores what ends a sandbox in the space that is kept for it, and nothing else", () => {
    prepareDatabase(path);
    const file = join(folder, "disk-reserve");
    const reserve = new Reserve(file, 3 * 1024 * 1024);
    let limit = 60;
    // The page limit plays the disk: each part of the reserve is so many pages more.
    const kept = {
      take: () => reserve.take(),
      give: () => {
        if (!reserve.give()) return false;
        limit += 20;
        expect(core.run([pages(limit)])[0]).toMatchObject({ ok: true });
        return true;
      },
    } as Reserve;
    const core = new WriterCore(path, undefined, undefined, kept);
    const pages = (most: number): Batch => [
      { sql: `pragma max_page_count = ${most}`, parameters: [], returning: true, subject: "" },
    ];
    expect(core.replenish()).toBe(true);
    expect(statSync(file).blocks * 512).toBeGreaterThanOrEqual(3 * 1024 * 1024);
    core.run([pages(limit)]);
    const ending = (id: string): Batch => [{ ...insert(id), reserve: true }];
    let last: BatchOutcome | undefined;
    for (let index = 0; index < 100 && last?.ok !== false; index++) [last] = core.run([[insert(`s${index}`)]]);
    expect(last).toMatchObject({ ok: false, code: "store_full" });
    expect([core.gaveReserve, statSync(file).size]).toEqual([false, 3 * 1024 * 1024]);

    const [first, second] = core.run([[insert("more")], ending("end")]);
    expect([first, second]).toMatchObject([{ ok: false, code: "store_full" }, { ok: true }]);
    expect([core.gaveReserve, statSync(file).size]).toEqual([true, 2 * 1024 * 1024]);

    // It has an end, and then says so.
    let refused: BatchOutcome | undefined;
    for (let index = 0; index < 200 && refused?.ok !== false; index++) [refused] = core.run([ending(`f${index}`)]);
    expect(refused).toMatchObject({ ok: false, code: "store_full" });
    expect(statSync(file).size).toBe(0);
    expect(core.replenish()).toBe(true);
    expect([core.gaveReserve, statSync(file).size]).toEqual([false, 3 * 1024 * 1024]);
    core.close();
  });
});
