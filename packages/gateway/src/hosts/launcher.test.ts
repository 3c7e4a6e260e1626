import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { currentBootId, type ProcessIdentity, systemClock } from "@openshell/base";
import { pino } from "pino";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { openStore } from "../store/store.ts";
import type { HostRecord, Store } from "../store/types.ts";
import { createHostLauncher, HOST_AWAY_LIMIT_MS, HOST_CONNECT_LIMIT_MS } from "./launcher.ts";
import type { HostProcesses } from "./process.ts";
import { HOST_IDLE_LIMIT_MS, type HostLauncher, OWN_HOST_IDLE_LIMIT_MS } from "./types.ts";

let folder: string;
let store: Store;
let processes: FakeProcesses;
let launcher: HostLauncher;
let now: number;
/** Added to the monotonic clock. */
let elapsed: number;

/** A process table in memory. */
class FakeProcesses implements HostProcesses {
  readonly running = new Map<number, () => void>();
  readonly lines: { readonly secret: string; readonly hostId: string; readonly controlSocket: string }[] = [];
  readonly signals: string[] = [];
  readonly pokes: string[] = [];
  refuse = false;
  ignoreTerm = false;
  blind = false;
  #nextPid = 1000;

  start(request: { readonly startLine: string }, onExit: () => void): ProcessIdentity | undefined {
    this.lines.push(JSON.parse(request.startLine));
    if (this.refuse) return undefined;
    const pid = this.#nextPid++;
    this.running.set(pid, onExit);
    return { pid, startTime: "1", bootId: currentBootId() };
  }
  alive(identity: ProcessIdentity): boolean {
    if (this.blind) throw Object.assign(new Error("EMFILE: too many open files"), { code: "EMFILE" });
    return identity.bootId === currentBootId() && this.running.has(identity.pid);
  }
  signal(identity: ProcessIdentity, signal: string): void {
    if (!this.alive(identity)) return;
    this.signals.push(signal);
    if (signal === "SIGKILL" || !this.ignoreTerm) this.kill(identity.pid);
  }
  poke(socket: string): void {
    this.pokes.push(socket);
  }
  kill(pid: number): void {
    const onExit = this.running.get(pid);
    this.running.delete(pid);
    onExit?.();
  }
}

const open = (placement: "workspace" | "sandbox" = "workspace") =>
  createHostLauncher({
    store,
    clock: { ...systemClock, now: () => now, monotonic: () => performance.now() + elapsed },
    log: pino({ level: "silent" }),
    processes,
    program: "/host.mjs",
    env: {},
    build: "b1",
    placement,
    folder: join(folder, "h"),
    logs: folder,
    gatewaySocket: "/g.sock",
  });

const connect = (host: HostRecord) => launcher.connected(host.id, { pid: host.pid, build: "b1" });

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "openshell-hosts-"));
  store = await openStore(join(folder, "gateway.db"));
  processes = new FakeProcesses();
  now = 1_000_000;
  elapsed = 0;
  launcher = open();
});

afterEach(async () => {
  await launcher[Symbol.asyncDispose]();
  await store[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true });
});

