import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { SandboxPhase, SandboxPolicySchema, SandboxSpecSchema, SandboxStatusSchema } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { FrozenClock } from "../api/testing/frozen-clock.ts";
import type { MiddlewareRegistration } from "../config/middleware.ts";
import { openStore } from "../store/store.ts";
import type { Store } from "../store/types.ts";
import { createVault } from "../store/vault.ts";
import { captureSnapshot, pairing } from "./snapshot.ts";

describe("the snapshot of a sandbox", () => {
  let folder: string;
  let store: Store;
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), "openshell-snapshot-"));
    store = await openStore(join(folder, "gateway.db"));
    const sandbox = (id: string) =>
      store.sandboxes.create({
        id,
        name: `box-${id}`,
        workspace: "default",
        labels: {},
        annotations: {},
        createdAt: 1,
        spec: create(SandboxSpecSchema, { providerAttachmentEpoch: "e1" }),
        status: create(SandboxStatusSchema, { phase: SandboxPhase.READY }),
        hostKeyFingerprint: "",
        workloadTemplate: undefined,
        generation: 1n,
        driver: "local",
        driverRecord: null,
        runtimeRecord: null,
      });
    await store.write(sandbox("s"), sandbox("other"));
  });
  afterEach(async () => {
    await store[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  });

  const setPolicy = async (
    host: string,
    networkMiddlewares: Readonly<Record<string, { readonly middleware: string }>> = {},
  ): Promise<void> => {
    const rule = { endpoints: [{ host, port: 443 }], binaries: [{ path: "/x" }] };
    const policy = create(SandboxPolicySchema, { version: 1, networkPolicies: { a: rule }, networkMiddlewares });
    const revision = { scope: "s", hash: host, policy, status: "pending", createdAt: 1, provenance: {} } as const;
    await store.write(store.policies.append(revision));
  };
  const deps = (over: Partial<Store> = {}) => ({
    store: Object.assign(Object.create(store) as Store, over),
    vault: createVault(new Uint8Array(32)),
    clock: new FrozenClock(),
    config: { policyValidationFailureMode: "fail_closed" as const, supervisor: { middleware: [] } },
  });
  /** A store in which something is always being committed, and `overtake` happens after each read of the policy. */
  const busy = (overtake: (read: number) => Promise<void>): Partial<Store> => {
    let reads = 0;
    return {
      contentsVersion: () => undefined,
      policies: {
        ...store.policies,
        latest: async (scope) => {
          const found = await store.policies.latest(scope);
          await overtake(++reads);
          return found;
        },
      },
    };
  };

  it("names the same identity in both components", async () => {
    await setPolicy("a.example.com");
    const { snapshot } = (await captureSnapshot(deps(), "s"))!;
    const environment = snapshot.environment();
    expect(pairing(snapshot.config)).toBe(pairing(environment));
    expect(environment).toMatchObject({ attachmentEpoch: "e1", policyHash: "" });
    expect(snapshot.config).toMatchObject({ validationFailureMode: "fail_closed", policySource: "sandbox" });
  });

  it("has another revision exactly when something of it is another", async () => {
    const revision = async () => (await captureSnapshot(deps(), "s"))!.snapshot.config.configRevision;
    const first = await revision();
    expect(await revision()).toBe(first);
    await setPolicy("a.example.com");
    const second = await revision();
    expect(second).not.toBe(first);
    await store.write(store.sandboxes.update("s", "any", { labels: { a: "b" } }));
    expect(await revision()).toBe(second);
    await store.write(
      store.sandboxes.update("s", "any", { spec: create(SandboxSpecSchema, { providerAttachmentEpoch: "e2" }) }),
    );
    expect(await revision()).not.toBe(second);
  });

  it("has the registered services that the policy names, and another revision when their registration changes", async () => {
    const registration = (name: string, endpoint: string): MiddlewareRegistration => ({
      name,
      endpoint,
      ca: { path: "/ca.pem", pem: "PEM" },
      audience: `urn:${name}`,
      allowInsecureTransport: false,
      maxPayloadBytes: 1_024,
      timeoutMs: 250,
    });
    const read = async (...middleware: MiddlewareRegistration[]) => {
      const config = { ...deps().config, supervisor: { middleware } };
      return (await captureSnapshot({ ...deps(), config }, "s"))!.snapshot.config;
    };
    const guard = registration("guard", "https://guard.example");
    const without = await read();
    expect((await read(guard)).configRevision).toBe(without.configRevision);
    await setPolicy("a.example.com", { guard: { middleware: "guard" }, regex: { middleware: "openshell/regex" } });
    const config = await read(registration("other", "https://other.example"), guard);
    expect(config.middleware).toMatchObject([
      {
        name: "guard",
        endpoint: "https://guard.example",
        caPem: "PEM",
        audience: "urn:guard",
        maxPayloadBytes: 1_024,
        timeout: { seconds: 0n, nanos: 250_000_000 },
        allowInsecureTransport: false,
      },
    ]);
    expect((await read(guard)).configRevision).toBe(config.configRevision);
    expect((await read(registration("guard", "https://moved.example"))).configRevision).not.toBe(config.configRevision);
  });

  it("is delivered anew for a newer version of an equal policy, so that the newer one is acknowledged too", async () => {
    await setPolicy("a.example.com");
    const before = (await captureSnapshot(deps(), "s"))!.snapshot.config;
    await setPolicy("a.example.com");
    const after = (await captureSnapshot(deps(), "s"))!.snapshot.config;
    expect(after).toMatchObject({ policyVersion: 2, policyHash: before.policyHash });
    expect(after.configRevision).not.toBe(before.configRevision);
    expect(pairing(after)).toBe(pairing(before));
  });

  it("is of one moment, whatever else is committed all the time", async () => {
    await setPolicy("a.example.com");
    const { snapshot } = (await captureSnapshot(deps(busy(async () => {})), "s"))!;
    expect(snapshot.config.policyVersion).toBe(1);
    let reads = 0;
    const once = busy(async (read) => {
      reads = read;
      if (read === 1) await setPolicy("b.example.com");
    });
    expect((await captureSnapshot(deps(once), "s"))!.snapshot.config.policyVersion).toBe(2);
    expect(reads).toBe(3);
  });

  /** A store in which `meanwhile` is committed after the first read of the policy; `reads` counts them. */
  const overtaken = (meanwhile: () => Promise<unknown>) => {
    const counted = { reads: 0 };
    const latest: Store["policies"]["latest"] = async (scope) => {
      const found = await store.policies.latest(scope);
      counted.reads += 1;
      if (counted.reads === 1) await meanwhile();
      return found;
    };
    return { counted, over: { policies: { ...store.policies, latest } } satisfies Partial<Store> };
  };

  it("is read once while others change, and what became of policies is stored", async () => {
    await setPolicy("a.example.com");
    const { counted, over } = overtaken(() =>
      store.write(
        store.sandboxes.update("other", "any", { labels: { a: "b" } }),
        store.policies.setStatus("s", 1, "loaded", 2),
      ),
    );
    expect((await captureSnapshot(deps(over), "s"))!.snapshot.config.policyVersion).toBe(1);
    expect(counted.reads).toBe(1);
  });

  it.each([
    ["the sandbox itself", () => store.write(store.sandboxes.update("s", "any", { labels: { a: "b" } }))],
    ["a policy", () => setPolicy("b.example.com")],
    ["a setting", () => store.write(store.settings.set("s", "ocsf_json_enabled", true))],
  ])("is read again when %s was changed meanwhile", async (_, change) => {
    await setPolicy("a.example.com");
    const { counted, over } = overtaken(change);
    const { snapshot } = (await captureSnapshot(deps(over), "s"))!;
    const fresh = (await captureSnapshot(deps(), "s"))!.snapshot;
    expect(snapshot.config.configRevision).toBe(fresh.config.configRevision);
    expect(counted.reads).toBeGreaterThan(1);
  });

  it("is read three times at most when it changes each time", async () => {
    let reads = 0;
    const always = busy(async (read) => {
      reads = read;
      await setPolicy(`h${read}.example.com`);
    });
    await expect(captureSnapshot(deps(always), "s")).rejects.toMatchObject({ code: "snapshot_unsettled" });
    expect(reads).toBe(3);
  });

  it("does not exist for a sandbox that is gone", async () => {
    expect(await captureSnapshot(deps(), "none")).toBeUndefined();
  });
});
