import { createHash, createHmac, randomBytes, randomUUID } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  type Client,
  createClient,
  createRouterTransport,
  type Interceptor,
  type Transport,
} from "@connectrpc/connect";
import { type CreateSandboxRequestSchema, OpenShell, type Sandbox, SandboxPhase } from "@openshell/api";
import { errorBoundary } from "@openshell/api/error-boundary.ts";
import { systemClock } from "@openshell/base";
import type { ComputeDriver, SandboxIntent } from "@openshell/drivers/driver.ts";
import pino from "pino";
import { type Caller, callerKey } from "../../auth/caller.ts";
import { Secret } from "../../auth/secret.ts";
import type { GatewayConfig } from "../../config/config.ts";
import type { GatewayDeps, GatewayServices } from "../../deps.ts";
import type { HostLauncher, HostListener } from "../../hosts/types.ts";
import { translateError } from "../../http/translate-error.ts";
import { openStore } from "../../store/store.ts";
import type { HostRecord, Store } from "../../store/types.ts";
import { createVault } from "../../store/vault.ts";
import { assembleServices } from "../services.ts";
import { BOOT, FakeDriver } from "./fake-driver.ts";
import { FakeHost, type FakeWorkload } from "./fake-host.ts";

const admin: Caller = {
  subject: "local:0",
  displayName: "root",
  identityProvider: "local",
  roles: [],
  scopes: [],
  admin: true,
  ownerOfMachineFiles: true,
};

const config: GatewayConfig = {
  name: "test",
  bind: { host: "127.0.0.1", port: 0, chosen: false },
  health: undefined,
  metrics: undefined,
  logLevel: "error",
  disableTls: false,
  allowUnauthenticatedUsers: false,
  serverSans: [],
  computeDriver: "local",
  policyValidationFailureMode: "fail_closed",
  supervisor: { placement: "workspace", network: { additionalCa: undefined, resolvers: [] } },
  local: { volumeRoots: [], table: {} },
};

/**
 * A gateway whose store is real and whose driver and hosts are doubles. `restart` replaces the gateway as a crash would:
 * its memory is gone, the store, the driver's sandboxes and the workloads stay.
 */
export class Harness implements AsyncDisposable {
  readonly driver = new FakeDriver();
  readonly workloads = new Map<string, FakeWorkload>();
  readonly logLines: string[] = [];
  store!: Store;
  services!: GatewayServices;
  client!: Client<typeof OpenShell>;
  host: FakeHost | undefined;
  caller: Caller = admin;
  readonly #folder: string;
  readonly #keys = randomBytes(32);
  #stopping = new AbortController();
  #listeners = new Set<HostListener>();
  #hostTransport!: Transport;
  #hostRecord: HostRecord | undefined;
  #hostSecret = "";
  #crash: { left: number; readonly when: "before" | "after"; readonly died: () => void } | undefined;
  #life = 0;
  #alive = true;
  /** Set to keep hosts from being started. */
  hostsAvailable = true;
  /** Boot of the machine that the next gateway finds itself in. */
  bootId = BOOT;
  configureHost: (host: FakeHost) => void = () => {};

  private constructor(folder: string) {
    this.#folder = folder;
    this.driver.onEnd = (id) => {
      for (const [key, workload] of this.workloads) if (key.startsWith(`${id}/`)) workload.running = false;
    };
  }

  static async open(): Promise<Harness> {
    const harness = new Harness(await mkdtemp(join(tmpdir(), "openshell-api-")));
    await harness.#boot();
    return harness;
  }

