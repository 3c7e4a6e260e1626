import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Code } from "@connectrpc/connect";
import { SandboxPhase } from "@openshell/api";
import { describe, expect, it, vi } from "vitest";
import { expectNoLeaks, runProcesses, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { GatewayProcess } from "./gateway-process.ts";
import { createReady, MAIN_PROCESS, persistently, run, untilGone, untilPhase, workspaceScope } from "./sandboxes.ts";

const hostPids = (gateway: GatewayProcess): readonly number[] =>
  runProcesses()
    .filter(({ description }) => description.includes("host.mjs"))
    .map(({ pid }) => pid)
    .filter((pid) => pid !== gateway.pid);

/** The host's secret came through a pipe: its arguments and environment hold neither that nor anything of the caller's. */
function expectNothingShown(pid: number): void {
  expect(readFileSync(`/proc/${pid}/cmdline`, "latin1")).not.toMatch(/[0-9a-f]{64}/);
  if (mode === "user") {
    // A process that is not dumpable does not even show its environment.
    expect(() => readFileSync(`/proc/${pid}/environ`)).toThrow(/EACCES/);
    return;
  }
  const entries = readFileSync(`/proc/${pid}/environ`, "latin1").split("\0").filter(Boolean);
  expect(entries.join("\n")).not.toMatch(/[0-9a-f]{64}/);
  const names = entries.map((entry) => entry.split("=")[0]!);
  expect(names.filter((name) => !/^(PATH|HOME|LANG|TZ|PWD|XDG_\w+|OPENSHELL_\w+|MALLOC_\w+)$/.test(name))).toEqual([]);
}

describe("a gateway that ends and starts again", () => {
  it("adopts host and sandbox after kill -9, whose processes never notice", async () => {
    const before = takeInventory();
    {
      await using gateway = new GatewayProcess();
      await gateway.started();
      const id = await createReady(gateway.local(), "box");
      const main = await run(gateway.local(), "box", "sh", "-c", MAIN_PROCESS);
      expect(main).toMatch(/^\d+ \d+\nexit 0$/);
      const hosts = hostPids(gateway);
      expect(hosts).toHaveLength(1);
      expectNothingShown(hosts[0]!);
      await gateway.end("SIGKILL");

      const startedAt = performance.now();
      await gateway.started();
      const client = gateway.local();
      expect(await untilPhase(client, "box", SandboxPhase.READY)).toBe(id);
      expect(await run(client, "box", "sh", "-c", MAIN_PROCESS)).toBe(main);
      console.log(
        `restart after kill -9 to a command in the old sandbox: ${(performance.now() - startedAt).toFixed(0)} ms`,
      );
      expect(hostPids(gateway)).toEqual(hosts);
      expect(JSON.parse((await gateway.http("/local/status")).body)).toMatchObject({ sandboxes: 1, hosts: 1 });

      await client.deleteSandbox({ workspaceScope, name: "box" });
      await untilGone(client, "box");
      expect(readdirSync(join(gateway.paths.state, "sandboxes"))).toEqual([]);
      await gateway.end();
      expect(hostPids(gateway)).toEqual([]);
    }
    await expectNoLeaks(before);
  });

  it("started with an older database ends what that does not know, and keeps its files", async () => {
    const before = takeInventory();
    {
      await using gateway = new GatewayProcess();
      await gateway.started();
      const { state } = gateway.paths;
      const db = join(state, "gateway.db");
      await gateway.end();
      const backup = readFileSync(db);
      await gateway.started();
      await createReady(gateway.local(), "later");
      expect(await run(gateway.local(), "later", "sh", "-c", "echo precious > ~/work.txt")).toBe("exit 0");
      await gateway.end("SIGKILL");
      for (const pid of hostPids(gateway)) process.kill(pid, "SIGKILL");
      for (const suffix of ["-wal", "-shm"]) rmSync(db + suffix, { force: true });
      writeFileSync(db, backup);

      await gateway.started();
      const folders = () => readdirSync(join(state, "sandboxes"));
      await vi.waitFor(() => expect(folders()).toEqual([expect.stringMatching(/^\.lost-\d+-/)]), { timeout: 20_000 });
      const home = join(state, "sandboxes", folders()[0]!, "home");
      expect(readFileSync(join(home, "work.txt"), "utf8")).toBe("precious\n");
      await vi.waitFor(async () => expect(await gateway.log()).toContain(home), { timeout: 5_000 });
      await gateway.end();
    }
    await expectNoLeaks(before);
  });

  it("refuses to stop while a sandbox runs, keeps it on request, and ends it on request", async () => {
    const before = takeInventory();
    {
      await using gateway = new GatewayProcess();
      await gateway.started();
      await createReady(gateway.local(), "box");
      const refused = await gateway.http("/local/stop", "POST");
      expect(refused.status).toBe(409);
      expect(JSON.parse(refused.body)).toMatchObject({ code: "sandboxes_running", sandboxes: 1 });
      expect(await gateway.http("/healthz")).toMatchObject({ status: 200 });

      const hosts = hostPids(gateway);
      const underWay = run(gateway.local(), "box", "sleep", "100").catch((error: unknown) => error);
      const watching = gateway.local().watchSandbox({ workspaceScope, sandbox: "box", followStatus: true });
      const watched = (async () => {
        for await (const event of watching) void event;
      })().catch((error: unknown) => error);
      await sleep(100);
      const startedAt = performance.now();
      expect(await gateway.http("/local/stop?sandboxes=keep", "POST")).toMatchObject({ status: 202 });
      expect(await gateway.exited()).toBe(0);
      expect(performance.now() - startedAt).toBeLessThan(1_000);
      // Nobody invents an exit code for a command whose end was not seen.
      expect(await underWay).toMatchObject({ code: Code.Unavailable });
      expect(await watched).toMatchObject({ code: Code.Unavailable });
      expect(hostPids(gateway)).toEqual(hosts);

      await gateway.started();
      await untilPhase(gateway.local(), "box", SandboxPhase.READY);
      expect(hostPids(gateway)).toEqual(hosts);
      expect(await run(gateway.local(), "box", "echo", "still here")).toBe("still here\nexit 0");

      expect(await gateway.http("/local/stop?sandboxes=stop", "POST")).toMatchObject({ status: 202 });
      expect(await gateway.exited()).toBe(0);
      expect(hostPids(gateway)).toEqual([]);
      expect(existsSync(gateway.userSocket)).toBe(false);

      await gateway.started();
      await untilPhase(gateway.local(), "box", SandboxPhase.STOPPED);
      await gateway.local().deleteSandbox({ workspaceScope, name: "box" });
    }
    await expectNoLeaks(before);
  });

  it("gives sandboxes a host each after three deaths in a minute, and their processes never notice", async () => {
    const before = takeInventory();
    {
      await using gateway = new GatewayProcess();
      await gateway.started();
      const client = gateway.local();
      const names = ["one", "two"];
      await Promise.all(names.map((name) => createReady(client, name)));
      const mains = await Promise.all(names.map((name) => run(client, name, "sh", "-c", MAIN_PROCESS)));
      for (let death = 1; death <= 3; death++) {
        const [host, ...others] = hostPids(gateway);
        expect(others).toEqual([]);
        process.kill(host!, "SIGKILL");
        const startedAt = performance.now();
        // A command right after the death waits for the new host.
        const after = await Promise.all(
          names.map((name) => persistently(() => run(client, name, "sh", "-c", MAIN_PROCESS))),
        );
        console.log(
          `death ${death} of a host to commands in both sandboxes: ${(performance.now() - startedAt).toFixed(0)} ms`,
        );
        expect(after).toEqual(mains);
      }
      expect(hostPids(gateway)).toHaveLength(2);
      expect(await gateway.log()).toMatch(/"deaths":3,"isolate":true/);
      expect(await gateway.http("/local/stop?sandboxes=stop", "POST")).toMatchObject({ status: 202 });
      expect(await gateway.exited()).toBe(0);
      expect(hostPids(gateway)).toEqual([]);
    }
    await expectNoLeaks(before);
  });
});
