import { randomUUID } from "node:crypto";
import { mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { SandboxPhase, SandboxPolicySchema, SandboxSpecSchema, SandboxStatusSchema } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Secret } from "../auth/secret.ts";
import { openCredential, sealCredential } from "./credentials.ts";
import { openStore } from "./store.ts";
import { GLOBAL_SCOPE, type NewSandbox, type Store } from "./types.ts";
import { createVault } from "./vault.ts";

let folder: string;
let path: string;
let store: Store;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "openshell-store-"));
  path = join(folder, "gateway.db");
  store = await openStore(path);
});

afterEach(async () => {
  await store[Symbol.asyncDispose]();
  await rm(folder, { recursive: true });
});

function sandbox(overrides: Partial<NewSandbox> = {}): NewSandbox {
  return {
    id: randomUUID(),
    name: "box",
    workspace: "default",
    labels: {},
    annotations: {},
    createdAt: 1000,
    spec: create(SandboxSpecSchema, { command: ["true"] }),
    status: create(SandboxStatusSchema, { phase: SandboxPhase.PROVISIONING }),
    hostKeyFingerprint: "",
    workloadTemplate: undefined,
    generation: 1n,
    driver: "local",
    driverRecord: { pid: 7 },
    runtimeRecord: null,
    ...overrides,
  };
}

