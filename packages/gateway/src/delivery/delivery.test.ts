import { create } from "@bufbuild/protobuf";
import {
  ConfigApplyOutcome,
  ConfigComponent,
  type ConfigUpdate,
  ConfigUpdateResultSchema,
  MainProcessSchema,
  ProviderEnvironmentSchema,
  SandboxConfigSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { Clock } from "@openshell/base";
import { beforeEach, describe, expect, it } from "vitest";
import { type DeliveryOutcome, SessionDelivery } from "./delivery.ts";
import { ACK_TIMEOUT_MS, BUILD_RETRY_FIRST_MS } from "./limits.ts";
import type { Snapshot } from "./snapshot.ts";

/** Time that moves when a test says so. */
class ManualClock implements Clock {
  #now = 0;
  #sleepers: { readonly at: number; readonly wake: () => void }[] = [];
  now = (): number => this.#now;
  monotonic = (): number => this.#now;
  sleep(ms: number, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
    return new Promise((resolve, reject) => {
      signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
      this.#sleepers.push({ at: this.#now + ms, wake: resolve });
    });
  }
  async advance(ms: number): Promise<void> {
    this.#now += ms;
    const due = this.#sleepers.filter(({ at }) => at <= this.#now);
    this.#sleepers = this.#sleepers.filter(({ at }) => at > this.#now);
    for (const { wake } of due) wake();
    await settle();
  }
}

const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe("delivery to one session", () => {
  let clock: ManualClock;
  let stored: { version: number; providers: string };
  let buildError: Error | undefined;
  let opened: number;
  let sent: ConfigUpdate[];
  let outcomes: DeliveryOutcome[];
  let failed: unknown;
  let record: (outcome: DeliveryOutcome) => Promise<void>;
  let delivery: SessionDelivery;

  const snapshot = (): Snapshot => {
    const { version, providers } = stored;
    return {
      config: create(SandboxConfigSchema, {
        configRevision: `c${version}${providers}`,
        policyVersion: version,
        providerRevision: providers,
      }),
      providerRevision: providers,
      workspace: "default",
      providers: [],
      environment: () => {
        opened += 1;
        return create(ProviderEnvironmentSchema, { providerRevision: providers });
      },
    };
  };

  beforeEach(() => {
    clock = new ManualClock();
    stored = { version: 1, providers: "p1" };
    buildError = undefined;
    opened = 0;
    sent = [];
    outcomes = [];
    failed = undefined;
    record = async (outcome) => void outcomes.push(outcome);
    const { config, environment } = snapshot();
    delivery = new SessionDelivery(
      { config, environment: environment(), mainProcess: create(MainProcessSchema) },
      {
        clock,
        build: async () => {
          if (buildError !== undefined) throw buildError;
          return snapshot();
        },
        record: (outcome) => record(outcome),
        send: (message) => {
          if (message.case === "update") sent.push(message.value);
          return true;
        },
        fail: (error) => {
          failed = error;
        },
        onBuildError: () => {},
      },
    );
    opened = 0;
  });

  const kinds = () => sent.map(({ component }) => component.case);
  async function change(next: Partial<typeof stored>): Promise<void> {
    stored = { ...stored, ...next };
    delivery.markDirty();
    await settle();
  }
  async function answer(update: ConfigUpdate, outcome: ConfigApplyOutcome, revision?: string): Promise<void> {
    const { component } = update;
    const own =
      component.case === "sandboxConfig"
        ? component.value.configRevision
        : component.case === "providerEnvironment"
          ? component.value.providerRevision
          : "";
    await delivery.result(
      create(ConfigUpdateResultSchema, {
        updateId: update.updateId,
        sequence: update.sequence,
        component:
          component.case === "sandboxConfig" ? ConfigComponent.SANDBOX_CONFIG : ConfigComponent.PROVIDER_ENVIRONMENT,
        result: { outcome, appliedRevision: revision ?? own },
      }),
    );
    await settle();
  }

  it("sends nothing before the bootstrap was answered, then what changed meanwhile", async () => {
    await change({ version: 2 });
    expect(sent).toEqual([]);
    delivery.bootstrapDone();
    await settle();
    expect(kinds()).toEqual(["sandboxConfig"]);
  });

  describe("of a running sandbox", () => {
    beforeEach(() => delivery.bootstrapDone());

    it("sends nothing, and opens no credential, when nothing changed", async () => {
      delivery.markDirty();
      delivery.reconcile();
      await settle();
      expect(sent).toEqual([]);
      expect(opened).toBe(0);
    });

    it("has one update in flight and sends the newest after its answer, whatever came in between", async () => {
      for (const version of [2, 3, 4]) await change({ version });
      expect(sent).toHaveLength(1);
      await answer(sent[0]!, ConfigApplyOutcome.APPLIED);
      expect(
        sent.map(({ component, sequence }) => [sequence, (component.value as { policyVersion: number }).policyVersion]),
      ).toEqual([
        [1n, 2],
        [2n, 4],
      ]);
    });

    it("releases waiters when the outcome is stored, not before", async () => {
      const stores = Promise.withResolvers<void>();
      record = () => stores.promise;
      await change({ version: 2 });
      let result: string | undefined;
      void delivery.whenApplied(2, 1_000).then((value) => {
        result = value;
      });
      void answer(sent[0]!, ConfigApplyOutcome.APPLIED);
      await settle();
      expect(result).toBeUndefined();
      stores.resolve();
      await settle();
      expect(result).toBe("applied");
      expect(await delivery.whenApplied(1, 0)).toBe("applied");
    });

    it.each([
      [ConfigApplyOutcome.FAILED_CLOSED, ""],
      [ConfigApplyOutcome.FAILED_RETAINED_LAST_KNOWN_GOOD, "c1p1"],
      [ConfigApplyOutcome.UNSUPPORTED, ""],
      [ConfigApplyOutcome.APPLIED, "another revision"],
    ])(
      "counts outcome %i at revision %j as refused, and tries again only with the reconcile or a change",
      async (outcome, revision) => {
        await change({ version: 2 });
        const waiting = delivery.whenApplied(2, 1_000);
        await answer(sent[0]!, outcome, revision);
        expect(await waiting).toBe("refused");
        expect(outcomes).toMatchObject([{ applied: false, policyVersion: 2 }]);
        expect(delivery.policyVersion).toBe(1);
        delivery.markDirty();
        await settle();
        expect(sent).toHaveLength(1);
        delivery.reconcile();
        await settle();
        expect(sent).toHaveLength(2);
      },
    );

    it("ignores answers to something else", async () => {
      await change({ version: 2 });
      const [update] = sent;
      await answer({ ...update!, updateId: "x" }, ConfigApplyOutcome.APPLIED);
      await answer({ ...update!, sequence: 9n }, ConfigApplyOutcome.APPLIED);
      expect(outcomes).toEqual([]);
      await answer(update!, ConfigApplyOutcome.APPLIED);
      await answer(update!, ConfigApplyOutcome.APPLIED);
      expect(outcomes).toHaveLength(1);
    });

    it("sends credentials before the policy that names them, and again when they were held back", async () => {
      await change({ version: 2, providers: "p2" });
      expect(kinds()).toEqual(["providerEnvironment", "sandboxConfig"]);
      await answer(sent[0]!, ConfigApplyOutcome.AWAITING_COMPONENT, "");
      expect(outcomes).toEqual([]);
      await answer(sent[1]!, ConfigApplyOutcome.APPLIED);
      expect(kinds()).toEqual(["providerEnvironment", "sandboxConfig", "providerEnvironment"]);
      await answer(sent[2]!, ConfigApplyOutcome.IGNORED_DUPLICATE);
      delivery.markDirty();
      await settle();
      expect(sent).toHaveLength(3);
    });

    it("ends a session that does not answer", async () => {
      await change({ version: 2 });
      await clock.advance(ACK_TIMEOUT_MS - 1);
      expect(failed).toBeUndefined();
      await clock.advance(1);
      expect(failed).toBeInstanceOf(Error);
    });

    it("tries again when a snapshot cannot be built", async () => {
      buildError = new Error("store busy");
      await change({ version: 2 });
      expect(sent).toEqual([]);
      buildError = undefined;
      await clock.advance(BUILD_RETRY_FIRST_MS);
      expect(kinds()).toEqual(["sandboxConfig"]);
    });

    it("answers waiters with unknown when their time is over or the session ends", async () => {
      await change({ version: 2 });
      const short = delivery.whenApplied(2, 10);
      const long = delivery.whenApplied(2, 10_000);
      await clock.advance(10);
      expect(await short).toBe("unknown");
      delivery.close();
      expect(await long).toBe("unknown");
      expect(await delivery.whenApplied(2, 10)).toBe("unknown");
      await change({ version: 3 });
      expect(sent).toHaveLength(1);
    });
  });
});
