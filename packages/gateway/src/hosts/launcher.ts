import { createHash, randomBytes, randomUUID } from "node:crypto";
import { type Clock, currentBootId, ensureFolder, LogField, type ProcessIdentity, RuntimeError } from "@openshell/base";
import type { Logger } from "pino";
import type { HostRecord, HostState, Store } from "../store/types.ts";
import { type HostFiles, hostFiles, sweepHostFiles } from "./files.ts";
import type { HostProcesses } from "./process.ts";
import {
  HOST_DEATH_WINDOW_MS,
  HOST_IDLE_LIMIT_MS,
  HOST_STOP_LIMIT_MS,
  type HostLauncher,
  type HostListener,
  MAX_HOST_DEATHS,
  OWN_HOST_IDLE_LIMIT_MS,
} from "./types.ts";

export interface HostLauncherOptions {
  readonly store: Pick<Store, "hosts" | "write">;
  readonly clock: Clock;
  readonly log: Logger;
  readonly processes: HostProcesses;
  /** JavaScript file of the host. */
  readonly program: string;
  readonly env: Readonly<Record<string, string>>;
  readonly build: string;
  readonly placement: "workspace" | "sandbox";
  /** Folder of locks and poke sockets, one below it for each host. */
  readonly folder: string;
  readonly logs: string;
  readonly gatewaySocket: string;
}

/** A host that has not connected after this has failed to start. Milliseconds. */
export const HOST_CONNECT_LIMIT_MS = 15_000;
/**
 * A host dials four times a second; one that lives and stays away for this long hangs. Its sandboxes stay with it while
 * it lives, so it is ended and they get another. Milliseconds.
 */
export const HOST_AWAY_LIMIT_MS = 30_000;
/** How often a host without a connection is looked at. Milliseconds. */
const WATCH_INTERVAL_MS = 250;
/** Wait before a further start after several deaths: 100 ms doubling from the second one on, at most this. */
const MAX_START_DELAY_MS = 5_000;
/** Ended hosts are forgotten after a day; deaths count for a minute only. */
const FORGET_AFTER_MS = 86_400_000;

interface Held {
  record: HostRecord;
  connected: boolean;
  /** Somebody asked it to end: its end is no death. */
  ending: boolean;
  /** Undefined until somebody has counted: an adopted host may hold any number. */
  sandboxes: number | undefined;
  /** Monotonic time since when it holds nothing. */
  idleSince: number;
  readonly startedAt: number;
  /** Monotonic time since when it has no connection. */
  awaySince: number;
}

export function createHostLauncher(options: HostLauncherOptions): HostLauncher {
  return new Launcher(options);
}