describe("the store", () => {
  it("keeps its files private and has the default workspace", async () => {
    for (const suffix of ["", "-wal", "-shm"]) expect((await stat(path + suffix)).mode & 0o777).toBe(0o600);
    expect(await store.workspaces.get("default")).toMatchObject({ phase: "active", resourceVersion: 1n });
    expect(await store.check()).toBeGreaterThanOrEqual(0);
  });

  it("reads back what was written, also after it is opened again", async () => {
    const record = sandbox({ labels: { a: "1" }, spec: create(SandboxSpecSchema, { providers: ["github"] }) });
    await store.write(store.sandboxes.create(record));
    const expected = { ...record, resourceVersion: 1n, deletionAt: undefined };
    expect(await store.sandboxes.byId(record.id)).toEqual(expected);
    await store[Symbol.asyncDispose]();
    store = await openStore(path);
    expect(await store.sandboxes.byName("default", "box")).toEqual(expected);
    expect(await store.sandboxes.usingProvider("default", "github")).toEqual([expected]);
    expect(await store.sandboxes.usingProvider("other", "github")).toEqual([]);
    expect(await store.sandboxes.countByPhase()).toEqual(new Map([[SandboxPhase.PROVISIONING, 1]]));
  });

  it("refuses a second object of the same name, and stores nothing of that write", async () => {
    await store.write(store.sandboxes.create(sandbox()));
    const second = sandbox();
    const write = store.write(
      store.intents.put({ subject: second.id, kind: "create", operationId: "o", step: "new", payload: null }, 1),
      store.sandboxes.create(second),
    );
    await expect(write).rejects.toMatchObject({ code: "store_already_exists", subject: "sandbox" });
    expect(await store.intents.all()).toEqual([]);
  });

  it("lets one of two writers with the same version win", async () => {
    const record = sandbox();
    await store.write(store.sandboxes.create(record));
    const attempts = [1n, 2n, 3n].map((generation) =>
      store.write(store.sandboxes.update(record.id, 1n, { generation })).then(([version]) => version),
    );
    const results = await Promise.allSettled(attempts);
    expect(results.map((result) => result.status).toSorted()).toEqual(["fulfilled", "rejected", "rejected"]);
    expect(results[0]).toEqual({ status: "fulfilled", value: 2n });
    expect(results[1]).toMatchObject({ reason: { code: "store_conflict", subject: "sandbox" } });
    expect(await store.sandboxes.byId(record.id)).toMatchObject({ generation: 1n, resourceVersion: 2n });
  });

  it("modifySandbox repeats the change on the newer record until it fits", async () => {
    const record = sandbox({ generation: 0n });
    await store.write(store.sandboxes.create(record));
    const add = () => store.modifySandbox(record.id, ({ generation }) => ({ patch: { generation: generation + 1n } }));
    await Promise.all([add(), add(), add(), add()]);
    expect(await store.sandboxes.byId(record.id)).toMatchObject({ generation: 4n, resourceVersion: 5n });
    expect(await store.modifySandbox(record.id, () => undefined)).toMatchObject({ resourceVersion: 5n });
    await expect(store.modifySandbox("none", () => undefined)).rejects.toMatchObject({ code: "store_not_found" });
  });

  it("pages in a stable order and selects by labels", async () => {
    for (const [index, name] of ["b", "a", "d", "c"].entries()) {
      const labels: Record<string, string> = index % 2 === 0 ? { even: "yes", all: "x" } : { all: "x" };
      await store.write(store.sandboxes.create(sandbox({ name, createdAt: index < 2 ? 1 : 2, labels })));
    }
    const first = await store.sandboxes.list({ limit: 3 });
    expect(first.map((record) => record.name)).toEqual(["a", "b", "c"]);
    const rest = await store.sandboxes.list({ limit: 3, after: first.at(-1) });
    expect(rest.map((record) => record.name)).toEqual(["d"]);
    const even = await store.sandboxes.list({ limit: 9, labels: { even: "yes", all: "x" }, workspace: "default" });
    expect(even.map((record) => record.name)).toEqual(["b", "d"]);
    await store.write(store.sandboxes.update(even[0]!.id, "any", { labels: { all: "x" } }));
    expect(await store.sandboxes.list({ limit: 9, labels: { even: "yes" } })).toHaveLength(1);
    expect(await store.sandboxes.list({ limit: 9, phases: [SandboxPhase.READY] })).toEqual([]);
  });

  it("removes with a sandbox what belongs to it, but keeps its host ids", async () => {
    const record = sandbox({ labels: { a: "b" } });
    const policy = create(SandboxPolicySchema, { version: 1 });
    const [, block] = await store.write(store.sandboxes.create(record), store.idBlocks.allot(record.id));
    await store.write(
      store.policies.append({ scope: record.id, hash: "h", policy, status: "pending", createdAt: 1, provenance: {} }),
      store.settings.set(record.id, "k", true),
      store.secrets.put(record.id, "nonce", 1n, new Uint8Array([1])),
      store.intents.put({ subject: record.id, kind: "delete", operationId: "o", step: "s", payload: {} }, 1),
    );
    await store.write(store.sandboxes.remove(record.id, 1n));
    expect(await store.sandboxes.byId(record.id)).toBeUndefined();
    expect(await store.policies.latest(record.id)).toBeUndefined();
    expect(await store.settings.get(record.id)).toEqual({ revision: 0n, values: new Map() });
    expect(await store.secrets.get(record.id, "nonce")).toBeUndefined();
    expect(await store.intents.get(record.id)).toBeUndefined();
    expect(await store.idBlocks.of(record.id)).toEqual({ index: block, sandboxId: record.id });
  });

  it("gives the lowest free block of host ids, and the same one again to its holder", async () => {
    const allot = async (id: string) => (await store.write(store.idBlocks.allot(id)))[0];
    expect([await allot("a"), await allot("b"), await allot("c")]).toEqual([0, 1, 2]);
    expect(await allot("b")).toBe(1);
    await store.write(store.idBlocks.release("a"));
    expect([await allot("d"), await allot("e")]).toEqual([0, 3]);
  });

  it("numbers policy revisions, supersedes older ones and refuses one built on another", async () => {
    const policy = create(SandboxPolicySchema, { version: 1 });
    const base = { scope: GLOBAL_SCOPE, policy, createdAt: 5, provenance: { by: "x" } };
    const append = async (hash: string, expectedLatest: number) =>
      (await store.write(store.policies.append({ ...base, hash, status: "pending", expectedLatest })))[0];
    expect(await append("one", 0)).toBe(1);
    await store.write(store.policies.setStatus(GLOBAL_SCOPE, 1, "loaded", 6));
    expect(await store.policies.latest(GLOBAL_SCOPE)).toMatchObject({ status: "loaded", loadedAt: 6 });
    expect(await append("two", 1)).toBe(2);
    await expect(append("three", 1)).rejects.toMatchObject({ code: "store_conflict", subject: "policy" });
    await store.write(store.policies.setStatus(GLOBAL_SCOPE, 2, "failed", 7, "bad"));
    const all = await store.policies.list(GLOBAL_SCOPE, { limit: 10 });
    expect(all.map(({ version, status, loadError }) => [version, status, loadError])).toEqual([
      [2, "failed", "bad"],
      [1, "superseded", ""],
    ]);
    expect(await store.policies.get(GLOBAL_SCOPE, 1)).toMatchObject({ hash: "one", policy, provenance: { by: "x" } });
  });

  it("counts a scope's settings revision", async () => {
    expect((await store.write(store.settings.set(GLOBAL_SCOPE, "a", true)))[0]).toBe(1n);
    const written = await store.write(
      store.settings.set(GLOBAL_SCOPE, "b", 9007199254740993n),
      store.settings.set(GLOBAL_SCOPE, "c", "text"),
      store.settings.remove(GLOBAL_SCOPE, "a"),
    );
    expect(written).toEqual([2n, 3n, 4n]);
    const values = new Map<string, unknown>([
      ["b", 9007199254740993n],
      ["c", "text"],
    ]);
    expect(await store.settings.get(GLOBAL_SCOPE)).toEqual({ revision: 4n, values });
  });

  it("stores provider credentials encrypted, and an old value put back does not open", async () => {
    const vault = createVault(new Uint8Array(32).fill(1));
    const id = randomUUID();
    const owner = { workspace: "default", providerId: id };
    const seal = (value: string, version: bigint, expiresAt?: number) =>
      sealCredential(vault, owner, { key: "TOKEN", value: new Secret(value), version, expiresAt });
    const fields = { id, name: "p", labels: {}, annotations: {}, createdAt: 1, config: { a: "b" } };
    const old = seal("first-value", 1n);
    await store.write(
      store.providers.create({ ...fields, workspace: "default", type: "github", profileWorkspace: "" }, [old]),
    );
    const [version] = await store.write(
      store.providers.update(id, 1n, { config: {} }, { set: [seal("second-value", 2n, 99)] }),
    );
    expect(version).toBe(2n);
    const facts = new Map([["TOKEN", { version: 2n, expiresAt: 99 }]]);
    expect(await store.providers.byName("default", "p")).toMatchObject({ credentials: facts, config: {} });
    const [current] = await store.providers.credentials(id);
    expect(openCredential(vault, owner, current!).reveal()).toBe("second-value");
    expect(Buffer.from(current!.sealed).includes("second-value")).toBe(false);
    expect(() => openCredential(vault, owner, { ...current!, sealed: old.sealed })).toThrow(/cannot be opened/);

    await store.write(store.providers.update(id, 2n, {}, { expirations: new Map([["TOKEN", undefined]]) }));
    const unlimited = new Map([["TOKEN", { version: 2n, expiresAt: undefined }]]);
    expect((await store.providers.byId(id))?.credentials).toEqual(unlimited);
    await store.write(store.providers.remove(id, 3n));
    expect(await store.providers.credentials(id)).toEqual([]);
  });

  it("admits a request id once, replays its receipt, and limits each caller", async () => {
    const key = { caller: "c", method: "M", workspace: "w", requestId: "r" };
    const admit = (requestId: string, at = 10, expiredBefore = 0) =>
      store.write(store.admissions.admit({ ...key, requestId }, "f", at, expiredBefore, 2));
    await admit("r");
    await expect(admit("r")).rejects.toMatchObject({ code: "store_already_exists" });
    await store.write(store.admissions.succeed(key, new Uint8Array([1, 2]), 20));
    await expect(store.write(store.admissions.succeed(key, new Uint8Array(), 21))).rejects.toMatchObject({
      code: "store_conflict",
    });
    const stored = { state: "succeeded", receipt: new Uint8Array([1, 2]), completedAt: 20, fingerprint: "f" };
    expect(await store.admissions.get(key)).toMatchObject(stored);
    await admit("s");
    await expect(admit("t")).rejects.toMatchObject({ code: "store_limit_reached" });
    await admit("t", 30, 21);
    expect(await store.admissions.get(key)).toBeUndefined();
  });

  it("counts a workspace's host deaths in a window", async () => {
    const host = (id: string, workspace: string) => {
      const identity = { pid: 0, startTime: "", bootId: "b", build: "" };
      const secretHash = new Uint8Array(32);
      return store.hosts.create({ id, workspace, sandboxId: undefined, secretHash, ...identity, createdAt: 1 });
    };
    await store.write(host("a", "w"), host("b", "w"), host("c", "w"), host("d", "other"));
    await store.write(
      store.hosts.update("a", { state: "died", endedAt: 10 }),
      store.hosts.update("b", { state: "died", endedAt: 50 }),
      store.hosts.update("c", { state: "live", pid: 9, startTime: "77" }),
      store.hosts.update("d", { state: "died", endedAt: 50 }),
    );
    expect(await store.hosts.deathsSince("w", 20)).toBe(1);
    expect((await store.hosts.current()).map(({ id, pid, startTime }) => [id, pid, startTime])).toEqual([
      ["c", 9, "77"],
    ]);
    await store.write(store.hosts.purge(20));
    expect(await store.hosts.get("a")).toBeUndefined();
  });

  it("refuses reads and writes after it is closed", async () => {
    await store[Symbol.asyncDispose]();
    await expect(store.idBlocks.all()).rejects.toMatchObject({ code: "store_closed" });
    await expect(store.check()).rejects.toMatchObject({ code: "store_closed" });
    await expect(store.write(store.idBlocks.release("x"))).rejects.toMatchObject({ code: "store_closed" });
    store = await openStore(path);
  });
});
