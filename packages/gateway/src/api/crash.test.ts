import { DeletionOutcome, SandboxPhase } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "./testing/harness.ts";

/** Both sides of each of the first `steps` effects: more than the scenario has, so that its last one is covered. */
const walk = (steps: number) =>
  Array.from({ length: steps }, (_, index) => index + 1).flatMap((step) => [
    [step, "before"] as const,
    [step, "after"] as const,
  ]);

/** Above the sum of what a test waits for: a wait that comes to its own limit says what it saw, this one does not. Milliseconds. */
const TEST_LIMIT_MS = 30_000;

describe("a gateway that dies", { timeout: TEST_LIMIT_MS }, () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  const exists = async (): Promise<boolean> => (await gateway.store.sandboxes.byName("default", "box")) !== undefined;
  const remove = () => gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box", allowMissing: true });
  async function nothingLeft(): Promise<void> {
    expect(gateway.driver.sandboxes.size).toBe(0);
    expect(await gateway.store.idBlocks.all()).toEqual([]);
    expect([...gateway.workloads.values()].filter(({ running }) => running)).toEqual([]);
  }
  function startedOnce(): void {
    for (const count of gateway.driver.launches.values()) expect(count).toBe(1);
    for (const { started } of gateway.workloads.values()) expect(started).toBeLessThanOrEqual(1);
  }

  it.each(walk(7))("at effect %i of a create (%s it): the sandbox runs once, or never was", async (step, when) => {
    const died = await gateway.dieDuring(step, when, async () => {
      await gateway.create();
      await gateway.phase(SandboxPhase.READY);
    });
    if (await exists()) {
      await gateway.phase(SandboxPhase.READY);
      startedOnce();
      expect([...gateway.workloads.values()].map(({ started }) => started)).toEqual([1]);
    } else {
      expect(died).toBe(true);
      await nothingLeft();
    }
    expect((await remove()).outcome).not.toBe(DeletionOutcome.UNSPECIFIED);
    await nothingLeft();
  });

  it.each(walk(6))("at effect %i of a delete (%s it): it is finished, or was never asked for", async (step, when) => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    await gateway.dieDuring(step, when, remove);
    await gateway.until(async () => {
      const record = await gateway.store.sandboxes.byName("default", "box");
      return record?.status.phase !== SandboxPhase.DELETING;
    }, "no deletion under way");
    if (await exists()) {
      await gateway.phase(SandboxPhase.READY);
      await remove();
    }
    expect(await exists()).toBe(false);
    await gateway.until(() => gateway.driver.sandboxes.size === 0, "driver empty");
    await nothingLeft();
    startedOnce();
  });

  it.each(walk(11))(
    "at effect %i of a stop and start (%s it): every generation runs at most once",
    async (step, when) => {
      await gateway.create();
      await gateway.phase(SandboxPhase.READY);
      await gateway.dieDuring(step, when, async () => {
        await gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" });
        await gateway.phase(SandboxPhase.STOPPED);
        await gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
        await gateway.phase(SandboxPhase.READY);
      });
      const resting = [SandboxPhase.READY, SandboxPhase.STOPPED];
      await gateway.until(async () => resting.includes((await gateway.get()).status!.phase), "at rest");
      if ((await gateway.get()).status!.phase === SandboxPhase.STOPPED) {
        await gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
      }
      await gateway.phase(SandboxPhase.READY);
      startedOnce();
      await remove();
      await nothingLeft();
    },
  );

  it.each(walk(4))(
    "at effect %i after the main process has ended (%s it): the exit status is exact",
    async (step, when) => {
      const { metadata } = await gateway.create({ spec: { command: ["true"] } });
      await gateway.phase(SandboxPhase.READY);
      await gateway.dieDuring(step, when, async () => {
        gateway.host!.attached.get(metadata!.id)!.exit(9);
        await gateway.phase(SandboxPhase.ERROR);
        await gateway.until(() => gateway.driver.sandboxes.get(metadata!.id)?.running === undefined, "released");
      });
      const ended = await gateway.phase(SandboxPhase.ERROR);
      expect(ended.status?.exitCode).toBe(9);
      await gateway.until(() => gateway.driver.sandboxes.get(metadata!.id)?.running === undefined, "released");
      startedOnce();
    },
  );
});
