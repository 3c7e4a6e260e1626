import { randomUUID } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { clone, create } from "@bufbuild/protobuf";
import { SandboxPhase, SandboxSpecSchema, SandboxStatusSchema } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Commits, changesOf } from "./commits.ts";
import { databaseVersion, FOREIGN_CHECK_MS, ForeignCommits, ReadCache, WeightedCache } from "./read-cache.ts";
import { sandboxRepository } from "./sandboxes.ts";
import { openReader, type Reader } from "./sqlite.ts";
import { openStore } from "./store.ts";
import type { NewSandbox, SandboxPatch, Store } from "./types.ts";

let folder: string;
let store: Store;
let reader: Reader;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "openshell-read-cache-"));
  const path = join(folder, "gateway.db");
  store = await openStore(path);
  reader = openReader(path);
});

afterEach(async () => {
  reader[Symbol.dispose]();
  await store[Symbol.asyncDispose]();
  await rm(folder, { recursive: true });
});

function sandbox(name: string, createdAt = 1000): NewSandbox {
  return {
    id: randomUUID(),
    name,
    workspace: "default",
    labels: {},
    annotations: {},
    createdAt,
    spec: create(SandboxSpecSchema, { command: ["true"], environment: { A: "1" } }),
    status: create(SandboxStatusSchema, { phase: SandboxPhase.PROVISIONING, conditions: [{ type: "Ready" }] }),
    hostKeyFingerprint: "",
    workloadTemplate: undefined,
    generation: 1n,
    driver: "local",
    driverRecord: { pid: 7 },
    runtimeRecord: null,
  };
}

/** The same reads without anything kept. */
const fresh = () => {
  let changes = 0;
  return sandboxRepository(reader, new ReadCache(() => ++changes, 0));
};