class Launcher implements HostLauncher {
  readonly #options: HostLauncherOptions;
  readonly #hosts = new Map<string, Held>();
  readonly #bySecret = new Map<string, string>();
  readonly #starting = new Map<string, Promise<HostRecord>>();
  readonly #isolated = new Set<string>();
  readonly #listeners = new Set<HostListener>();
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: HostLauncherOptions) {
    this.#options = options;
  }

  async adopt(): Promise<readonly HostRecord[]> {
    const { store, clock, log, processes } = this.#options;
    await store.write(store.hosts.purge(clock.now() - FORGET_AFTER_MS));
    const found = await store.hosts.current();
    for (const record of found) {
      if (this.#hosts.has(record.id)) continue;
      const held = this.#hold(record, undefined);
      if (processes.alive(record)) {
        log.info({ [LogField.hostId]: record.id, [LogField.pid]: record.pid }, "found a live supervisor host");
        processes.poke(this.#files(record.id).controlSocket);
      } else {
        await this.#gone(held);
      }
    }
    await this.#sweep();
    return this.current();
  }

  ensure(workspace: string, sandboxId: string): Promise<HostRecord> {
    if (this.#closed) return Promise.reject(new RuntimeError("gateway_stopping", "the gateway is stopping"));
    const own = this.#options.placement === "sandbox" || this.#isolated.has(workspace);
    const existing = this.#find(workspace, sandboxId, own);
    if (existing !== undefined) return Promise.resolve(existing.record);
    const key = own ? `sandbox ${sandboxId}` : `workspace ${workspace}`;
    const known = this.#starting.get(key);
    if (known !== undefined) return known;
    const started = this.#start(workspace, own ? sandboxId : undefined).finally(() => this.#starting.delete(key));
    this.#starting.set(key, started);
    return started;
  }

  async authenticate(secretHex: string): Promise<HostRecord | undefined> {
    if (!/^[0-9a-f]{64}$/.test(secretHex)) return undefined;
    // The lookup is by hash of a 256-bit random value: its timing tells nothing about any secret.
    const id = this.#bySecret.get(hashOf(Buffer.from(secretHex, "hex")).toString("hex"));
    const held = id === undefined ? undefined : this.#hosts.get(id);
    return held === undefined || held.ending ? undefined : held.record;
  }

  async connected(hostId: string, facts: { readonly pid: number; readonly build: string }): Promise<void> {
    const held = this.#hosts.get(hostId);
    if (held === undefined) return;
    if (facts.pid !== held.record.pid) {
      throw new RuntimeError(
        "host_pid_mismatch",
        `host ${hostId} says pid ${facts.pid}, started was ${held.record.pid}`,
      );
    }
    held.connected = true;
    if (held.record.state === "live" && held.record.build === facts.build) return;
    await this.#update(held, { state: "live", build: facts.build });
  }

  disconnected(hostId: string): void {
    const held = this.#hosts.get(hostId);
    if (held !== undefined) {
      held.connected = false;
      held.awaySince = this.#options.clock.monotonic();
    }
    this.#watch();
  }

  holds(hostId: string, sandboxes: number): void {
    const held = this.#hosts.get(hostId);
    if (held === undefined) return;
    if (sandboxes === 0 && held.sandboxes !== 0) held.idleSince = this.#options.clock.monotonic();
    held.sandboxes = sandboxes;
  }

  async stop(hostId: string): Promise<void> {
    const held = this.#hosts.get(hostId);
    if (held === undefined) return;
    const { processes, clock } = this.#options;
    held.ending = true;
    try {
      await this.#end(held.record, "SIGTERM", HOST_STOP_LIMIT_MS);
      if (processes.alive(held.record)) await this.#end(held.record, "SIGKILL", HOST_STOP_LIMIT_MS);
    } catch (error) {
      // Without descriptors its process cannot be looked at: it is an idle host again, and reported as one later.
      held.ending = false;
      throw error;
    }
    this.#forget(held);
    await this.#update(held, { state: "ended", endedAt: clock.now() });
    await this.#sweep();
  }

  current(): readonly HostRecord[] {
    return [...this.#hosts.values()].map((held) => held.record);
  }

  subscribe(listener: HostListener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Hosts with sandboxes go on, the next gateway adopts them; those known to hold none end. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    clearInterval(this.#timer);
    this.#listeners.clear();
    await Promise.allSettled(this.#starting.values());
    const idle = [...this.#hosts.values()].filter((held) => held.sandboxes === 0);
    await Promise.allSettled(idle.map((held) => this.stop(held.record.id)));
  }

  #find(workspace: string, sandboxId: string, own: boolean): Held | undefined {
    const usable = [...this.#hosts.values()].filter((held) => !held.ending && held.record.workspace === workspace);
    return usable.find(({ record }) => record.sandboxId === (own ? sandboxId : undefined));
  }

  async #start(workspace: string, sandboxId: string | undefined): Promise<HostRecord> {
    const { store, clock, log, processes, program, env, build, gatewaySocket, logs } = this.#options;
    const deaths = await store.hosts.deathsSince(workspace, clock.now() - HOST_DEATH_WINDOW_MS);
    if (deaths > 1) await clock.sleep(Math.min(MAX_START_DELAY_MS, 100 * 2 ** (deaths - 1)), { unref: true });
    if (this.#closed) throw new RuntimeError("gateway_stopping", "the gateway is stopping");
    const id = randomUUID();
    const secret = randomBytes(32);
    const files = this.#files(id);
    const identity = { pid: 0, startTime: "", bootId: currentBootId() };
    const fields = { id, workspace, sandboxId, secretHash: hashOf(secret), createdAt: clock.now(), build };
    // The hash is durable before the process exists: a gateway that dies in between still knows its host.
    await store.write(store.hosts.create({ ...fields, ...identity }));
    const held = this.#hold({ ...fields, ...identity, state: "starting", endedAt: undefined }, 0);
    const startLine = JSON.stringify({
      secret: secret.toString("hex"),
      hostId: id,
      gatewaySocket,
      controlSocket: files.controlSocket,
      logFile: files.logFile,
      lockFile: files.lockFile,
      build,
    });
    secret.fill(0);
    const request = { program, env, startLine, logFile: files.logFile };
    let started: ProcessIdentity | undefined;
    try {
      await ensureFolder(files.folder);
      started = processes.start(request, () => void this.#gone(held));
    } catch (error) {
      log.error({ err: error }, "a supervisor host cannot be started");
    }
    if (started === undefined) {
      await this.#gone(held);
      throw startFailed(logs);
    }
    await this.#update(held, { pid: started.pid, startTime: started.startTime });
    if (!this.#hosts.has(id)) throw startFailed(logs);
    log.info(
      { [LogField.hostId]: id, [LogField.pid]: started.pid, [LogField.workspace]: workspace },
      "started a supervisor host",
    );
    return held.record;
  }

  #hold(record: HostRecord, sandboxes: number | undefined): Held {
    const now = this.#options.clock.monotonic();
    const held: Held = {
      record,
      connected: false,
      ending: false,
      sandboxes,
      idleSince: now,
      startedAt: now,
      awaySince: now,
    };
    this.#hosts.set(record.id, held);
    this.#bySecret.set(Buffer.from(record.secretHash).toString("hex"), record.id);
    this.#watch();
    return held;
  }

  #forget(held: Held): void {
    this.#hosts.delete(held.record.id);
    this.#bySecret.delete(Buffer.from(held.record.secretHash).toString("hex"));
  }

  /** The process has ended, or never began. */
  async #gone(held: Held): Promise<void> {
    const { store, clock, log } = this.#options;
    if (held.ending || !this.#hosts.has(held.record.id) || this.#closed) return;
    this.#forget(held);
    const { workspace, id } = held.record;
    // What a reboot ended is no sign of a host that crashes.
    const died = held.record.bootId === currentBootId();
    await this.#update(held, { state: died ? "died" : "ended", endedAt: clock.now() });
    let deaths = 1;
    try {
      deaths = await store.hosts.deathsSince(workspace, clock.now() - HOST_DEATH_WINDOW_MS);
    } catch (error) {
      log.error({ err: error }, "cannot count the deaths of hosts");
    }
    const shared = held.record.sandboxId === undefined;
    const isolate = died && shared && deaths >= MAX_HOST_DEATHS && !this.#isolated.has(workspace);
    if (isolate) this.#isolated.add(workspace);
    log.warn({ [LogField.hostId]: id, [LogField.workspace]: workspace, deaths, isolate }, "a supervisor host died");
    for (const listener of this.#listeners) listener.onGone(held.record, isolate);
    await this.#sweep();
  }

  async #update(
    held: Held,
    patch: { state?: HostState; pid?: number; startTime?: string; build?: string; endedAt?: number },
  ): Promise<void> {
    held.record = { ...held.record, ...patch };
    const { store, log } = this.#options;
    try {
      await store.write(store.hosts.update(held.record.id, patch));
    } catch (error) {
      // The store is the memory, not the truth: a host whose row is stale is found dead or alive by the next start.
      log.error({ err: error, [LogField.hostId]: held.record.id }, "cannot record the state of a host");
    }
  }

  async #end(identity: ProcessIdentity, signal: "SIGTERM" | "SIGKILL", limitMs: number): Promise<void> {
    const { processes, clock } = this.#options;
    processes.signal(identity, signal);
    const deadline = clock.monotonic() + limitMs;
    while (processes.alive(identity) && clock.monotonic() < deadline) await clock.sleep(10);
  }

  /** Looks after hosts for which no event comes: adopted ones, and those that hang. */
  #watch(): void {
    if (this.#timer !== undefined || this.#closed) return;
    this.#timer = setInterval(() => {
      if (this.#hosts.size === 0) {
        clearInterval(this.#timer);
        this.#timer = undefined;
        return;
      }
      for (const held of [...this.#hosts.values()]) {
        try {
          this.#look(held);
        } catch (error) {
          // Without descriptors nothing can be seen: the next look will do.
          this.#options.log.warn({ err: error, [LogField.hostId]: held.record.id }, "cannot look at a supervisor host");
        }
      }
    }, WATCH_INTERVAL_MS);
    this.#timer.unref();
  }

  #look(held: Held): void {
    const { processes, clock, log } = this.#options;
    if (held.ending || held.record.pid === 0) return;
    const now = clock.monotonic();
    if (held.connected) {
      const limit = held.record.sandboxId === undefined ? HOST_IDLE_LIMIT_MS : OWN_HOST_IDLE_LIMIT_MS;
      if (held.sandboxes !== 0 || now - held.idleSince < limit) return;
      // Once a period, should nobody act on it.
      held.idleSince = now;
      for (const listener of this.#listeners) listener.onIdle(held.record);
    } else if (!processes.alive(held.record)) {
      void this.#gone(held);
    } else {
      const starting = held.record.state === "starting";
      const away = now - (starting ? held.startedAt : held.awaySince);
      if (away <= (starting ? HOST_CONNECT_LIMIT_MS : HOST_AWAY_LIMIT_MS)) return;
      log.warn({ [LogField.hostId]: held.record.id, away }, "a supervisor host lives and does not connect: ending it");
      processes.signal(held.record, "SIGKILL");
    }
  }

  #files(id: string): HostFiles {
    return hostFiles(this.#options.folder, this.#options.logs, id);
  }

  /** Housekeeping that nothing depends on. */
  async #sweep(): Promise<void> {
    const { folder, logs, log } = this.#options;
    try {
      await sweepHostFiles(folder, logs, [...this.#hosts.keys()]);
    } catch (error) {
      log.warn({ err: error }, "cannot remove the files of ended hosts");
    }
  }
}

function startFailed(logs: string): RuntimeError {
  return new RuntimeError("host_start_failed", "a supervisor host could not be started", { next: `See ${logs}` });
}

function hashOf(secret: Uint8Array): Buffer {
  return createHash("sha256").update(secret).digest();
}
