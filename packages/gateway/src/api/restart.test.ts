import { Code } from "@connectrpc/connect";
import { SandboxPhase, SandboxRestartPolicy } from "@openshell/api";
import { timestampMs } from "@openshell/api/times.ts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { FrozenClock } from "./testing/frozen-clock.ts";
import { Harness } from "./testing/harness.ts";

const { ALWAYS, NEVER, ON_FAILURE } = SandboxRestartPolicy;
/** Turns of the event loop in which nothing must happen. */
const QUIET_TURNS = 50;

/** Both sides of each of the first `steps` effects: more than the scenario has, so that its last one is covered. */
const walk = (steps: number) =>
  Array.from({ length: steps }, (_, index) => index + 1).flatMap((step) => [
    [step, "before"] as const,
    [step, "after"] as const,
  ]);

async function quiet(): Promise<void> {
  for (let turn = 0; turn < QUIET_TURNS; turn++) await new Promise((resolve) => setImmediate(resolve));
}

describe("a sandbox with a restart policy", { timeout: 30_000 }, () => {
  let clock: FrozenClock;
  let gateway: Harness;
  beforeEach(async () => {
    clock = new FrozenClock();
    gateway = await Harness.open(clock);
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  const create = (restartPolicy: SandboxRestartPolicy) =>
    gateway.create({ spec: { command: ["work"], restartPolicy } });
  const stored = async () => (await gateway.store.sandboxes.byName("default", "box"))!;
  const stop = () => gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" });
  const start = () => gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
  const launches = () => [...gateway.driver.launches].map(([key, count]) => [key.split("/")[1], count]);

  /** The generation runs, and the gateway knows. */
  async function running(generation: bigint): Promise<void> {
    await gateway.until(async () => {
      const record = await stored();
      return record.generation === generation && record.status.phase === SandboxPhase.READY;
    }, `generation ${generation} runs`);
  }

  /** The main process ends; resolves when that is stored and its compute given back. */
  async function exit(code: number): Promise<number> {
    const { id, generation } = await stored();
    gateway.host!.attached.get(id)!.exit(code);
    let waitMs: number | undefined;
    await gateway.until(async () => {
      const now = await stored();
      const { exitCode, nextRestartTime } = now.status;
      // One that follows at once may be there already.
      if (now.generation > generation) waitMs = 0;
      else if (exitCode === code)
        waitMs = nextRestartTime === undefined ? Number.NaN : timestampMs(nextRestartTime) - clock.now();
      return waitMs !== undefined;
    }, "exit stored");
    await released(id, generation);
    return waitMs!;
  }

  async function released(id: string, generation: bigint): Promise<void> {
    await gateway.until(() => {
      const held = gateway.driver.sandboxes.get(id);
      return held?.generation !== generation || held.running === undefined;
    }, "compute given back");
  }

  /** A restart is waited for, to the millisecond, and comes. */
  async function afterWait(waitMs: number, generation: bigint): Promise<void> {
    await gateway.until(() => clock.due(waitMs) > 0, "the restart's timer");
    const before = await stored();
    clock.advance(waitMs - 1);
    await quiet();
    expect(await stored()).toEqual(before);
    clock.advance(1);
    await running(generation);
  }

  it("runs again at once, then after 1, 2, 4 s; a run of 10 s begins anew; each generation is launched once", async () => {
    await create(ALWAYS);
    await running(1n);
    expect(await exit(3)).toBe(0);
    await running(2n);
    for (const [index, seconds] of [1, 2, 4].entries()) {
      expect(await exit(index % 2)).toBe(seconds * 1000);
      const waiting = await gateway.get();
      expect(waiting.status).toMatchObject({ phase: SandboxPhase.STARTING, restartCount: index + 1 });
      await afterWait(seconds * 1000, BigInt(index + 3));
      expect((await gateway.get()).status).toMatchObject({ restartCount: index + 2 });
      expect((await gateway.get()).status?.nextRestartTime).toBeUndefined();
    }
    clock.advance(10_000);
    expect(await exit(1)).toBe(0);
    await running(6n);
    expect(await exit(1)).toBe(1_000);
    expect(launches()).toEqual(["1", "2", "3", "4", "5", "6"].map((generation) => [generation, 1]));
    expect((await gateway.get()).metadata?.id).toBe([...gateway.driver.sandboxes.keys()][0]);
  });

  it("on-failure lets a run that succeeds be the last one", async () => {
    await create(ON_FAILURE);
    await running(1n);
    expect(await exit(2)).toBe(0);
    await running(2n);
    expect(await exit(0)).toBeNaN();
    expect((await gateway.phase(SandboxPhase.COMPLETED)).status).toMatchObject({ restartCount: 1, exitCode: 0 });
  });

  it("counts reported ends of the main process alone", async () => {
    const { metadata } = await create(ALWAYS);
    await running(1n);
    gateway.host!.attached.get(metadata!.id)!.send({ case: "ended", value: {} });
    const failed = await gateway.phase(SandboxPhase.ERROR);
    expect(failed.status?.conditions.find(({ type }) => type === "Ready")?.reason).toBe("SandboxEnded");
    expect(failed.status?.restartCount).toBe(0);
  });

  it("a start that was cut off before the main process ran ended in ERROR; it is repeated, and is no restart", async () => {
    await create(NEVER);
    await running(1n);
    await stop();
    gateway.host!.interruptedStarts = 3;
    await start();
    await running(5n);
    expect((await gateway.get()).status?.restartCount).toBe(0);
    expect(gateway.host!.interruptedStarts).toBe(0);
    await stop();
    // Something ends every start: a person has to look.
    gateway.host!.interruptedStarts = 4;
    await start();
    const failed = await gateway.phase(SandboxPhase.ERROR);
    expect(failed.status?.conditions.find(({ type }) => type === "Ready")).toMatchObject({
      reason: "SandboxEnded",
      message: expect.stringContaining("it was cut off"),
    });
    gateway.host!.interruptedStarts = 1;
    await start();
    await running(11n);
  });

  it("a stop calls off the restart that is waited for, for ever", async () => {
    await create(ALWAYS);
    await running(1n);
    await exit(1);
    await running(2n);
    await exit(1);
    expect((await stop()).sandbox?.status).toMatchObject({ phase: SandboxPhase.STOPPED, restartCount: 1 });
    expect((await gateway.get()).status?.nextRestartTime).toBeUndefined();
    clock.advance(3_600_000);
    await gateway.restart();
    await quiet();
    expect((await gateway.get()).status?.phase).toBe(SandboxPhase.STOPPED);
    expect(launches()).toHaveLength(2);
  });

  it("a start that is asked for waits for nothing and forgets what was counted", async () => {
    await create(ALWAYS);
    await running(1n);
    await exit(1);
    await running(2n);
    expect(await exit(1)).toBe(1_000);
    expect((await start()).sandbox?.status).toMatchObject({ phase: SandboxPhase.STARTING, restartCount: 0 });
    await running(3n);
    expect(await exit(1)).toBe(0);
    await running(4n);
    await stop();
    await start();
    await running(5n);
    expect((await gateway.get()).status?.restartCount).toBe(0);
    expect(await exit(1)).toBe(0);
    await running(6n);
    clock.advance(200_000);
    await quiet();
    expect(launches()).toHaveLength(6);
  });

  it("is deleted while it waits", async () => {
    const { metadata } = await create(ALWAYS);
    await running(1n);
    await exit(1);
    await running(2n);
    await exit(1);
    await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(await gateway.store.sandboxes.byId(metadata!.id)).toBeUndefined();
    clock.advance(3_600_000);
    expect(gateway.driver.sandboxes.size).toBe(0);
  });

  it("gives its next run only when the output of the last was taken; who attaches meanwhile is there for it", async () => {
    const gate = Promise.withResolvers<void>();
    let relays = 0;
    gateway.configureHost = (host) => {
      host.relay = async (relay) => {
        await relay.down.next();
        const run = ++relays;
        await relay.send({ case: "stdout", value: { data: Buffer.from(`run ${run}`) } });
        if (run === 1) await gate.promise;
        await relay.send({ case: "exit", value: { exitCode: 40 + run } });
      };
    };
    await create(ALWAYS);
    await running(1n);
    const attach = async (run?: string) => {
      const input = (async function* () {
        yield { payload: { case: "start" as const, value: { workspaceScope: gateway.scope, sandbox: "box" } } };
      })();
      const headers: Record<string, string> = { "openshell-attach": "main-process" };
      if (run !== undefined) headers["openshell-main-process-run"] = run;
      let joined = "";
      let code: number | undefined;
      const onHeader = (fields: Headers) => {
        joined = fields.get("openshell-main-process-run") ?? "";
      };
      for await (const { payload } of gateway.client.execSandboxInteractive(input, { headers, onHeader })) {
        if (payload.case === "exit") code = payload.value.exitCode;
      }
      return { joined, code };
    };
    const first = attach();
    await gateway.until(() => relays === 1, "attached");
    const { id } = await stored();
    gateway.host!.attached.get(id)!.exit(41);
    await gateway.until(async () => (await stored()).status.exitCode === 41, "exit stored");
    await quiet();
    expect((await stored()).generation).toBe(1n);
    gate.resolve();
    expect(await first).toEqual({ joined: "1", code: 41 });
    await running(2n);
    expect(await attach()).toEqual({ joined: "2", code: 42 });
    // A lost attachment to the first run is not continued with the second.
    await expect(attach("1")).rejects.toMatchObject({
      code: Code.FailedPrecondition,
      rawMessage: expect.stringMatching(/has ended, and another run follows it/),
    });
    expect(await attach("2")).toEqual({ joined: "2", code: 43 });
  });

  it("is refused together with a sandbox that goes with its main process, and with a policy nobody knows", async () => {
    const annotations = { "openshell.nvidia.com/retention": "ephemeral" };
    for (const bad of [
      { annotations, spec: { restartPolicy: ALWAYS } },
      { annotations, spec: { restartPolicy: ON_FAILURE } },
      { spec: { restartPolicy: 9 as SandboxRestartPolicy } },
    ]) {
      await expect(gateway.create(bad)).rejects.toMatchObject({
        code: Code.InvalidArgument,
        rawMessage: expect.stringMatching(/spec\.restart_policy/),
      });
    }
    await gateway.create({ annotations, spec: { restartPolicy: NEVER } });
  });

  it.each([
    [ALWAYS, "ALWAYS"],
    [ON_FAILURE, "ON_FAILURE"],
  ])("of policy %i (%s) runs again when the machine was restarted, once", async (policy) => {
    await create(policy);
    await running(1n);
    await gateway.reboot();
    await running(2n);
    expect((await gateway.get()).status).toMatchObject({ restartCount: 1 });
    await gateway.restart();
    await running(2n);
    await gateway.reboot();
    await running(3n);
    expect(launches()).toEqual(["1", "2", "3"].map((generation) => [generation, 1]));
  });

  it("that was stopped or had ended stays so when the machine was restarted; one that waits keeps its time", async () => {
    await create(ON_FAILURE);
    await running(1n);
    await exit(1);
    await running(2n);
    expect(await exit(1)).toBe(1_000);
    await gateway.reboot();
    await afterWait(1_000, 3n);
    await exit(0);
    await gateway.reboot();
    expect((await gateway.get()).status).toMatchObject({ phase: SandboxPhase.COMPLETED });
    await start();
    await running(4n);
    await stop();
    await gateway.reboot();
    expect((await gateway.get()).status).toMatchObject({ phase: SandboxPhase.STOPPED });
    expect(launches()).toHaveLength(4);
  });

  describe("whose gateway dies", () => {
    it.each(walk(7))("at effect %i of a first restart (%s it): it runs again, once", async (step, when) => {
      const { metadata } = await create(ALWAYS);
      await running(1n);
      await gateway.dieDuring(step, when, async () => {
        gateway.host!.attached.get(metadata!.id)!.exit(5);
        await running(2n);
      });
      await running(2n);
      expect((await gateway.get()).status).toMatchObject({ restartCount: 1 });
      expect(launches()).toEqual([
        ["1", 1],
        ["2", 1],
      ]);
      for (const { started } of gateway.workloads.values()) expect(started).toBe(1);
    });

    it.each(walk(7))("at effect %i around a wait (%s it): it runs again at its time, once", async (step, when) => {
      const { metadata } = await create(ALWAYS);
      await running(1n);
      await exit(5);
      await running(2n);
      await gateway.dieDuring(step, when, async () => {
        gateway.host!.attached.get(metadata!.id)!.exit(6);
        await gateway.until(async () => (await stored()).status.exitCode === 6, "exit stored");
        await released(metadata!.id, 2n);
        await gateway.until(() => clock.due(1_000) > 0, "the restart's timer");
        clock.advance(1_000);
        await running(3n);
      });
      // However far it came: nothing is left to wait for but the rest of this second.
      await gateway.until(async () => {
        const { generation, status } = await stored();
        return generation === 3n || (status.exitCode === 6 && clock.due(1_000) > 0);
      }, "waiting or restarted");
      if ((await stored()).generation === 2n) clock.advance(1_000);
      await running(3n);
      clock.advance(200_000);
      await quiet();
      expect(await stored()).toMatchObject({ generation: 3n, status: { restartCount: 2 } });
      expect(launches()).toEqual(["1", "2", "3"].map((generation) => [generation, 1]));
    });

    it.each(walk(4))(
      "at effect %i of a stop in the wait (%s it): it is stopped or runs, never both",
      async (step, when) => {
        await create(ALWAYS);
        await running(1n);
        await exit(5);
        await running(2n);
        await exit(6);
        await gateway.dieDuring(step, when, stop);
        await gateway.until(async () => (await stored()).status.phase !== SandboxPhase.STOPPING, "at rest");
        const stopped = (await stored()).status.phase === SandboxPhase.STOPPED;
        if (!stopped) await gateway.until(() => clock.due(1_000) > 0, "the restart's timer");
        clock.advance(1_000);
        if (stopped) {
          await quiet();
          expect(await stored()).toMatchObject({ generation: 2n, status: { phase: SandboxPhase.STOPPED } });
        } else await running(3n);
        for (const [, count] of launches()) expect(count).toBe(1);
      },
    );

    it.each(walk(5))("at effect %i after a restart of the machine (%s it): it runs again, once", async (step, when) => {
      await create(ON_FAILURE);
      await running(1n);
      await gateway.dieAfterReboot(step, when, () => running(2n));
      await running(2n);
      expect((await gateway.get()).status).toMatchObject({ restartCount: 1 });
      expect(launches()).toEqual([
        ["1", 1],
        ["2", 1],
      ]);
    });
  });
});
