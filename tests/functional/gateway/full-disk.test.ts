import { spawnSync } from "node:child_process";
import { statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import { SandboxPhase } from "@openshell/api";
import { describe, expect, it } from "vitest";
import { expectNoLeaks, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { GatewayProcess } from "./gateway-process.ts";
import { createReady, run, untilGone, untilPhase, workspaceScope } from "./sandboxes.ts";

const WAIT_MS = 20_000;
/** Never stops asking for more, also when there is none. */
const FILLER = "i=0; while :; do i=$((i+1)); cat /dev/zero > ~/f$i; done 2>/dev/null";

async function until(holds: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const deadline = performance.now() + WAIT_MS;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`${what}: not within ${WAIT_MS} ms`);
    await sleep(20);
  }
}

// Only root may mount a small disk.
describe.skipIf(mode !== "root")("a gateway whose disk a sandbox fills", () => {
  it("says so, still stops and deletes that sandbox and records the exit of another, and then stores as before", {
    timeout: 120_000,
  }, async () => {
    const before = takeInventory();
    {
      await using gateway = new GatewayProcess();
      const disk = gateway.home.state;
      const mounted = spawnSync("mount", ["-t", "tmpfs", "-o", "size=128m,mode=700", "small-disk", disk]);
      if (mounted.status !== 0) throw new Error(`mount: ${mounted.stderr}`);
      try {
        await gateway.started();
        const client = gateway.local();
        const reserve = join(gateway.paths.state, "disk-reserve");
        const reserved = (): number => statSync(reserve, { throwIfNoEntry: false })?.size ?? 0;
        await until(() => reserved() === 8 * 1024 * 1024, "the reserve");
        await createReady(client, "filler");
        await client.createSandbox({
          workspaceScope,
          name: "other",
          spec: { command: ["sh", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done; exit 7"] },
        });
        await untilPhase(client, "other", SandboxPhase.READY);
        expect(await run(client, "filler", "sh", "-c", `(${FILLER}) >/dev/null 2>&1 & true`)).toBe("exit 0");

        const change = async (value: boolean): Promise<Code | undefined> => {
          const settingValue = { value: { case: "boolValue", value } } as const;
          const request = { global: true, settingKey: "providers_v2_enabled", settingValue };
          return await client.updateConfig(request).then(
            () => undefined,
            (error: unknown) => ConnectError.from(error).code,
          );
        };
        let on = false;
        await until(async () => {
          on = !on;
          return (await change(on)) === Code.ResourceExhausted;
        }, "the end of the disk");

        // What `other` waits for lies on its own /tmp.
        await run(client, "other", "sh", "-c", "touch /tmp/go").catch(() => "");
        await untilPhase(client, "other", SandboxPhase.COMPLETED).catch(() => "");
        const { sandbox: ended } = await client.getSandbox({ workspaceScope, name: "other" });
        expect(ended!.status!.exitCode).toBe(7);

        await client.stopSandbox({ workspaceScope, name: "filler" });
        await untilPhase(client, "filler", SandboxPhase.STOPPED);
        expect(reserved()).toBeLessThan(8 * 1024 * 1024);
        await client.deleteSandbox({ workspaceScope, name: "filler" });
        await untilGone(client, "filler");
        await until(async () => (await change(true)) === undefined, "a change");
        await until(() => reserved() === 8 * 1024 * 1024, "the reserve again");
        expect(await gateway.log()).toMatch(/the disk of the state folder was full/);
        await client.deleteSandbox({ workspaceScope, name: "other" });
        await untilGone(client, "other");
        await gateway.end();
      } finally {
        await gateway.end("SIGKILL").catch(() => {});
        spawnSync("umount", ["-l", disk]);
      }
    }
    await expectNoLeaks(before);
  });
});