describe("the host launcher", () => {
  it("starts one host a workspace, whoever asks at once", async () => {
    const [a, b, other] = await Promise.all([
      launcher.ensure("w", "1"),
      launcher.ensure("w", "2"),
      launcher.ensure("v", "3"),
    ]);
    expect(b.id).toBe(a.id);
    expect(other.id).not.toBe(a.id);
    expect(processes.running.size).toBe(2);
    expect((await launcher.ensure("w", "4")).id).toBe(a.id);
  });

  it("knows a host by the secret that only it was told, and stores no more than the hash", async () => {
    const host = await launcher.ensure("w", "1");
    const { secret, hostId } = processes.lines[0]!;
    expect(hostId).toBe(host.id);
    expect(await launcher.authenticate(secret)).toMatchObject({ id: host.id });
    expect(await launcher.authenticate("0".repeat(64))).toBeUndefined();
    expect(await launcher.authenticate("")).toBeUndefined();
    const stored = await store.hosts.get(host.id);
    expect(Buffer.from(stored!.secretHash).toString("hex")).not.toBe(secret);
    expect(stored).toMatchObject({ state: "starting", pid: host.pid });
    await connect(host);
    expect(await store.hosts.get(host.id)).toMatchObject({ state: "live" });
  });

  it("refuses a host that is not the process it started", async () => {
    const host = await launcher.ensure("w", "1");
    await expect(launcher.connected(host.id, { pid: host.pid + 1, build: "b1" })).rejects.toMatchObject({
      code: "host_pid_mismatch",
    });
  });

  it("gives each sandbox its own host when so placed", async () => {
    launcher = open("sandbox");
    const [a, b, again] = await Promise.all([
      launcher.ensure("w", "1"),
      launcher.ensure("w", "2"),
      launcher.ensure("w", "1"),
    ]);
    expect(a.id).not.toBe(b.id);
    expect(again.id).toBe(a.id);
    expect(a.sandboxId).toBe("1");
  });

  it("isolates a workspace's sandboxes after three deaths in a minute", async () => {
    const events: (readonly [string, boolean])[] = [];
    launcher.subscribe({ onGone: (host, isolate) => events.push([host.id, isolate]), onIdle: () => {} });
    const ids: string[] = [];
    for (let death = 0; death < 3; death++) {
      const host = await launcher.ensure("w", "1");
      await connect(host);
      ids.push(host.id);
      processes.kill(host.pid);
      while (events.length <= death) await sleep(1);
    }
    expect(events).toEqual([
      [ids[0], false],
      [ids[1], false],
      [ids[2], true],
    ]);
    const [one, two] = await Promise.all([launcher.ensure("w", "1"), launcher.ensure("w", "2")]);
    expect([one.sandboxId, two.sandboxId]).toEqual(["1", "2"]);
    expect((await launcher.ensure("other", "3")).sandboxId).toBeUndefined();
  });

  it("forgets deaths that are older than a minute", async () => {
    const gone: boolean[] = [];
    launcher.subscribe({ onGone: (_host, isolate) => gone.push(isolate), onIdle: () => {} });
    for (let death = 0; death < 4; death++) {
      const host = await launcher.ensure("w", "1");
      now += 40_000;
      processes.kill(host.pid);
      while (gone.length <= death) await sleep(1);
    }
    expect(gone).toEqual([false, false, false, false]);
  });

  it("takes over live hosts after a restart, pokes them, and records the dead", async () => {
    const live = await launcher.ensure("w", "1");
    const dead = await launcher.ensure("v", "2");
    await connect(live);
    launcher.holds(live.id, 1);
    launcher.holds(dead.id, 1);
    await launcher[Symbol.asyncDispose]();
    expect(processes.running.size).toBe(2);
    processes.running.delete(dead.pid);

    launcher = open();
    const gone: string[] = [];
    launcher.subscribe({ onGone: (host) => gone.push(host.id), onIdle: () => {} });
    expect((await launcher.adopt()).map((host) => host.id)).toEqual([live.id]);
    expect(gone).toEqual([dead.id]);
    expect(processes.pokes).toEqual([processes.lines[0]!.controlSocket]);
    expect(await launcher.authenticate(processes.lines[0]!.secret)).toMatchObject({ id: live.id });
    expect(await launcher.authenticate(processes.lines[1]!.secret)).toBeUndefined();
    expect((await launcher.ensure("w", "9")).id).toBe(live.id);
    expect(await store.hosts.get(dead.id)).toMatchObject({ state: "died" });
  });

  it("notices the end of an adopted host, for which no event comes", async () => {
    const host = await launcher.ensure("w", "1");
    launcher.holds(host.id, 1);
    await launcher[Symbol.asyncDispose]();
    launcher = open();
    const gone = new Promise((resolve) => launcher.subscribe({ onGone: resolve, onIdle: () => {} }));
    await launcher.adopt();
    processes.running.delete(host.pid);
    expect(await gone).toMatchObject({ id: host.id });
  });

  it("stops a host by SIGTERM, and by SIGKILL when it does not listen; that is no death", async () => {
    const gone: unknown[] = [];
    launcher.subscribe({ onGone: (host) => gone.push(host), onIdle: () => {} });
    const first = await launcher.ensure("w", "1");
    await launcher.stop(first.id);
    expect(processes.signals).toEqual(["SIGTERM"]);
    expect(await store.hosts.get(first.id)).toMatchObject({ state: "ended" });
    const second = await launcher.ensure("w", "1");
    expect(second.id).not.toBe(first.id);
    processes.ignoreTerm = true;
    await launcher.stop(second.id);
    expect(processes.signals).toEqual(["SIGTERM", "SIGTERM", "SIGKILL"]);
    expect(gone).toEqual([]);
  });

  it("ends hosts without sandboxes when the gateway ends, and leaves the others", async () => {
    const idle = await launcher.ensure("w", "1");
    const busy = await launcher.ensure("v", "2");
    launcher.holds(busy.id, 1);
    await launcher[Symbol.asyncDispose]();
    expect([...processes.running.keys()]).toEqual([busy.pid]);
    expect(await store.hosts.get(idle.id)).toMatchObject({ state: "ended" });
    await expect(launcher.ensure("w", "1")).rejects.toMatchObject({ code: "gateway_stopping" });
  });

  it("reports a host that has held nothing for ten minutes, and no other", async () => {
    const idle: string[] = [];
    launcher.subscribe({ onGone: () => {}, onIdle: (host) => idle.push(host.id) });
    const [used, unused] = [await launcher.ensure("w", "1"), await launcher.ensure("v", "2")];
    for (const host of [used, unused]) {
      await connect(host);
      launcher.holds(host.id, 1);
    }
    launcher.holds(unused.id, 0);
    elapsed += HOST_IDLE_LIMIT_MS - 60_000;
    await sleep(300);
    expect(idle).toEqual([]);
    elapsed += 60_000;
    await sleep(300);
    expect(idle).toEqual([unused.id]);
  });

  it("a host of one sandbox stayed for ten minutes after it was deleted", async () => {
    await using own = open("sandbox");
    const idle: string[] = [];
    own.subscribe({ onGone: () => {}, onIdle: (host) => idle.push(host.id) });
    const host = await own.ensure("w", "1");
    await own.connected(host.id, { pid: host.pid, build: host.build });
    own.holds(host.id, 1);
    own.holds(host.id, 0);
    await sleep(300);
    expect(idle).toEqual([]);
    elapsed += OWN_HOST_IDLE_LIMIT_MS;
    await sleep(300);
    expect(idle).toEqual([host.id]);
  });

  it("a host that could not be ended for want of descriptors was never looked at again", async () => {
    const idle: string[] = [];
    launcher.subscribe({ onGone: () => {}, onIdle: (host) => idle.push(host.id) });
    const host = await launcher.ensure("w", "1");
    await connect(host);
    launcher.holds(host.id, 0);
    processes.blind = true;
    await expect(launcher.stop(host.id)).rejects.toThrow("EMFILE");
    processes.blind = false;
    elapsed += HOST_IDLE_LIMIT_MS;
    await sleep(300);
    expect(idle).toEqual([host.id]);
    await launcher.stop(host.id);
    expect(processes.running.size).toBe(0);
  });

  it("gave sandboxes to a host whose folder could not be made, and which never started", async () => {
    rmSync(join(folder, "h"), { recursive: true, force: true });
    writeFileSync(join(folder, "h"), "");
    await expect(launcher.ensure("w", "1")).rejects.toMatchObject({ code: "host_start_failed" });
    rmSync(join(folder, "h"));
    expect((await launcher.ensure("w", "1")).pid).toBeGreaterThan(0);
    expect(processes.running.size).toBe(1);
  });

  it("ends a host that never connects", async () => {
    const gone = new Promise((resolve) => launcher.subscribe({ onGone: resolve, onIdle: () => {} }));
    const host = await launcher.ensure("w", "1");
    elapsed += HOST_CONNECT_LIMIT_MS + 1;
    expect(await gone).toMatchObject({ id: host.id });
    expect(processes.signals).toEqual(["SIGKILL"]);
  });

  it("ends a host that lives and does not come back: its sandboxes would wait for it for ever", async () => {
    const host = await launcher.ensure("w", "1");
    await connect(host);
    launcher.holds(host.id, 1);
    elapsed += 10 * HOST_AWAY_LIMIT_MS;
    await sleep(600);
    expect(processes.signals).toEqual([]);
    launcher.disconnected(host.id);
    await sleep(600);
    expect(processes.signals).toEqual([]);
    elapsed += HOST_AWAY_LIMIT_MS + 1;
    await sleep(600);
    expect(processes.signals).toEqual(["SIGKILL"]);
    expect(launcher.current()).toEqual([]);
  });

  it("does not take a reboot for crashes", async () => {
    const identity = { pid: 5, startTime: "1", bootId: "an earlier boot" };
    const host = (id: string) =>
      store.hosts.create({
        id,
        workspace: "w",
        sandboxId: undefined,
        secretHash: Buffer.from(id),
        createdAt: now,
        build: "b",
        ...identity,
      });
    await store.write(...["aaaaaaaa-1", "bbbbbbbb-2", "cccccccc-3"].map(host));
    const gone: boolean[] = [];
    launcher.subscribe({ onGone: (_host, isolate) => gone.push(isolate), onIdle: () => {} });
    expect(await launcher.adopt()).toEqual([]);
    expect(gone).toEqual([false, false, false]);
    expect(await store.hosts.deathsSince("w", 0)).toBe(0);
    expect((await launcher.ensure("w", "1")).sandboxId).toBeUndefined();
  });

  it("removes the files of hosts that ended, and keeps those of hosts that run", async () => {
    const live = await launcher.ensure("w", "1");
    launcher.holds(live.id, 1);
    const ended = await launcher.ensure("v", "2");
    for (let index = 0; index < 30; index++)
      writeFileSync(join(folder, `host-${index.toString(16).padStart(8, "0")}.log`), "");
    const folders = () => readdirSync(join(folder, "h"));
    expect(folders().toSorted()).toEqual([live.id, ended.id].map((id) => id.slice(0, 8)).toSorted());
    await launcher.stop(ended.id);
    expect(folders()).toEqual([live.id.slice(0, 8)]);
    expect(readdirSync(folder).filter((name) => name.startsWith("host-"))).toHaveLength(20);
  });

  it("says that a host cannot be started", async () => {
    processes.refuse = true;
    await expect(launcher.ensure("w", "1")).rejects.toMatchObject({ code: "host_start_failed" });
    expect(launcher.current()).toEqual([]);
  });
});
