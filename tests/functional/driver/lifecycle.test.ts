import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { launchSandbox } from "@openshell/boundary/local/launch.ts";
import type { DriverEvent } from "@openshell/drivers/driver.ts";
import { ownCgroups } from "@openshell/drivers/local/cgroups.ts";
import { systemProcessTable } from "@openshell/drivers/local/process-table.ts";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { type Inventory, takeInventory } from "../../support/leaks.ts";
import {
  confine,
  type DriverBench,
  expectNoDriverLeaks,
  openBench,
  runInside,
  shell,
} from "../../support/local-driver.ts";
import { inMode } from "../../support/modes.ts";

const processes = systemProcessTable();

describe("local driver", () => {
  let bench: DriverBench;
  let before: Inventory;
  beforeAll(async () => {
    bench = await openBench();
  });
  beforeEach(() => {
    before = takeInventory([bench.folder]);
  });
  afterAll(() => bench[Symbol.asyncDispose]());

  const alive = (pid: number): boolean => processes.startTime(pid) !== undefined;

  it("creates, and deletes everything that it created", async () => {
    const { driver } = bench;
    const intent = bench.intent();
    const started = await driver.create(intent);
    expect(alive(started.record.pid)).toBe(true);
    expect(await driver.delete(intent.sandboxId)).toEqual({ existed: true });
    expect(alive(started.record.pid)).toBe(false);
    await expectNoDriverLeaks(bench, before);
    expect(await driver.delete(intent.sandboxId)).toEqual({ existed: false });
    expect(await driver.inspect(intent.sandboxId)).toBeUndefined();
  });

  it("answers a repeated create with the sandbox that runs", async () => {
    const { driver } = bench;
    const intent = bench.intent();
    const first = await driver.create(intent);
    expect(await driver.create(intent)).toEqual(first);
    await driver.delete(intent.sandboxId);
    await expectNoDriverLeaks(bench, before);
  });

  it("replaces a sandbox whose nonce is another's", async () => {
    const { driver } = bench;
    const intent = bench.intent();
    const first = await driver.create(intent);
    const second = await driver.create({ ...intent, nonce: randomBytes(32) });
    expect(second.record.pid).not.toBe(first.record.pid);
    expect(alive(first.record.pid)).toBe(false);
    await driver.delete(intent.sandboxId);
    await expectNoDriverLeaks(bench, before);
  });

  it("does not take another process for an init that died and whose pid was given away", async () => {
    const other = spawn("sleep", ["60"]);
    const stranger = { pid: other.pid! };
    // The probe of the capture mode is left alone.
    let launches = 0;
    const driver = await bench.reopen({
      launch: async (plan, title) => {
        const launched = await launchSandbox(plan, { initPath: bench.options.initPath, title });
        if (plan.sandboxId.startsWith("probe-")) return launched;
        launches += 1;
        processes.kill(launched.pid, "SIGKILL");
        return { ...launched, pid: stranger.pid };
      },
    });
    const intent = bench.intent();
    await expect(driver.create(intent)).rejects.toMatchObject({ code: "launch_failed" });
    expect(launches).toBe(1);
    expect(alive(stranger.pid)).toBe(true);
    await driver.delete(intent.sandboxId);
    expect(alive(stranger.pid)).toBe(true);
    await driver[Symbol.asyncDispose]();
    other.kill("SIGKILL");
    await once(other, "exit");
    await expectNoDriverLeaks(bench, before);
  });

  it("stops, keeps the home, and starts the next generation with it", async () => {
    const { driver } = bench;
    const intent = bench.intent();
    const first = await driver.create(intent);
    const boundary = await confine(first, intent);
    expect((await shell(boundary, first, "echo kept > ~/f && mkdir -m 000 ~/closed && touch /tmp/gone")).stderr).toBe(
      "",
    );
    await driver.stop(intent.sandboxId);
    await boundary[Symbol.asyncDispose]();
    await driver.stop(intent.sandboxId);
    expect((await driver.inspect(intent.sandboxId))?.running).toBeUndefined();
    expect(alive(first.record.pid)).toBe(false);

    const next = { ...intent, generation: 2n, nonce: randomBytes(32) };
    const second = await driver.start(next);
    {
      await using again = await confine(second, next);
      expect((await shell(again, second, "cat ~/f; ls /tmp")).stdout).toBe("kept\n");
    }
    await expect(driver.start(intent)).rejects.toThrow(/at generation 2, not 1/);
    expect(alive(second.record.pid)).toBe(true);
    await driver.delete(intent.sandboxId);
    await expectNoDriverLeaks(bench, before);
  });

  it("gives the agent the writable folders that its policy names, and keeps them", async () => {
    const { driver } = bench;
    const filesystem = { readWrite: ["/tmp", "/workspace", "/var/log"] };
    const intent = bench.intent({ writablePaths: filesystem.readWrite });
    const first = await driver.create(intent);
    {
      await using boundary = await confine(first, intent, filesystem);
      const script =
        "echo kept > /workspace/f && echo log > /var/log/l && touch /tmp/t && ls -ld /workspace | cut -c1-10";
      expect(await shell(boundary, first, script)).toMatchObject({ stdout: "drwx------\n", stderr: "" });
    }
    await driver.stop(intent.sandboxId);
    const next = { ...intent, generation: 2n, nonce: randomBytes(32) };
    const second = await driver.start(next);
    {
      await using boundary = await confine(second, next, filesystem);
      expect((await shell(boundary, second, "cat /workspace/f /var/log/l")).stdout).toBe("kept\nlog\n");
    }
    await driver.delete(intent.sandboxId);
    await expectNoDriverLeaks(bench, before);
  });

  it("does not start what has no files", async () => {
    await expect(bench.driver.start(bench.intent())).rejects.toMatchObject({ code: "sandbox_not_found" });
    await expectNoDriverLeaks(bench, before);
  });

  it("is adopted by a driver that is opened later", async () => {
    const intent = bench.intent();
    const started = await bench.driver.create(intent);
    await using later = await bench.reopen();
    expect(await later.list()).toEqual([
      { sandboxId: intent.sandboxId, generation: 1n, name: "probe", workspace: "default", running: started },
    ]);
    expect(await later.create(intent)).toEqual(started);
    await later.delete(intent.sandboxId);
    await expectNoDriverLeaks(bench, before);
  });

  it("finds and ends an init that was started but never recorded", async () => {
    // A gateway that dies while the launcher works: the sandbox stands, its record is missing.
    const intent = bench.intent();
    let orphan = 0;
    await using crashing = await bench.reopen({
      launch: async (plan, title) => {
        const launched = await launchSandbox(plan, { initPath: bench.options.initPath, title });
        if (plan.sandboxId !== intent.sandboxId) return launched;
        orphan = launched.pid;
        return await new Promise(() => {});
      },
    });
    void crashing.create(intent);
    while (orphan === 0) await sleep(5);
    expect(alive(orphan)).toBe(true);

    await using later = await bench.reopen();
    expect((await later.inspect(intent.sandboxId))?.running).toBeUndefined();
    const started = await later.create(intent);
    expect(alive(orphan)).toBe(false);
    expect(alive(started.record.pid)).toBe(true);
    await later.delete(intent.sandboxId);
    await expectNoDriverLeaks(bench, before);
  });

  it.each(["launch.json", "started.json"])("lists, stops and deletes a sandbox whose %s is damaged", async (file) => {
    const { driver } = bench;
    const intent = bench.intent();
    const started = await driver.create(intent);
    writeFileSync(join(bench.options.paths.state, "sandboxes", intent.sandboxId, file), "{");
    // One damaged record must not keep a gateway from starting.
    expect((await driver.list()).map(({ sandboxId, running }) => [sandboxId, running?.generation])).toEqual([
      [intent.sandboxId, undefined],
    ]);
    await driver.stop(intent.sandboxId);
    expect(alive(started.record.pid)).toBe(false);
    expect(await driver.delete(intent.sandboxId)).toEqual({ existed: true });
    await expectNoDriverLeaks(bench, before);
  });

  it("deletes a sandbox whose launch.json was never written", async () => {
    const intent = bench.intent();
    const started = await bench.driver.create(intent);
    const folder = join(bench.options.paths.state, "sandboxes", intent.sandboxId);
    for (const name of ["launch.json", "started.json"]) rmSync(join(folder, name));
    expect((await bench.driver.list()).map((sandbox) => sandbox.sandboxId)).toEqual([intent.sandboxId]);
    await bench.driver.delete(intent.sandboxId);
    expect(alive(started.record.pid)).toBe(false);
    await expectNoDriverLeaks(bench, before);
  });

  it("ends a sandbox that no record knows and sets its files aside", async () => {
    const intent = bench.intent();
    const started = await bench.driver.create(intent);
    writeFileSync(join(bench.options.paths.state, "sandboxes", intent.sandboxId, "home", "work.txt"), "kept");
    const aside = await bench.driver.setAside(intent.sandboxId);
    expect(alive(started.record.pid)).toBe(false);
    expect(readFileSync(join(aside!, "home", "work.txt"), "utf8")).toBe("kept");
    expect(await bench.driver.list()).toEqual([]);
    await using again = await bench.reopen();
    expect(await again.list()).toEqual([]);
    expect(existsSync(aside!)).toBe(true);
    rmSync(aside!, { recursive: true });
    await expectNoDriverLeaks(bench, before);
  });

  it("finishes a removal that was interrupted when it is opened again", async () => {
    const trash = join(bench.options.paths.state, "sandboxes", ".trash-x-00000000", "home", "deep");
    mkdirSync(trash, { recursive: true, mode: 0o700 });
    execFileSync("chmod", ["000", trash]);
    await using _ = await bench.reopen();
    await expectNoDriverLeaks(bench, before);
  });

  it("leaves nothing running when the launch fails, and says which step failed", async () => {
    const intent = bench.intent({ volumes: [{ source: bench.folder, target: "/v", access: "ro" }] });
    await expect(bench.driver.create(intent)).rejects.toMatchObject({ code: "volume_refused" });
    expect(existsSync(join(bench.options.paths.state, "sandboxes", intent.sandboxId))).toBe(false);

    await using failing = await bench.reopen({
      launch: (plan, title) => {
        const broken = {
          ...plan,
          root: [
            ...plan.root.slice(0, -1),
            {
              kind: "bind",
              source: "/absent",
              target: "/b",
              readOnly: true,
              recursive: false,
              optional: false,
              noexec: false,
            } as const,
          ],
        };
        return launchSandbox(plan.sandboxId.startsWith("probe") ? plan : broken, {
          initPath: bench.options.initPath,
          title,
        });
      },
    });
    const second = bench.intent();
    await expect(failing.create(second)).rejects.toThrow(/bind-open.*\/absent/);
    expect((await failing.inspect(second.sandboxId))?.running).toBeUndefined();
    await failing.delete(second.sandboxId);
    await expectNoDriverLeaks(bench, before);
  });

  it("tells watchers when an init ends by itself, and not when the driver ends it", async () => {
    const { driver } = bench;
    const [killed, deleted] = [bench.intent(), bench.intent()];
    const started = await driver.create(killed);
    await driver.create(deleted);
    const stop = new AbortController();
    const events: DriverEvent[] = [];
    const watching = (async () => {
      for await (const event of driver.watch(stop.signal)) {
        // Other tests' sandboxes were ended by drivers of their own.
        if ([killed.sandboxId, deleted.sandboxId].includes(event.sandboxId)) events.push(event);
      }
    })();
    await driver.delete(deleted.sandboxId);
    process.kill(started.record.pid, "SIGKILL");
    const deadline = performance.now() + 5_000;
    while (events.length === 0 && performance.now() < deadline) await sleep(20);
    stop.abort();
    await watching;
    expect(events).toEqual([{ kind: "ended", sandboxId: killed.sandboxId, generation: 1n, record: started.record }]);
    await driver.delete(killed.sandboxId);
    await expectNoDriverLeaks(bench, before);
  });

  it("keeps the nonce out of every file", async () => {
    const intent = bench.intent();
    await bench.driver.create(intent);
    const folder = join(bench.options.paths.state, "sandboxes", intent.sandboxId);
    const nonce = Buffer.from(intent.nonce);
    for (const name of readdirSync(folder).filter((entry) => entry.endsWith(".json"))) {
      const text = readFileSync(join(folder, name), "utf8");
      expect(text).not.toContain(nonce.toString("hex"));
      expect(text).not.toContain(nonce.toString("base64"));
    }
    await bench.driver.delete(intent.sandboxId);
  });

  it.each(["../x", "", ".trash-a", "a/b", "a".repeat(200)])("refuses the id %j everywhere", async (sandboxId) => {
    const { driver } = bench;
    await expect(driver.create(bench.intent({ sandboxId }))).rejects.toMatchObject({ code: "invalid_sandbox_id" });
    const refused = { code: "invalid_sandbox_id" };
    await expect(driver.stop(sandboxId)).rejects.toMatchObject(refused);
    await expect(driver.delete(sandboxId)).rejects.toMatchObject(refused);
    await expect(driver.inspect(sandboxId)).rejects.toMatchObject(refused);
  });

  it.skipIf(inMode({ root: false, user: true }))("never empties what is mounted into a sandbox's folder", async () => {
    const intent = bench.intent();
    await bench.driver.create(intent);
    await bench.driver.stop(intent.sandboxId);
    const precious = join(bench.folder, "precious");
    mkdirSync(precious);
    writeFileSync(join(precious, "file"), "kept");
    const point = join(bench.options.paths.state, "sandboxes", intent.sandboxId, "home", "m");
    mkdirSync(point);
    execFileSync("mount", ["--bind", precious, point]);
    try {
      await expect(bench.driver.delete(intent.sandboxId)).rejects.toThrow(/mounted at .*\/home\/m/);
      expect(readFileSync(join(precious, "file"), "utf8")).toBe("kept");
    } finally {
      execFileSync("umount", [point]);
      rmSync(precious, { recursive: true });
    }
    await bench.driver.delete(intent.sandboxId);
    await expectNoDriverLeaks(bench, before);
  });

  it.each(["/tmp", "/etc", "..", "/proc/self/cwd"])(
    "does not mount through a link to %s that the agent left in its home",
    async (to) => {
      const folder = join(bench.folder, "volume");
      mkdirSync(folder);
      const intent = bench.intent();
      const first = await bench.driver.create(intent);
      {
        await using boundary = await confine(first, intent);
        expect((await shell(boundary, first, `ln -s ${to} ~/src`)).exit).toEqual({ kind: "exited", code: 0 });
      }
      await bench.driver.stop(intent.sandboxId);
      const next = {
        ...intent,
        generation: 2n,
        volumes: [{ source: folder, target: "/sandbox/src/repo", access: "rw" } as const],
      };
      await expect(bench.driver.start(next)).rejects.toMatchObject({ code: "launch_failed" });
      expect((await bench.driver.inspect(intent.sandboxId))?.running).toBeUndefined();
      expect(readdirSync(folder)).toEqual([]);
      await bench.driver.delete(intent.sandboxId);
      rmSync(folder, { recursive: true });
      await expectNoDriverLeaks(bench, before);
    },
  );

  it("leaves the caller's files alone when a sandbox with volumes is deleted", async () => {
    const folder = join(bench.folder, "volume");
    mkdirSync(join(folder, "deep"), { recursive: true });
    writeFileSync(join(folder, "deep", "file"), "kept");
    const intent = bench.intent({ volumes: [{ source: folder, target: "/sandbox/v", access: "rw" }] });
    await bench.driver.create(intent);
    await bench.driver.delete(intent.sandboxId);
    expect(readFileSync(join(folder, "deep", "file"), "utf8")).toBe("kept");
    rmSync(folder, { recursive: true });
    await expectNoDriverLeaks(bench, before);
  });

  it("runs many sandboxes at once and removes them all", async () => {
    const intents = Array.from({ length: 20 }, () => bench.intent());
    const all = await Promise.all(intents.map((intent) => bench.driver.create(intent)));
    expect(new Set(all.map((started) => started.record.pid)).size).toBe(20);
    await Promise.all(intents.map((intent) => bench.driver.delete(intent.sandboxId)));
    await expectNoDriverLeaks(bench, before);
  });
});

