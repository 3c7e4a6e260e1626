import { ConfigApplyOutcome as Outcome } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { beforeEach, describe, expect, it, vi } from "vitest";
import type { FrozenClock } from "../api/testing/frozen-clock.ts";
import { MAX_CONFIG_BYTES } from "../sessions/limits.ts";
import { ACK_TIMEOUT_MS, BUILD_RETRY_FIRST_MS, BUILD_RETRY_LAST_MS } from "./limits.ts";
import type { DeliveryScheduler } from "./scheduler.ts";
import { collectGarbage, OneSession, openScheduler, settle } from "./testing/one-session.ts";

describe("delivery to one session", () => {
  let clock: FrozenClock;
  let scheduler: DeliveryScheduler;
  let session: OneSession;
  beforeEach(() => {
    const opened = openScheduler();
    ({ clock, scheduler } = opened);
    session = new OneSession({ clock, scheduler });
    opened.sessions.set("s", session);
  });

  it("sends nothing before the bootstrap was answered, then what changed meanwhile", async () => {
    await session.change({ version: 2 });
    expect(session.sent).toEqual([]);
    session.delivery.bootstrapDone();
    await settle();
    expect(session.story).toEqual(["config 2"]);
  });

  describe("of a running sandbox", () => {
    beforeEach(() => session.delivery.bootstrapDone());

    async function applyAll(): Promise<void> {
      for (let index = 0; index < session.sent.length; index++)
        await session.answer(session.sent[index], Outcome.APPLIED);
    }

    it("sends nothing, stores nothing and opens no credential when nothing changed", async () => {
      session.delivery.markDirty();
      await settle();
      session.delivery.reconcile();
      await settle();
      expect(session.builds).toBe(2);
      expect(session.sent).toEqual([]);
      expect(session.outcomes).toEqual([]);
      expect(session.opened).toBe(0);
    });

    it("applies a real change that comes with the first reconcile", async () => {
      session.stored = { ...session.stored, version: 2 };
      session.delivery.reconcile();
      await settle();
      expect(session.story).toEqual(["config 2"]);
    });

    it("has one update of a component in flight, and sends the newest after its answer, whatever came in between", async () => {
      for (const version of [2, 3, 4]) await session.change({ version });
      expect(session.story).toEqual(["config 2"]);
      expect(session.builds).toBe(1);
      await applyAll();
      expect(session.story).toEqual(["config 2", "config 4"]);
      expect(session.sent.map(({ sequence }) => sequence)).toEqual([1n, 2n]);
      await applyAll();
      expect(session.builds).toBe(2);
      expect(session.sent).toHaveLength(2);
    });

    it("sends what is acknowledged no second time", async () => {
      await session.change({ version: 2 });
      await applyAll();
      const before = session.sent.length;
      await session.change({ version: 2 });
      expect(session.sent).toHaveLength(before);
    });

    it("keeps nothing of a snapshot that was answered (seed-002)", async () => {
      let built: WeakRef<object> | undefined;
      const build = session.build.bind(session);
      session.build = async () => {
        const snapshot = await build();
        built = new WeakRef(snapshot);
        return snapshot;
      };
      await session.change({ version: 2 });
      await applyAll();
      session.sent.length = 0;
      await vi.waitFor(() => {
        collectGarbage();
        expect(built?.deref()).toBeUndefined();
      });
    });

    it("sends changed values of providers before the configuration that names them", async () => {
      await session.change({ providers: "p2" });
      expect(session.story).toEqual(["environment p2", "config 1"]);
    });

    it("counts an acknowledgement when its outcome is durable, not before", async () => {
      const stores = Promise.withResolvers<void>();
      session.record = () => stores.promise;
      await session.change({ version: 2, providers: "p2" });
      const [environment, config] = session.sent;
      void session.answer(environment, Outcome.APPLIED);
      void session.answer(config, Outcome.APPLIED);
      await settle();
      expect(session.delivery.waiting).toBe(true);
      session.delivery.reconcile();
      await settle();
      expect(session.builds).toBe(1);
      stores.resolve();
      await settle();
      expect(session.delivery.waiting).toBe(false);
      expect(session.sent).toHaveLength(2);
    });

    it("sends again what was acknowledged but could not be stored", async () => {
      session.record = async () => {
        throw new Error("disk full");
      };
      await session.change({ version: 2, providers: "p2" });
      await session.answer(session.sent[0], Outcome.APPLIED);
      await session.answer(session.sent[1], Outcome.APPLIED);
      expect(session.errors.length).toBeGreaterThan(0);
      session.record = async (outcome) => void session.outcomes.push(outcome);
      clock.advance(BUILD_RETRY_LAST_MS);
      await settle();
      expect(session.story.slice(2)).toEqual(["environment p2", "config 2"]);
      await session.answer(session.sent[2], Outcome.IGNORED_DUPLICATE);
      await session.answer(session.sent[3], Outcome.IGNORED_DUPLICATE);
      expect(session.outcomes).toMatchObject([{ applied: true }, { applied: true, news: true }]);
      clock.advance(BUILD_RETRY_LAST_MS);
      await settle();
      expect(session.sent).toHaveLength(4);
    });

    const refusals: readonly [Outcome, string | undefined, string][] = [
      [Outcome.FAILED_CLOSED, undefined, "rejected"],
      [Outcome.FAILED_RETAINED_LAST_KNOWN_GOOD, "c1/p1/e1", "rejected"],
      [Outcome.UNSUPPORTED, "", "unacknowledged"],
      [Outcome.IGNORED_STALE, "c1/p1/e1", "unacknowledged"],
      [Outcome.APPLIED, "another revision", "invalid"],
      [Outcome.APPLIED, "", "invalid"],
      [Outcome.FAILED_CLOSED, "c1/p1/e1", "invalid"],
      [Outcome.UNSPECIFIED, "", "invalid"],
    ];
    it.each(refusals)(
      "does not acknowledge outcome %i at revision %j, and tries again with the reconcile or a change only",
      async (outcome, revision, verdict) => {
        await session.change({ version: 2 });
        await session.answer(session.sent[0], outcome, revision);
        expect(session.outcomes.at(-1)).toMatchObject({ applied: false, verdict, component: "config" });
        session.delivery.markDirty();
        await settle();
        expect(session.sent).toHaveLength(1);
        session.delivery.reconcile();
        await settle();
        expect(session.story).toEqual(["config 2", "config 2"]);
      },
    );

    it("delivers a policy that was in force before a refused one, for what was in force may be so no more", async () => {
      await session.change({ version: 2 });
      await session.answer(session.sent[0], Outcome.FAILED_CLOSED);
      await session.change({ version: 1 });
      expect(session.story.slice(1)).toEqual(["config 1"]);
      await session.answer(session.sent[1], Outcome.APPLIED);
      expect(session.outcomes.at(-1)).toMatchObject({ applied: true, news: true, facts: { policyVersion: 1 } });
    });

    it("begins a session anew whose supervisor has no configuration in force", async () => {
      await session.change({ version: 2 });
      const update = session.sent[0]!;
      const failure = { code: "apply_unavailable", message: "no configuration was accepted yet" };
      await session.answer(update, Outcome.UNSUPPORTED, "", failure);
      expect(session.failed).toBeInstanceOf(Error);
    });

    it("counts a retained local override as acknowledged, though nothing of it is in force", async () => {
      await session.change({ version: 2 });
      await session.answer(session.sent[0], Outcome.RETAINED_LOCAL_OVERRIDE);
      expect(session.outcomes.at(-1)).toMatchObject({ verdict: "acknowledged", applied: false });
      session.delivery.reconcile();
      await settle();
      expect(session.sent).toHaveLength(1);
    });

    it("asks again for what is in force in part, with each reconcile until it is whole", async () => {
      await session.change({ version: 2 });
      await session.answer(session.sent[0], Outcome.DEGRADED);
      expect(session.outcomes.at(-1)).toMatchObject({ applied: true, news: true });
      session.delivery.markDirty();
      await settle();
      expect(session.sent).toHaveLength(1);
      session.delivery.reconcile();
      await settle();
      await session.answer(session.sent[1], Outcome.DEGRADED);
      expect(session.outcomes.at(-1)).toMatchObject({ applied: true, news: false });
      session.delivery.reconcile();
      await settle();
      await session.answer(session.sent[2], Outcome.IGNORED_DUPLICATE);
      expect(session.outcomes.at(-1)).toMatchObject({ applied: true, news: true });
      session.delivery.reconcile();
      await settle();
      expect(session.story.slice(1)).toEqual(["config 2", "config 2"]);
    });

    it("ignores late and unmatched answers", async () => {
      await session.change({ version: 2, providers: "p2" });
      const [environment, config] = session.sent;
      await session.answer({ ...config!, updateId: "x" }, Outcome.APPLIED);
      await session.answer({ ...config!, sequence: 9n }, Outcome.APPLIED);
      await session.answer({ ...environment!, updateId: config!.updateId }, Outcome.APPLIED);
      expect(session.outcomes).toEqual([]);
      await session.answer(config, Outcome.APPLIED);
      await session.answer(config, Outcome.FAILED_CLOSED);
      expect(session.outcomes).toHaveLength(1);
      scheduler.unregister(session.delivery);
      await session.answer(environment, Outcome.APPLIED);
      expect(session.outcomes).toHaveLength(1);
    });

    describe("with a supervisor that pairs", () => {
      it("sends a staged half once more when its counterpart is acknowledged, and no third time", async () => {
        await session.change({ version: 2, providers: "p2" });
        const [environment, config] = session.sent;
        await session.answer(environment, Outcome.AWAITING_COMPONENT);
        expect(session.outcomes).toEqual([]);
        await session.answer(config, Outcome.APPLIED);
        expect(session.story).toEqual(["environment p2", "config 2", "environment p2"]);
        await session.answer(session.sent[2], Outcome.AWAITING_COMPONENT);
        session.delivery.markDirty();
        await settle();
        expect(session.sent).toHaveLength(3);
        // Whatever is wrong with them is looked at again with the reconcile.
        session.delivery.reconcile();
        await settle();
        expect(session.story.slice(3)).toEqual(["environment p2"]);
        await session.answer(session.sent[3], Outcome.IGNORED_DUPLICATE);
        expect(session.outcomes.at(-1)).toMatchObject({ component: "environment", applied: true, news: true });
      });

      it("takes the answer to one half for both, where it says what became of the one that waited", async () => {
        await session.change({ version: 2, providers: "p2" });
        const [environment, config] = session.sent;
        await session.answer(environment, Outcome.AWAITING_COMPONENT);
        const together = { outcome: Outcome.APPLIED, appliedRevision: "p2" };
        await session.answer(config, Outcome.APPLIED, undefined, undefined, together);
        expect(session.outcomes).toMatchObject([
          { component: "config", applied: true, news: true },
          { component: "environment", applied: true, news: true, facts: { providerRevision: "p2" } },
        ]);
        expect(session.moments).toEqual([2]);
        session.delivery.markDirty();
        await settle();
        session.delivery.reconcile();
        await settle();
        expect(session.sent).toHaveLength(2);
        expect(session.delivery.busy).toBe(false);
      });

      it("shows the half that waited and could not be put in force, and sends it again with the reconcile", async () => {
        await session.change({ version: 2, providers: "p2" });
        await session.answer(session.sent[0], Outcome.AWAITING_COMPONENT);
        const failure = { code: "provider_environment_unavailable", message: "cannot be used" };
        const refused = { outcome: Outcome.FAILED_CLOSED, failure };
        await session.answer(session.sent[1], Outcome.APPLIED, undefined, undefined, refused);
        expect(session.outcomes).toMatchObject([
          { component: "config", applied: true },
          { component: "environment", applied: false, verdict: "rejected", failure: { code: failure.code } },
        ]);
        expect(session.sent).toHaveLength(2);
        session.delivery.reconcile();
        await settle();
        expect(session.story.slice(2)).toEqual(["environment p2"]);
      });

      it("counts neither half when their outcomes could not be stored", async () => {
        session.record = () => Promise.reject(new Error("disk full"));
        await session.change({ version: 2, providers: "p2" });
        await session.answer(session.sent[0], Outcome.AWAITING_COMPONENT);
        const together = { outcome: Outcome.APPLIED, appliedRevision: "p2" };
        await session.answer(session.sent[1], Outcome.APPLIED, undefined, undefined, together);
        session.record = async (outcome) => void session.outcomes.push(outcome);
        clock.advance(BUILD_RETRY_FIRST_MS);
        await settle();
        expect(session.story.slice(2)).toEqual(["config 2"]);
        await session.answer(session.sent[2], Outcome.IGNORED_DUPLICATE);
        expect(session.story.slice(3)).toEqual(["environment p2"]);
        await session.answer(session.sent[3], Outcome.IGNORED_DUPLICATE);
        expect(session.outcomes).toMatchObject([
          { component: "config", applied: true },
          { component: "environment", applied: true, news: true },
        ]);
      });

      it("believes an answer nothing of a half that does not wait, or of another pair", async () => {
        await session.change({ version: 2, providers: "p2" });
        const together = { outcome: Outcome.APPLIED, appliedRevision: "p2" };
        await session.answer(session.sent[1], Outcome.APPLIED, undefined, undefined, together);
        expect(session.outcomes).toMatchObject([{ component: "config" }]);
        await session.answer(session.sent[0], Outcome.AWAITING_COMPONENT);
        await session.answer(session.sent[2], Outcome.AWAITING_COMPONENT);
        // What waits is of version 2, whatever the answer to version 3 says.
        await session.change({ version: 3, providers: "p3" });
        expect(session.story.slice(3)).toEqual(["environment p3", "config 3"]);
        await session.answer(session.sent[4], Outcome.APPLIED, undefined, undefined, together);
        expect(session.outcomes).toMatchObject([{ component: "config" }, { component: "config" }]);
      });

      it("sends the staged half as it was built, unless something may have changed since", async () => {
        await session.change({ version: 2, providers: "p2" });
        await session.answer(session.sent[0], Outcome.AWAITING_COMPONENT);
        await session.answer(session.sent[1], Outcome.APPLIED);
        expect(session.story.slice(2)).toEqual(["environment p2"]);
        expect(session.builds).toBe(1);
        await session.answer(session.sent[2], Outcome.IGNORED_DUPLICATE);

        await session.change({ version: 3, providers: "p3" });
        await session.answer(session.sent[3], Outcome.AWAITING_COMPONENT);
        await session.change({ version: 4, providers: "p4" });
        await session.answer(session.sent[4], Outcome.APPLIED);
        expect(session.story.slice(5)).toEqual(["environment p4", "config 4"]);
        expect(session.builds).toBe(3);
      });

      it("tries again when the values of a staged half cannot be opened once more", async () => {
        await session.change({ version: 2, providers: "p2" });
        await session.answer(session.sent[0], Outcome.AWAITING_COMPONENT);
        session.openError = new Error("the key is gone");
        await session.answer(session.sent[1], Outcome.APPLIED);
        expect(session.errors).toEqual([session.openError]);
        expect(session.story).toEqual(["environment p2", "config 2"]);
        session.openError = undefined;
        clock.advance(BUILD_RETRY_FIRST_MS);
        await settle();
        expect(session.story).toEqual(["environment p2", "config 2", "environment p2"]);
      });

      it("builds the refused counterpart of a staged half again, once", async () => {
        await session.change({ version: 2, providers: "p2" });
        await session.answer(session.sent[0], Outcome.FAILED_CLOSED);
        await session.answer(session.sent[1], Outcome.AWAITING_COMPONENT);
        expect(session.story).toEqual(["environment p2", "config 2", "environment p2"]);
        await session.answer(session.sent[2], Outcome.FAILED_CLOSED);
        await settle();
        expect(session.sent).toHaveLength(3);
      });

      it("does not let two halves that wait for each other call each other for ever", async () => {
        await session.change({ version: 2, providers: "p2" });
        await session.answer(session.sent[0], Outcome.AWAITING_COMPONENT);
        await session.answer(session.sent[1], Outcome.AWAITING_COMPONENT);
        await settle();
        expect(session.sent).toHaveLength(2);
        session.delivery.reconcile();
        await settle();
        expect(session.sent).toHaveLength(4);
      });

      it("replaces a staged half by a newer one", async () => {
        await session.change({ version: 2, providers: "p2" });
        await session.answer(session.sent[0], Outcome.AWAITING_COMPONENT);
        await session.change({ providers: "p3" });
        await session.answer(session.sent[1], Outcome.AWAITING_COMPONENT);
        expect(session.story.slice(2)).toEqual(["environment p3", "config 2"]);
        await session.answer(session.sent[2], Outcome.AWAITING_COMPONENT);
        await session.answer(session.sent[3], Outcome.APPLIED);
        expect(session.story.slice(4)).toEqual(["environment p3"]);
        await session.answer(session.sent[4], Outcome.IGNORED_DUPLICATE);
        await settle();
        expect(session.sent).toHaveLength(5);
      });

      it("forgets a half that waited when a configuration of another pair comes into force: so did the supervisor", async () => {
        await session.change({ version: 2, providers: "p2" });
        await session.answer(session.sent[0], Outcome.AWAITING_COMPONENT);
        // Both times.
        await session.answer(session.sent[1], Outcome.FAILED_CLOSED);
        await session.answer(session.sent[2], Outcome.FAILED_CLOSED);
        await session.change({ version: 3, providers: "p1" });
        expect(session.story.slice(2)).toEqual(["config 2", "config 3"]);
        await session.answer(session.sent[3], Outcome.APPLIED);
        // A binding that the second one took away would go on otherwise, until the reconcile.
        await session.change({ version: 4, providers: "p2" });
        expect(session.story.slice(4)).toEqual(["environment p2", "config 4"]);
      });

      it("sends a refused half once more with each configuration of its pair that comes into force", async () => {
        await session.change({ version: 2, providers: "p2" });
        await session.answer(session.sent[0], Outcome.FAILED_CLOSED);
        await session.answer(session.sent[1], Outcome.APPLIED);
        expect(session.story.slice(2)).toEqual(["environment p2"]);
        await session.answer(session.sent[2], Outcome.FAILED_CLOSED);
        await settle();
        expect(session.sent).toHaveLength(3);
        await session.change({ version: 3 });
        expect(session.story.slice(3)).toEqual(["config 3"]);
        await session.answer(session.sent[3], Outcome.APPLIED);
        expect(session.story.slice(4)).toEqual(["environment p2"]);
        await session.answer(session.sent[4], Outcome.APPLIED);
        expect(session.outcomes.at(-1)).toMatchObject({ component: "environment", applied: true, news: true });
      });

      it("resends a staged half of a pair that another one came between", async () => {
        for (const [version, providers] of [
          [2, "p2"],
          [3, "p1"],
          [4, "p2"],
        ] as const) {
          const before = session.sent.length;
          await session.change({ version, providers });
          expect(session.story.slice(before)).toEqual([`environment ${providers}`, `config ${version}`]);
          await session.answer(session.sent[before], Outcome.AWAITING_COMPONENT);
          await session.answer(session.sent[before + 1], Outcome.APPLIED);
          expect(session.story.slice(before + 2)).toEqual([`environment ${providers}`]);
          await session.answer(session.sent[before + 2], Outcome.IGNORED_DUPLICATE);
        }
      });

      it("sends the values of providers no second time for another policy, nor opens them", async () => {
        await session.change({ version: 2 });
        await session.answer(session.sent[0], Outcome.APPLIED);
        expect(session.story).toEqual(["config 2"]);
        expect(session.opened).toBe(0);
        expect(session.outcomes).toMatchObject([{ component: "config", applied: true, news: true }]);
      });
    });

    it("refuses what is too large to be sent, visibly, and goes on", async () => {
      await session.change({ version: 2, padding: MAX_CONFIG_BYTES });
      expect(session.story).toEqual([]);
      expect(session.outcomes).toMatchObject([
        { component: "config", applied: false, verdict: "rejected", failure: { code: "payload_too_large" } },
      ]);
      session.delivery.markDirty();
      await settle();
      expect(session.outcomes).toHaveLength(1);
      await session.change({ version: 3, padding: 0 });
      expect(session.story).toEqual(["config 3"]);
    });

    it("ends a session that does not answer", async () => {
      await session.change({ version: 2 });
      clock.advance(ACK_TIMEOUT_MS - 1);
      await settle();
      expect(session.failed).toBeUndefined();
      clock.advance(1);
      await settle();
      expect(session.failed).toBeInstanceOf(Error);
    });

    it("does not blame the supervisor for a store that is slow to take its answer", async () => {
      session.record = () => new Promise(() => {});
      await session.change({ version: 2 });
      for (const update of session.sent) void session.answer(update, Outcome.APPLIED);
      await settle();
      clock.advance(ACK_TIMEOUT_MS);
      await settle();
      expect(session.failed).toBeUndefined();
    });

    it("tries a snapshot that cannot be built again after 1 to 30 s", async () => {
      session.buildError = new Error("store busy");
      await session.change({ version: 2 });
      const waits: number[] = [];
      for (let attempt = 0; attempt < 7; attempt++) {
        const before = session.builds;
        let waited = 0;
        while (session.builds === before) {
          clock.advance(1_000);
          waited += 1_000;
          await settle();
        }
        waits.push(waited);
      }
      expect(waits).toEqual([1_000, 2_000, 4_000, 8_000, 16_000, BUILD_RETRY_LAST_MS, BUILD_RETRY_LAST_MS]);
      session.buildError = undefined;
      clock.advance(BUILD_RETRY_LAST_MS);
      await settle();
      expect(session.story).toEqual(["config 2"]);
    });

    it("ends the wait after a failure early when there is news, and not for the reconcile", async () => {
      session.buildError = new Error("store busy");
      await session.change({ version: 2 });
      session.buildError = undefined;
      session.delivery.reconcile();
      await settle();
      expect(session.builds).toBe(1);
      clock.advance(BUILD_RETRY_FIRST_MS / 2);
      await session.change({ version: 3 });
      expect(session.story).toEqual(["config 3"]);
    });

    it("sends nothing after its end, and waits for nothing", async () => {
      await session.change({ version: 2 });
      scheduler.unregister(session.delivery);
      await session.change({ version: 3 });
      expect(session.sent).toHaveLength(1);
      clock.advance(ACK_TIMEOUT_MS);
      await settle();
      expect(session.failed).toBeUndefined();
      expect(clock.due(1_000_000)).toBe(0);
    });
  });
});
