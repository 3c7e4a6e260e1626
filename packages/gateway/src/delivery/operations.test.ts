import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { ConfigApplyOutcome as Outcome, PolicySource, SandboxPhase, SandboxStatusSchema } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { FrozenClock } from "../api/testing/frozen-clock.ts";
import { openStore } from "../store/store.ts";
import type { SandboxRecord, Store } from "../store/types.ts";
import type { DeliveredFacts } from "./delivery.ts";
import { ConfigOperations } from "./operations.ts";

describe("operations of changes", () => {
  let folder: string;
  let store: Store;
  let operations: ConfigOperations;
  const clock = new FrozenClock();
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "openshell-changes-"));
    store = await openStore(join(folder, "gateway.db"));
    operations = new ConfigOperations(store);
  });
  afterEach(async () => {
    await store[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  });

  const sandbox = (phase = SandboxPhase.READY) =>
    ({ id: "s", status: create(SandboxStatusSchema, { phase }) }) as SandboxRecord;
  async function change(target: object, phase?: SandboxPhase): Promise<string> {
    const { operationId, decision } = await operations.begin(sandbox(phase), target, 1);
    await store.write(...decision.commands);
    operations.tell(decision);
    return operationId;
  }
  const policy = (policyVersion: number) => ({ policyVersion, policySource: PolicySource.SANDBOX });
  const facts = (changes: Partial<DeliveredFacts>): DeliveredFacts => ({
    configRevision: "c",
    policyVersion: 0,
    policyHash: "h",
    policySource: "sandbox",
    globalPolicyVersion: 0,
    providerRevision: "p",
    attachmentEpoch: "e",
    settingsRevision: 0n,
    ...changes,
  });
  async function deliver(changes: Partial<DeliveredFacts>, outcome = Outcome.APPLIED, error = ""): Promise<void> {
    const applied = outcome === Outcome.APPLIED;
    const decision = await operations.decide("s", { facts: facts(changes), applied, outcome, error }, 2);
    await store.write(...decision.commands);
    operations.tell(decision);
  }
  const state = async (id: string) => (await store.operations.get(id))?.state;

  it("are applied by exactly their revision", async () => {
    const id = await change(policy(3));
    await deliver({ policyVersion: 2 });
    expect(await state(id)).toBe("pending");
    await deliver({ policyVersion: 3 });
    expect(await store.operations.get(id)).toMatchObject({
      state: "applied",
      outcome: Outcome.APPLIED,
      completedAt: 2,
    });
  });

  it("are superseded by a newer change of the same kind, and by a newer revision in force", async () => {
    const first = await change(policy(2));
    const settings = await change({ settingsRevision: 1n });
    const second = await change(policy(3));
    expect([await state(first), await state(settings), await state(second)]).toEqual([
      "superseded",
      "pending",
      "pending",
    ]);
    await deliver({ policyVersion: 4, settingsRevision: 1n });
    expect([await state(settings), await state(second)]).toEqual(["applied", "superseded"]);
    expect((await store.operations.get(second))?.error).toBe("DESIRED_STATE_CHANGED");
  });

  it("of a sandbox's policy are superseded by the gateway's, whatever its version", async () => {
    const id = await change(policy(3));
    const settings = await change({ settingsRevision: 1n });
    await deliver({ policyVersion: 3, policySource: "global", globalPolicyVersion: 1, settingsRevision: 1n });
    expect([await state(id), await state(settings)]).toEqual(["superseded", "applied"]);
  });

  it("stay open when they are refused, with the reason, for the same is tried again", async () => {
    const id = await change(policy(2));
    await deliver({ policyVersion: 2 }, Outcome.FAILED_CLOSED, "no such path");
    expect(await store.operations.get(id)).toMatchObject({
      state: "pending",
      outcome: Outcome.FAILED_CLOSED,
      error: "no such path",
    });
    expect(await operations.wait(id, 1_000, { clock })).toBe("refused");
    await deliver({ policyVersion: 2 });
    expect(await store.operations.get(id)).toMatchObject({ state: "applied", error: "" });
  });

  it.each([
    [SandboxPhase.STOPPED, "inactive"],
    [SandboxPhase.COMPLETED, "inactive"],
    [SandboxPhase.ERROR, "inactive"],
    [SandboxPhase.DELETING, "cancelled"],
    [SandboxPhase.PROVISIONING, "pending"],
  ])("of a sandbox in phase %i begin as %s", async (phase, wanted) => {
    const id = await change(policy(2), phase);
    expect(await state(id)).toBe(wanted);
    if (wanted !== "pending") expect(await operations.wait(id, 1_000, { clock })).toBe("unknown");
  });

  it("release whoever waits, after the outcome is stored and not before", async () => {
    const id = await change(policy(2));
    let result: string | undefined;
    void operations.wait(id, 1_000, { clock }).then((value) => {
      result = value;
    });
    const decision = await operations.decide(
      "s",
      { facts: facts({ policyVersion: 2 }), applied: true, outcome: Outcome.APPLIED, error: "" },
      2,
    );
    await store.write(...decision.commands);
    expect(result).toBeUndefined();
    operations.tell(decision);
    await new Promise((resolve) => setImmediate(resolve));
    expect(result).toBe("applied");
    expect(await operations.wait(id, 1_000, { clock })).toBe("applied");
  });

  it("release whoever waits for a change that was superseded", async () => {
    const id = await change(policy(2));
    const waiting = operations.wait(id, 1_000, { clock });
    await change(policy(3));
    expect(await waiting).toBe("superseded");
  });

  it("let nobody wait longer than the limit, nor when the caller leaves", async () => {
    const id = await change(policy(2));
    expect(await operations.wait(id, 0, { clock })).toBe("unknown");
    const leaves = new AbortController();
    const gone = operations.wait(id, 1_000, { clock, signal: leaves.signal });
    const late = operations.wait(id, 1_000, { clock });
    await new Promise((resolve) => setImmediate(resolve));
    leaves.abort();
    expect(await gone).toBe("unknown");
    clock.advance(1_000);
    expect(await late).toBe("unknown");
    expect(await operations.wait("never heard of", 1_000, { clock })).toBe("unknown");
  });
});
