import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { ConfigApplyOutcome, ConfigSnapshotRevisionSchema, ProviderMutationReceiptSchema } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { openStore } from "./store.ts";
import { KEPT_OPERATIONS, MAX_OPERATIONS, type NewOperation, type Store } from "./types.ts";

describe("operations of configuration delivery", () => {
  let folder: string;
  let store: Store;
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "openshell-operations-"));
    store = await openStore(join(folder, "gateway.db"));
  });
  afterEach(async () => {
    await store[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  });

  const target = (policyVersion: number) =>
    create(ConfigSnapshotRevisionSchema, { component: { case: "sandboxConfig", value: { policyVersion } } });
  const operation = (operationId: string, changes: Partial<NewOperation> = {}): NewOperation => ({
    operationId,
    sandboxId: "s",
    component: "config",
    target: target(1),
    state: "pending",
    ...changes,
  });

  it("keeps what was recorded, in order", async () => {
    const receipt = create(ProviderMutationReceiptSchema, { receiptId: "b", provider: "github" });
    await store.write(
      store.operations.record(
        [operation("a"), operation("b", { component: "environment", receipt }), operation("c", { state: "inactive" })],
        5,
      ),
    );
    expect((await store.operations.list("s", { limit: 2 })).map(({ operationId }) => operationId)).toEqual(["c", "b"]);
    expect((await store.operations.pending("s")).map(({ operationId }) => operationId)).toEqual(["a", "b"]);
    expect(await store.operations.get("b")).toMatchObject({ receipt, position: 2, createdAt: 5, state: "pending" });
    expect(await store.operations.get("c")).toMatchObject({ completedAt: 5 });
    expect(await store.operations.get("unknown")).toBeUndefined();
  });

  it("changes no operation that is final", async () => {
    await store.write(store.operations.record([operation("a"), operation("b")], 1));
    const refused = { outcome: ConfigApplyOutcome.FAILED_CLOSED, error: "no such path" };
    await store.write(store.operations.note(["a"], refused, 2));
    expect(await store.operations.get("a")).toMatchObject({ state: "pending", ...refused, updatedAt: 2 });
    const applied = { outcome: ConfigApplyOutcome.APPLIED, error: "" };
    await store.write(store.operations.finish(["a"], "applied", applied, 3));
    await store.write(
      store.operations.note(["a"], refused, 4),
      store.operations.finish(["a"], "superseded", refused, 4),
      store.operations.finishAll("s", "cancelled", 4),
    );
    expect(await store.operations.get("a")).toMatchObject({ state: "applied", ...applied, completedAt: 3 });
    expect(await store.operations.get("b")).toMatchObject({ state: "cancelled", completedAt: 4 });
  });

  it("is written with the change that it is about, or not at all", async () => {
    const revision = {
      scope: "s",
      hash: "h",
      policy: {} as never,
      status: "pending" as const,
      createdAt: 1,
      provenance: {},
    };
    const late = store.policies.append({
      ...revision,
      policy: create((await import("@openshell/api")).SandboxPolicySchema),
      expectedLatest: 7,
    });
    await expect(store.write(store.operations.record([operation("a")], 1), late)).rejects.toMatchObject({
      code: "store_conflict",
    });
    expect(await store.operations.get("a")).toBeUndefined();
  });

  it("forgets old ones, pending ones last", async () => {
    await store.write(store.operations.record([operation("first"), operation("second", { state: "inactive" })], 1));
    const many = (from: number, count: number) =>
      store.operations.record(
        Array.from({ length: count }, (_, index) => operation(`n${from + index}`, { state: "superseded" })),
        2,
      );
    await store.write(many(0, KEPT_OPERATIONS));
    expect(await store.operations.get("first")).toBeDefined();
    expect(await store.operations.get("second")).toBeUndefined();
    await store.write(many(KEPT_OPERATIONS, MAX_OPERATIONS));
    expect(await store.operations.get("first")).toBeUndefined();
    expect(await store.operations.list("s", { limit: 10_000 })).toHaveLength(KEPT_OPERATIONS);
  });
});
