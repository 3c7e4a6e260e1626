import { readdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxPhase } from "@openshell/api";
import { describe, expect, it } from "vitest";
import { expectNoLeaks, takeInventory } from "../../support/leaks.ts";
import { GatewayProcess } from "./gateway-process.ts";
import { exists, persistently, run, untilGone, untilPhase, workspaceScope } from "./sandboxes.ts";

/** Milliseconds after the call at which the gateway is killed: from before it is read to well after it is done. */
const MOMENTS = [0, 5, 15, 30, 50, 80, 130, 220, 400];

describe("kill -9 of the gateway", () => {
  it("at any moment of create leaves either no sandbox or one that becomes ready", { timeout: 180_000 }, async () => {
    const before = takeInventory();
    {
      await using gateway = new GatewayProcess();
      await gateway.started();
      let survived = 0;
      for (const moment of MOMENTS) {
        const name = `c${moment}`;
        const creating = gateway.local().createSandbox({ workspaceScope, name, spec: { command: ["sleep", "1000"] } });
        const acknowledged = creating.then(
          () => true,
          () => false,
        );
        await sleep(moment);
        await gateway.end("SIGKILL");
        await gateway.started();
        const client = gateway.local();
        if (await exists(client, name)) {
          survived++;
          await untilPhase(client, name, SandboxPhase.READY);
          expect(await persistently(() => run(client, name, "echo", "alive"))).toBe("alive\nexit 0");
          await client.deleteSandbox({ workspaceScope, name });
          await untilGone(client, name);
        } else {
          expect(await acknowledged, name).toBe(false);
        }
        expect(readdirSync(join(gateway.paths.state, "sandboxes")), name).toEqual([]);
      }
      console.log(`${survived} of ${MOMENTS.length} creations outlived the gateway`);
      expect(survived).toBeGreaterThan(0);
      // A host that was started last may still be dialling: a gateway that stops leaves alone what it knows nothing of.
      await gateway.local().createSandbox({ workspaceScope, name: "last", spec: { command: ["sleep", "1000"] } });
      await untilPhase(gateway.local(), "last", SandboxPhase.READY);
      await gateway.local().deleteSandbox({ workspaceScope, name: "last" });
      await untilGone(gateway.local(), "last");
      await gateway.end();
    }
    await expectNoLeaks(before);
  });

  it("at any moment of delete leaves the sandbox either running or gone", { timeout: 180_000 }, async () => {
    const before = takeInventory();
    {
      await using gateway = new GatewayProcess();
      await gateway.started();
      for (const moment of MOMENTS) {
        const name = `d${moment}`;
        await gateway.local().createSandbox({ workspaceScope, name, spec: { command: ["sleep", "1000"] } });
        await untilPhase(gateway.local(), name, SandboxPhase.READY);
        const deleting = gateway.local().deleteSandbox({ workspaceScope, name });
        const acknowledged = deleting.then(
          () => true,
          () => false,
        );
        await sleep(moment);
        await gateway.end("SIGKILL");
        await gateway.started();
        const client = gateway.local();
        if (await acknowledged) await untilGone(client, name);
        else {
          // Either it was never begun, or it is taken up by itself.
          const phase = await client.getSandbox({ workspaceScope, name }).then(
            ({ sandbox }) => sandbox?.status?.phase,
            () => undefined,
          );
          if (phase === SandboxPhase.READY || phase === SandboxPhase.PROVISIONING) {
            expect(await persistently(() => run(client, name, "echo", "alive"))).toBe("alive\nexit 0");
            await client.deleteSandbox({ workspaceScope, name });
          }
          await untilGone(client, name);
        }
        expect(readdirSync(join(gateway.paths.state, "sandboxes")), name).toEqual([]);
      }
      await gateway.end();
    }
    await expectNoLeaks(before);
  });
});
