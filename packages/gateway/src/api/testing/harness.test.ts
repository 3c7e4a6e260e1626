import { SandboxPhase } from "@openshell/api";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "./harness.ts";

describe("the harness of a gateway", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());
  const stop = () => gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" });
  const remove = () => gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });

  it("lets a gateway die after an effect that was seen before the death", async () => {
    const { metadata } = await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    // The second effect of a stop is the driver's. It has happened and is seen, but its operation has not returned.
    const gate = Promise.withResolvers<void>();
    gateway.driver.after = () => gate.promise;
    const died = await gateway.dieDuring(2, "after", async () => {
      void stop().catch(() => {});
      await gateway.until(() => gateway.driver.sandboxes.get(metadata!.id)?.running === undefined, "ended");
      gateway.driver.after = () => {};
      setTimeout(gate.resolve, 20);
    });
    expect(died).toBe(true);
    await gateway.phase(SandboxPhase.STOPPED);
    await remove();
    expect(gateway.driver.sandboxes.size).toBe(0);
  });

  it("lets a gateway live whose death is beyond what was done", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    expect(await gateway.dieDuring(100, "before", stop)).toBe(false);
    await remove();
  });

  it("lets a gateway die at an effect that fails", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    gateway.driver.before = (operation) => {
      if (operation === "stop") throw new Error("busy");
    };
    expect(await gateway.dieDuring(2, "after", stop)).toBe(true);
    gateway.driver.before = () => {};
    await gateway.phase(SandboxPhase.STOPPED);
  });

  it("ends a wait that a death has overtaken", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    const overtaken = expect(gateway.phase(SandboxPhase.ERROR)).rejects.toThrow(/expected of is dead/);
    expect(await gateway.dieDuring(1, "before", stop)).toBe(true);
    await overtaken;
  });

  it("limits a wait for what never comes, a condition that never answers and a call of the dead, and says what it saw", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    gateway.limitMs = 100;
    await expect(gateway.phase(SandboxPhase.STOPPED)).rejects.toThrow(
      /phase STOPPED of box: not within 100 ms\nprocess alive after \d+ effects: .*driver create.*\nstored box: generation 1, READY/,
    );
    await expect(gateway.until(() => new Promise<never>(() => {}), "an answer")).rejects.toThrow(
      /an answer: not within 100 ms\nprocess alive/,
    );
    // Enough for the call to come as far as its first effect on a busy machine.
    gateway.limitMs = 1_000;
    const died = gateway.crashAt(1, "before");
    await expect(stop()).rejects.toThrow(
      /answer to StopSandbox: not within 1000 ms\nprocess dead .*modify sandbox \(died before it\)\nstored box: generation 1, READY/,
    );
    await died;
  });
});