/** Numbers from 0 to 1 that are the same in each run. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

describe("reads that are kept", () => {
  it("are given again without asking the database, and are the same records", async () => {
    const record = sandbox("box");
    await store.write(store.sandboxes.create(record));
    const first = await store.sandboxes.byName("default", "box");
    const listed = await store.sandboxes.list({ workspace: "default", limit: 10 });
    expect(await store.sandboxes.byName("default", "box")).toBe(first);
    expect(await store.sandboxes.byId(record.id)).toBe(first);
    expect(await store.sandboxes.list({ workspace: "default", limit: 10 })).toBe(listed);
    expect(listed[0]).toBe(first);
    expect(await store.workspaces.get("default")).toBe(await store.workspaces.get("default"));
  });

  it("keep the decoded records of sandboxes that a write did not change", async () => {
    const [one, two] = [sandbox("one"), sandbox("two")];
    await store.write(store.sandboxes.create(one), store.sandboxes.create(two));
    const before = await store.sandboxes.list({ limit: 10 });
    await store.write(store.sandboxes.update(two.id, "any", { hostKeyFingerprint: "new" }));
    const after = await store.sandboxes.list({ limit: 10 });
    expect(after[0]).toBe(before[0]);
    expect(after[1]).toMatchObject({ hostKeyFingerprint: "new", resourceVersion: 2n });
    expect(before[1]).toMatchObject({ hostKeyFingerprint: "", resourceVersion: 1n });
  });

  it("share the policy that sandboxes were created with", async () => {
    const policy = {
      version: 1,
      networkPolicies: { a: { name: "a", endpoints: [{ host: "one.example.com", port: 443 }] } },
    };
    const unlike = {
      version: 1,
      networkPolicies: { a: { name: "a", endpoints: [{ host: "two.example.com", port: 443 }] } },
    };
    const created = [policy, policy, unlike].map((one, index) => ({
      ...sandbox(`box-${index}`),
      spec: create(SandboxSpecSchema, { command: [`command ${index}`], policy: one }),
    }));
    await store.write(...created.map((one) => store.sandboxes.create(one)));
    const specs = (await store.sandboxes.list({ limit: 10 })).map(({ spec }) => spec);
    expect(specs).toEqual(created.map(({ spec }) => spec));
    expect(specs[1]!.policy).toBe(specs[0]!.policy);
    expect(Object.isFrozen(specs[0]!.policy!.networkPolicies["a"]!.endpoints[0])).toBe(true);
  });

  it("show every change of every field as soon as its write is acknowledged", async () => {
    const record = sandbox("box");
    await store.write(store.sandboxes.create(record));
    const patches: readonly SandboxPatch[] = [
      { labels: { a: "1" } },
      { annotations: { note: "x" } },
      { deletionAt: 5 },
      { spec: create(SandboxSpecSchema, { command: ["false"] }) },
      { status: create(SandboxStatusSchema, { phase: SandboxPhase.READY }) },
      { hostKeyFingerprint: "SHA256:x" },
      { generation: 9n },
      { driver: "other" },
      { driverRecord: { pid: 8 } },
      { runtimeRecord: { host: "h" } },
    ];
    for (const patch of patches) {
      await store.sandboxes.byId(record.id);
      await store.sandboxes.byName("default", "box");
      await store.sandboxes.list({ limit: 10 });
      await store.write(store.sandboxes.update(record.id, "any", patch));
      const now = await fresh().byId(record.id);
      expect(now).toMatchObject(patch);
      expect(await store.sandboxes.byId(record.id)).toEqual(now);
      expect(await store.sandboxes.byName("default", "box")).toEqual(now);
      expect(await store.sandboxes.list({ limit: 10 })).toEqual([now]);
    }
    await store.write(store.sandboxes.remove(record.id, "any"));
    expect(await store.sandboxes.byId(record.id)).toBeUndefined();
    expect(await store.sandboxes.byName("default", "box")).toBeUndefined();
    expect(await store.sandboxes.list({ limit: 10 })).toEqual([]);
  });

  it("know what a change of a known version made as the database does", async () => {
    const record = sandbox("box");
    await store.write(store.sandboxes.create(record));
    const conditions = [
      { type: "Ready", status: "False", reason: "Waits", message: "für später", lastTransitionTime: { seconds: 5n } },
      { type: "", status: "True" },
    ];
    const statuses = [
      create(SandboxStatusSchema, { phase: SandboxPhase.READY, conditions, configurationAdmission: { error: "" } }),
      create(SandboxStatusSchema, { conditions: [], currentPolicyVersion: 7, provisioning: { attemptId: "2" } }),
      create(SandboxStatusSchema, {}),
    ];
    const patches: readonly SandboxPatch[] = statuses.flatMap((status, index) => [
      { status },
      { status: clone(SandboxStatusSchema, status), annotations: { note: String(index) } },
      { status, generation: BigInt(index) },
      { annotations: {} },
    ]);
    for (const patch of patches) {
      const before = (await store.sandboxes.byId(record.id))!;
      await store.write(store.sandboxes.update(record.id, before.resourceVersion, patch));
      expect(await store.sandboxes.byId(record.id)).toStrictEqual(await fresh().byId(record.id));
      expect(await store.sandboxes.byName("default", "box")).toStrictEqual(await fresh().byName("default", "box"));
    }
  });

  it("see an object that was absent before, and another one of the same name", async () => {
    expect(await store.sandboxes.byName("default", "box")).toBeUndefined();
    const [first, second] = [sandbox("box"), sandbox("box")];
    await store.write(store.sandboxes.create(first));
    expect((await store.sandboxes.byName("default", "box"))?.id).toBe(first.id);
    await store.write(store.sandboxes.remove(first.id, "any"), store.sandboxes.create(second));
    expect((await store.sandboxes.byName("default", "box"))?.id).toBe(second.id);
    await store.write(store.workspaces.setPhase("default", "any", "terminating", 7));
    expect(await store.workspaces.get("default")).toMatchObject({ phase: "terminating", deletionAt: 7 });
  });

  it("never go back, nor behind an acknowledged write, while reads and writes overlap", async () => {
    const record = sandbox("box");
    await store.write(store.sandboxes.create(record));
    let acknowledged = 1n;
    let writing = true;
    const ways = [
      () => store.sandboxes.byId(record.id),
      () => store.sandboxes.byName("default", "box"),
      async () => (await store.sandboxes.list({ workspace: "default", limit: 10 }))[0],
    ];
    for (const way of ways) expect((await way())?.resourceVersion).toBe(1n);
    let reads = 0;
    const look = async (): Promise<void> => {
      let newest = 0n;
      while (writing) {
        const floor = acknowledged > newest ? acknowledged : newest;
        const seen = await ways[reads++ % ways.length]!();
        expect(seen!.resourceVersion).toBeGreaterThanOrEqual(floor);
        expect(seen!.generation).toBe(seen!.resourceVersion);
        newest = seen!.resourceVersion;
        if (reads % 8 === 0) await new Promise(setImmediate);
      }
    };
    const readers = Promise.all([look(), look()]);
    try {
      for (let version = 2n; version <= 150n; version += 1n)
        [acknowledged] = await store.write(store.sandboxes.update(record.id, "any", { generation: version }));
    } finally {
      writing = false;
    }
    await readers;
    expect(acknowledged).toBe(150n);
    expect(reads).toBeGreaterThan(150);
  });

  it("equal reads without a cache after any sequence of writes, also of writes that fail", async () => {
    const next = random(7);
    const pick = (count: number): number => Math.floor(next() * count);
    const names = ["a", "b", "c", "d"];
    const ids = new Map<string, string>();
    for (let step = 0; step < 250; step += 1) {
      const kind = pick(8);
      const name = names[pick(names.length)]!;
      const id = ids.get(name);
      if (id === undefined) {
        const record = sandbox(name, pick(5));
        await store.write(store.sandboxes.create(record));
        ids.set(name, record.id);
      } else if (kind < 2) {
        await store.write(store.sandboxes.remove(id, "any"));
        ids.delete(name);
      } else if (kind < 4) {
        const stale = store.write(store.sandboxes.update(id, 0n, { driver: "lost" }));
        await expect(stale).rejects.toMatchObject({ code: "store_conflict" });
      } else {
        const labels = { odd: String(pick(2)) };
        await store.write(store.sandboxes.update(id, "any", { labels, driverRecord: { step } }));
      }
      const plain = fresh();
      const options = { workspace: "default", limit: 1 + pick(4), ...(pick(2) === 0 ? { labels: { odd: "1" } } : {}) };
      expect(await store.sandboxes.list(options)).toEqual(await plain.list(options));
      expect(await store.sandboxes.byName("default", name)).toEqual(await plain.byName("default", name));
    }
  });

  it("show what a foreign process wrote, a little later", async () => {
    const record = sandbox("box");
    await store.write(store.sandboxes.create(record));
    await store.sandboxes.byId(record.id);
    using database = new DatabaseSync(join(folder, "gateway.db"));
    database.exec("update sandboxes set driver = 'by hand', resource_version = resource_version + 1");
    await expect.poll(async () => (await store.sandboxes.byId(record.id))?.driver).toBe("by hand");
  });

  it("are let go of with what was removed", async () => {
    setFlagsFromString("--expose-gc");
    const collect = runInNewContext("gc") as () => void;
    const records = Array.from({ length: 20 }, (_, index) => sandbox(`box-${index}`));
    const seen: WeakRef<object>[] = [];
    for (const record of records) {
      await store.write(store.sandboxes.create(record));
      seen.push(new WeakRef((await store.sandboxes.byId(record.id))!));
    }
    const left = () => seen.filter((one) => one.deref() !== undefined).length;
    // In a task of its own: a reference is held to the end of the one that looked at it.
    const collected = async () => {
      await new Promise(setImmediate);
      collect();
      return left();
    };
    expect(await collected()).toBe(records.length);
    for (const record of records) await store.write(store.sandboxes.remove(record.id, "any"));
    expect(await store.sandboxes.list({ limit: 10 })).toEqual([]);
    await expect.poll(collected).toBe(0);
  });

  it("cannot be changed by one of those who share them", async () => {
    const record = sandbox("box");
    await store.write(store.sandboxes.create(record));
    const shared = (await store.sandboxes.byId(record.id))!;
    expect(() => shared.spec.command.push("x")).toThrow(TypeError);
    expect(() => {
      shared.spec.environment.A = "2";
    }).toThrow(TypeError);
    expect(() => {
      shared.status.conditions[0]!.type = "x";
    }).toThrow(TypeError);
    expect(() => (shared.driverRecord as { pid: number }).pid++).toThrow(TypeError);
    const rows = (await store.sandboxes.list({ limit: 10 })) as unknown[];
    expect(() => rows.pop()).toThrow(TypeError);
  });
});

describe("the cache of answers", () => {
  it("drops an answer whose query a commit overlapped", async () => {
    let version = 1;
    const cache = new ReadCache(() => version, 10_000);
    const slow = Promise.withResolvers<string>();
    const old = cache.read("key", () => slow.promise);
    version = 2;
    slow.resolve("old");
    expect(await old).toBe("old");
    expect(await cache.read("key", async () => "new")).toBe("new");
    expect(await cache.read("key", async () => "never asked")).toBe("new");
  });

  it("neither gives nor keeps an answer while a commit is under way", async () => {
    const commits = new Commits();
    const cache = new ReadCache(() => commits.settled, 10_000);
    await cache.read("key", async () => "old");
    commits.begin();
    expect(await cache.read("key", async () => "either")).toBe("either");
    commits.end();
    expect(await cache.read("key", async () => "new")).toBe("new");
  });

  it.each([
    ["operation", []],
    ["policy", ["settledContents"]],
    ["setting", ["settledContents", "settledKept"]],
    ["provider", ["settledContents", "settledKept"]],
    ["credential", ["settledContents", "settledKept"]],
  ] as const)("know what a commit does not concern: %s", (subject, concerned) => {
    const commits = new Commits();
    const names = ["settled", "settledContents", "settledKept"] as const;
    const before = names.map((name) => commits[name]);
    const changes = changesOf([[{ subject: "sandbox" }], [{ subject }]]);
    commits.begin(changes);
    const during = names.filter((name) => commits[name] === undefined);
    commits.end(changes);
    const after = names.filter((name, index) => commits[name] !== before[index]);
    expect([during, after]).toEqual(Array.from({ length: 2 }, () => ["settled", ...concerned]));
  });

  it("counts its own commits at once, and those of others when they are noticed", () => {
    let others = 0;
    let own: number | undefined = 2;
    const version = databaseVersion(
      () => own,
      () => others,
    );
    const first = version();
    expect(version()).toBe(first);
    others = 1;
    const second = version();
    own = 4;
    expect(new Set([first, second, version()]).size).toBe(3);
    own = undefined;
    expect(version()).toBeUndefined();
  });

  describe("commits of others", () => {
    const state = { time: 0, own: 2, anybody: 7, found: 0, looks: 0 };
    let foreign: ForeignCommits;
    const later = () => {
      state.time += FOREIGN_CHECK_MS;
      return foreign.count;
    };
    beforeEach(() => {
      Object.assign(state, { time: 0, own: 2, anybody: 7, found: 0, looks: 0 });
      foreign = new ForeignCommits({
        own: () => state.own,
        anybody: () => state.anybody,
        foundByWriter: () => state.found,
        look: () => {
          state.looks += 1;
        },
        now: () => state.time,
      });
      expect(foreign.count).toBe(0);
    });

    it("are noticed at the next look of the reader while the writer rests", () => {
      state.anybody = 8;
      expect(foreign.count).toBe(0);
      expect(later()).toBe(1);
      expect(later()).toBe(1);
      expect(state.looks).toBe(0);
    });

    it("are not mistaken for those of the writer, which looks itself", () => {
      Object.assign(state, { own: 4, anybody: 8 });
      expect(later()).toBe(0);
      expect(state.looks).toBe(1);
      state.found = 1;
      expect(foreign.count).toBe(1);
      // One that is under way may have become visible.
      Object.assign(state, { own: 5, anybody: 9 });
      expect(later()).toBe(1);
      expect(state.looks).toBe(2);
      Object.assign(state, { anybody: 10 });
      expect(later()).toBe(1);
      expect(state.looks).toBe(3);
    });
  });

  it("show what a foreign process wrote while the store writes all the time", async () => {
    const record = sandbox("box");
    await store.write(store.sandboxes.create(record), store.settings.set("s", "k", "ours"));
    using database = new DatabaseSync(join(folder, "gateway.db"), { timeout: 5_000 });
    let stop = false;
    const writing = (async () => {
      for (let generation = 2n; !stop; generation += 1n)
        await store.write(store.sandboxes.update(record.id, "any", { generation }));
    })();
    try {
      for (const value of ["first", "second", "third"]) {
        database.prepare("update settings set value = ? where scope = 's'").run(value);
        await expect.poll(async () => (await store.settings.get("s")).values.get("k")).toBe(value);
      }
    } finally {
      stop = true;
      await writing;
    }
  });

  it("show what a foreign process wrote right after the store did, and nobody since", async () => {
    const record = sandbox("box");
    await store.write(store.sandboxes.create(record), store.settings.set("s", "k", "ours"));
    using database = new DatabaseSync(join(folder, "gateway.db"), { timeout: 5_000 });
    for (const value of ["first", "second", "third"]) {
      await store.settings.get("s");
      await store.write(store.sandboxes.update(record.id, "any", { driver: value }));
      database.prepare("update settings set value = ? where scope = 's'").run(value);
      await expect.poll(async () => (await store.settings.get("s")).values.get("k")).toBe(value);
    }
  });

  it("stay through commits of the store that do not concern them", async () => {
    const record = sandbox("box");
    await store.write(store.sandboxes.create(record), store.settings.set("s", "k", "v"));
    const first = await store.settings.get("s");
    const end = performance.now() + 4 * FOREIGN_CHECK_MS;
    for (let generation = 2n; performance.now() < end; generation += 1n) {
      await store.write(store.sandboxes.update(record.id, "any", { generation }));
      expect(await store.settings.get("s")).toBe(first);
    }
  });

  it("keeps nothing of a query that failed", async () => {
    const cache = new ReadCache(() => 1, 10_000);
    await expect(cache.read("key", () => Promise.reject(new Error("broken")))).rejects.toThrow("broken");
    expect(await cache.read("key", async () => "works")).toBe("works");
  });

  it("drops what was not used for longest, and never holds more than its limit", () => {
    const cache = new WeightedCache<string>(100);
    cache.set("a", "1", 40);
    cache.set("b", "2", 40);
    cache.get("a");
    cache.set("c", "3", 40);
    expect([cache.get("a")?.value, cache.get("b"), cache.get("c")?.value]).toEqual(["1", undefined, "3"]);
    cache.set("a", "4", 60);
    expect([cache.get("a")?.value, cache.weight]).toEqual(["4", 100]);
    cache.set("huge", "5", 101);
    expect([cache.get("huge"), cache.weight]).toEqual([undefined, 100]);
    cache.set("c", "too heavy now", 101);
    expect([cache.get("c"), cache.weight]).toEqual([undefined, 60]);
    cache.delete("a");
    cache.delete("a");
    expect([cache.get("a"), cache.weight]).toEqual([undefined, 0]);
  });
});