describe("limits", () => {
  it("hold memory and processes where the machine lets the gateway limit them", async () => {
    await using bench = await openBench();
    const intent = bench.intent({ resources: { cpuMillis: 1000, memoryBytes: 128n << 20n, pids: 40 } });
    const started = await bench.driver.create(intent);
    await using boundary = await confine(started, intent);
    const layers = new Map(started.isolation.map((layer) => [layer.name, layer.enforced]));
    expect(layers.get("limit_pids")).toBe(true);
    expect(layers.get("limit_memory")).toBe(bench.driver.capabilities.memoryLimit);

    const forks = await shell(boundary, started, "i=0; while [ $i -lt 100 ]; do sleep 1 & i=$((i+1)); done; echo all");
    expect(forks.stdout).not.toContain("all");
    expect(forks.stderr).toMatch(/fork|Resource temporarily unavailable/);

    if (bench.driver.capabilities.memoryLimit) {
      const eat = await shell(boundary, started, "exec perl -e 'my $x = \"a\" x (300 << 20); print length $x'");
      expect(eat.stdout).toBe("");
      expect(eat.exit).toEqual({ kind: "signaled", signal: 9 });
    } else {
      expect(started.isolation.find((layer) => layer.name === "limit_memory")?.detail).toMatch(
        /no cgroup is delegated/,
      );
    }
  });
  it.skipIf(inMode({ root: false, user: true }))("hold the CPU time back", async () => {
    await using bench = await openBench();
    const intent = bench.intent({ resources: { cpuMillis: 300, memoryBytes: undefined, pids: undefined } });
    const started = await bench.driver.create(intent);
    await using boundary = await confine(started, intent);
    const script = "use Time::HiRes 'time'; my $e = time + 1.5; 1 while time < $e; my ($u, $s) = times; print $u + $s";
    const { stdout } = await runInside(boundary, started, ["/usr/bin/perl", "-e", script]);
    expect(Number(stdout)).toBeGreaterThan(0);
    expect(Number(stdout)).toBeLessThan(0.75);
  });
  it("are reported for what they are", async () => {
    await using bench = await openBench();
    const started = await bench.driver.create(bench.intent());
    const identity = started.isolation.find((layer) => layer.name === "workload_identity");
    expect(identity?.enforced).toBe(inMode({ root: true, user: false }));
  });
});