  async #boot(): Promise<void> {
    const real = await openStore(join(this.#folder, "gateway.db"));
    const life = this.#life;
    this.store = this.#mortalStore(real, life);
    this.#stopping = new AbortController();
    const mac = (purpose: string) => (data: Uint8Array) =>
      new Uint8Array(
        createHmac("sha256", Buffer.concat([this.#keys, Buffer.from(purpose)]))
          .update(data)
          .digest(),
      );
    const deps: GatewayDeps = {
      config,
      paths: { name: "test", config: this.#folder, state: this.#folder, runtime: this.#folder, logs: this.#folder },
      build: { version: "0.1.0", build: "test" },
      clock: systemClock,
      log: pino({ level: "debug" }, { write: (line: string) => void this.logLines.push(line) }),
      store: this.store,
      vault: createVault(this.#keys),
      keys: { requestIds: mac("requests"), pageTokens: mac("pages") },
      hosts: this.#launcher(),
      inspectionCas: { of: async () => ({ certificatePem: "CERT", privateKeyPem: new Secret("CA KEY") }) },
      alwaysDenied: () => ["127.0.0.1:17670"],
      stopping: this.#stopping.signal,
    };
    this.services = assembleServices(deps, this.#mortalDriver(life), this.bootId);
    const identify: Interceptor = (next) => (request) => {
      request.contextValues.set(callerKey, this.caller);
      return next(request);
    };
    const boundary = errorBoundary({
      translate: translateError,
      onInternal: (error) => void this.logLines.push(String((error as Error).stack)),
    });
    this.client = createClient(
      OpenShell,
      createRouterTransport(this.services.userRoutes, { router: { interceptors: [boundary, identify] } }),
    );
    this.#hostTransport = createRouterTransport(this.services.hostRoutes, { router: { interceptors: [boundary] } });
    await this.services.start();
  }

  /** The store as a process sees it that may die. */
  #mortalStore(real: Store, life: number): Store {
    const store: Store = Object.create(real, {
      write: { value: (...commands: Parameters<Store["write"]>) => this.#effect(life, () => real.write(...commands)) },
      failed: { value: real.failed },
      [Symbol.asyncDispose]: { value: () => real[Symbol.asyncDispose]() },
      modifySandbox: {
        value: async (id: string, mutate: Parameters<Store["modifySandbox"]>[1]) =>
          // One effect when something is written, none otherwise.
          mutate((await real.sandboxes.byId(id)) as never) === undefined
            ? await real.modifySandbox(id, mutate)
            : await this.#effect(life, () => real.modifySandbox(id, mutate)),
      },
    });
    return store;
  }

  #mortalDriver(life: number): ComputeDriver {
    const { driver } = this;
    return Object.create(driver, {
      name: { value: driver.name },
      create: { value: (intent: SandboxIntent) => this.#effect(life, () => driver.create(intent)) },
      start: { value: (intent: SandboxIntent) => this.#effect(life, () => driver.start(intent)) },
      stop: { value: (id: string) => this.#effect(life, () => driver.stop(id)) },
      delete: { value: (id: string) => this.#effect(life, () => driver.delete(id)) },
      watch: { value: (signal: AbortSignal) => driver.watch(signal) },
    });
  }

  #launcher(): HostLauncher {
    const listeners = new Set<HostListener>();
    this.#listeners = listeners;
    return {
      adopt: async () => [],
      ensure: async (workspace, sandboxId) => {
        if (!this.hostsAvailable) throw new Error("no host can be started");
        this.#hostRecord ??= this.#newHost(workspace, sandboxId);
        if (this.host === undefined) this.startHost();
        return this.#hostRecord;
      },
      authenticate: async (secret) => (secret === this.#hostSecret ? this.#hostRecord : undefined),
      connected: async () => {},
      disconnected: () => {},
      holds: () => {},
      stop: async () => {},
      current: () => [],
      subscribe: (listener) => {
        listeners.add(listener);
        return () => listeners.delete(listener);
      },
      [Symbol.asyncDispose]: async () => {},
    };
  }

  #newHost(workspace: string, _sandboxId: string): HostRecord {
    this.#hostSecret = randomBytes(32).toString("hex");
    return {
      id: randomUUID(),
      workspace,
      sandboxId: undefined,
      secretHash: createHash("sha256").update(this.#hostSecret, "hex").digest(),
      state: "live",
      pid: 1,
      startTime: "1",
      bootId: BOOT,
      build: "test",
      createdAt: 0,
      endedAt: undefined,
    };
  }

  get hostSecret(): string {
    return this.#hostSecret;
  }

  /** A host process, connected to the current gateway. */
  startHost(): FakeHost {
    const host = new FakeHost(this.#hostTransport, this.#hostRecord!.id, this.#hostSecret, this.workloads);
    this.configureHost(host);
    this.host = host;
    void host.run().catch(() => {});
    return host;
  }

  /** kill -9 of the host: streams break, the launcher notices. */
  killHost(): void {
    const record = this.#hostRecord!;
    this.host?.kill();
    this.host = undefined;
    this.#hostRecord = undefined;
    for (const listener of this.#listeners) listener.onGone(record, false);
  }

  /**
   * The gateway dies at the `step`-th effect from now (a write of the store or an operation of the driver): before it
   * happens or after it happened but before anybody is told. Nothing that the dead process still does has any effect.
   * Resolves when it died; `restartDead` starts its successor.
   */
  crashAt(step: number, when: "before" | "after"): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#crash = { left: step, when, died: resolve };
    return promise;
  }

  /** No crash any more; says how many effects were left until it. */
  cancelCrash(): number {
    const left = this.#crash?.left ?? 0;
    this.#crash = undefined;
    return left;
  }

  /** As `restart`, for a gateway that died by `crashAt`: nothing of it is disposed in order. */
  async restartDead(): Promise<void> {
    this.#stopping.abort();
    this.host?.kill();
    this.host = undefined;
    this.#crash = undefined;
    this.#life += 1;
    this.#alive = true;
    await this.#boot();
    if (this.#hostRecord !== undefined) this.startHost();
  }

  /** Runs one effect of the process of this life, or dies at it. */
  async #effect<T>(life: number, run: () => Promise<T>): Promise<T> {
    const dead = (): boolean => life !== this.#life || !this.#alive;
    if (dead()) return await new Promise<never>(() => {});
    const crash = this.#crash;
    const hit = crash !== undefined && --crash.left === 0;
    if (hit && crash.when === "before") return await this.#die(crash);
    const result = await run();
    if (hit) return await this.#die(crash);
    return dead() ? await new Promise<never>(() => {}) : result;
  }

  async #die(crash: { readonly died: () => void }): Promise<never> {
    this.#alive = false;
    this.host?.kill();
    this.host = undefined;
    crash.died();
    return await new Promise<never>(() => {});
  }

  /** The gateway dies without a word and another one starts; the host survives and reconnects. */
  async restart(): Promise<void> {
    await this.#halt();
    await this.#boot();
    if (this.#hostRecord !== undefined) this.startHost();
  }

  async #halt(): Promise<void> {
    this.#stopping.abort();
    this.host?.kill();
    this.host = undefined;
    await this.services[Symbol.asyncDispose]();
    await this.store[Symbol.asyncDispose]();
  }

  readonly scope = { selection: { case: "workspace", value: "default" } } as const;

  async create(overrides: MessageInitShape<typeof CreateSandboxRequestSchema> = {}): Promise<Sandbox> {
    const defaults = { workspaceScope: this.scope, spec: {}, name: "box" };
    const response = await this.client.createSandbox({ ...defaults, ...(overrides as object) });
    return response.sandbox!;
  }

  async get(name = "box"): Promise<Sandbox> {
    return (await this.client.getSandbox({ workspaceScope: this.scope, name })).sandbox!;
  }

  /** Waits until the sandbox is in this phase. */
  async phase(wanted: SandboxPhase, name = "box", limitMs = 5_000): Promise<Sandbox> {
    const deadline = performance.now() + limitMs;
    for (;;) {
      const sandbox = await this.get(name);
      if (sandbox.status?.phase === wanted) return sandbox;
      if (performance.now() > deadline) {
        throw new Error(
          `phase ${SandboxPhase[sandbox.status!.phase]}: ${JSON.stringify(sandbox.status?.conditions)}\n${this.logLines.join("")}`,
        );
      }
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  /** Waits until something holds. */
  async until(holds: () => boolean | Promise<boolean>, what: string, limitMs = 5_000): Promise<void> {
    const deadline = performance.now() + limitMs;
    while (!(await holds())) {
      if (performance.now() > deadline) throw new Error(`${what}: not within ${limitMs} ms\n${this.logLines.join("")}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#halt();
    await rm(this.#folder, { recursive: true, force: true });
  }
}
