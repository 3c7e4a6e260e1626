import { readdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, it } from "vitest";
import { expectNoLeaks, runProcesses, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { GatewayProcess } from "./gateway-process.ts";
import { createReady, run, untilGone, workspaceScope } from "./sandboxes.ts";

/** Sandboxes that come and go, several at a time. The same with 500 and times: `npm run bench -- churn`. */

const CLIENTS = 8;
const SANDBOXES = 60;
const GONE_WITHIN_MS = 5_000;

/** Descriptors of the gateway and its host. They are not dumpable: only root may look at what they hold. */
function descriptors(): number {
  if (mode === "user") return 0;
  const own = runProcesses().filter(({ description }) => /\/(gateway|host)\.mjs /.test(`${description} `));
  expect(own).toHaveLength(2);
  return own.reduce((sum, { pid }) => sum + readdirSync(`/proc/${pid}/fd`).length, 0);
}

it(`${SANDBOXES} sandboxes created, used and deleted by ${CLIENTS} clients leave nothing`, {
  timeout: 60_000,
}, async () => {
  const before = takeInventory();
  {
    await using gateway = new GatewayProcess();
    await gateway.started();
    const client = gateway.local();
    const use = async (name: string, code: number): Promise<void> => {
      await createReady(client, name);
      expect(await run(client, name, "/bin/sh", "-c", `echo ${name}; exit ${code}`)).toBe(`${name}\nexit ${code}`);
      await client.deleteSandbox({ workspaceScope, name });
      await untilGone(client, name);
    };
    // It stays: the host is the same before and after.
    await createReady(client, "keeper");
    // Connections to files and threads that stay open from then on.
    await Promise.all(Array.from({ length: CLIENTS }, (_, index) => use(`first-${index}`, index)));
    const opened = descriptors();
    const inside = takeInventory([gateway.paths.state, gateway.paths.runtime]);
    let next = 0;
    await Promise.all(
      Array.from({ length: CLIENTS }, async () => {
        while (next < SANDBOXES) {
          const number = next++;
          await use(`churn-${number}`, number);
        }
      }),
    );
    await expectNoLeaks(inside);
    const end = performance.now() + GONE_WITHIN_MS;
    while (descriptors() > opened && performance.now() < end) await sleep(25);
    expect(descriptors()).toBeLessThanOrEqual(opened);
    expect(JSON.parse((await gateway.http("/local/status")).body)).toMatchObject({ sandboxes: 1, hosts: 1 });
    await client.deleteSandbox({ workspaceScope, name: "keeper" });
    await untilGone(client, "keeper");
    expect(readdirSync(join(gateway.paths.state, "sandboxes"))).toEqual([]);
    await gateway.end();
  }
  await expectNoLeaks(before);
});