describe("a frozen sandbox", () => {
  const places = ownCgroups();
  it.each([
    ["cgroup v2", "v2", places],
    ["the version 1 freezer", "v1", { ...places, unified: undefined, unifiedControllers: [] }],
    ["signals", "signals", { unified: undefined, unifiedControllers: [], v1: new Map<string, string>() }],
  ] as const)("frozen by %s can be deleted", async (_, kind, cgroups) => {
    await using bench = await openBench();
    const before = takeInventory([bench.folder]);
    await using driver = await bench.reopen({ cgroups });
    const intent = bench.intent();
    const started = await driver.create(intent);
    const boundary = await confine(started, intent);
    const freezer = boundary.isolation.find((layer) => layer.name === "freezer");
    const canMakeCgroups = driver.capabilities.memoryLimit || kind === "signals";
    if (canMakeCgroups && kind !== "v2") expect(freezer?.detail).toMatch(kind === "v1" ? /v1/ : /signals/);
    const sleeper = await boundary.spawn({
      argv: ["/bin/sleep", "60"],
      env: started.layout.environment,
      cwd: "/tmp",
      stdio: { kind: "pipes" },
    });
    sleeper.exit.catch(() => {});
    await boundary.freeze();
    const from = performance.now();
    await driver.delete(intent.sandboxId);
    expect(performance.now() - from).toBeLessThan(4_000);
    await boundary[Symbol.asyncDispose]();
    await expectNoDriverLeaks(bench, before);
  });
});

describe("capture mode", () => {
  it("is the best that this user may have", async () => {
    await using bench = await openBench();
    expect(bench.driver.capabilities.captureMode).toBe(inMode({ root: "sk_lookup", user: "nft" }));
  });
  it.each(["nft", "listener_per_port"])("can be demanded: %s", async (mode) => {
    await using bench = await openBench({ OPENSHELL_CAPTURE: mode });
    expect(bench.driver.capabilities.captureMode).toBe(mode);
    const intent = bench.intent({ endpointPorts: [8443] });
    const started = await bench.driver.create(intent);
    await using boundary = await confine(started, intent);
    const ports = boundary.capture.tcp.map((listener) => listener.port);
    expect(new Set(ports)).toEqual(new Set(mode === "nft" ? [3128] : [80, 443, 3128, 8443]));
  });
  it("fails closed when the demanded one is not to be had", async () => {
    const open = openBench({ OPENSHELL_CAPTURE: "sk_lookup" });
    if (inMode({ root: false, user: true })) await expect(open).rejects.toMatchObject({ code: "capture_unavailable" });
    else await (await open)[Symbol.asyncDispose]();
  });
});
