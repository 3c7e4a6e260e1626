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
import { type Clock, systemClock } from "@openshell/base";
import { decodeEncoded } from "@openshell/rpc";
import pino from "pino";
import { type Caller, callerKey } from "../../auth/caller.ts";
import { Secret } from "../../auth/secret.ts";
import type { GatewayConfig } from "../../config/config.ts";
import type { MiddlewareRegistration } from "../../config/middleware.ts";
import type { GatewayDeps, GatewayServices } from "../../deps.ts";
import type { HostLauncher, HostListener } from "../../hosts/types.ts";
import { translateError } from "../../http/translate-error.ts";
import type { Command } from "../../store/command.ts";
import { StoreError } from "../../store/errors.ts";
import { openStore } from "../../store/store.ts";
import type { HostRecord, Store } from "../../store/types.ts";
import { createVault } from "../../store/vault.ts";
import { assembleServices } from "../services.ts";
import { watchErrors } from "./error-conventions.ts";
import { BOOT, FakeDriver } from "./fake-driver.ts";
import { FakeHost, type FakeWorkload } from "./fake-host.ts";
import { MortalProcess, type Side } from "./mortal-process.ts";

/** Every wait of a test, an answered call among them, ends after so long, and says what it saw. Milliseconds. */
const WAIT_LIMIT_MS = 5_000;
/** Between two looks at what is waited for. Milliseconds. */
const POLL_MS = 5;

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
  configConsistencyCheckMs: 30_000,
  supervisor: {
    placement: "workspace",
    minimumIsolation: [],
    network: { additionalCa: undefined, resolvers: [] },
    middleware: [],
  },
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
  /** Errors whose form is wrong, whatever the test wanted of them: the harness fails at its end. */
  readonly badErrors = new Set<string>();
  store!: Store;
  services!: GatewayServices;
  /** What the current gateway was made with. */
  deps!: GatewayDeps;
  client!: Client<typeof OpenShell>;
  host: FakeHost | undefined;
  caller: Caller = admin;
  readonly #folder: string;
  readonly #clock: Clock;
  readonly #keys = randomBytes(32);
  #stopping = new AbortController();
  #listeners = new Set<HostListener>();
  #hostTransport!: Transport;
  #hostRecord: HostRecord | undefined;
  #hostSecret = "";
  #process = new MortalProcess();
  /** Stores of processes that died: closed at the end, as nobody waits for them before. */
  readonly #deadStores: Store[] = [];
  /** Set to keep hosts from being started. */
  hostsAvailable = true;
  /** Set to let every write to the store fail. */
  failWrites = false;
  /** What happens between the checks of a change and its transaction. */
  beforeWrite: (commands: readonly Command<unknown>[]) => Promise<void> = async () => {};
  /** The same of a change of a sandbox on its own. */
  beforeModify: () => void = () => {};
  /** What happens between a transaction of a change and whatever follows it. */
  afterWrite: () => Promise<void> | void = () => {};
  /** Limit of each wait that is not told another one. Milliseconds. */
  limitMs = WAIT_LIMIT_MS;
  /** Boot of the machine that the next gateway finds itself in. */
  bootId = BOOT;
  /** Middleware services that are registered. */
  readonly middleware: MiddlewareRegistration[] = [];
  configureHost: (host: FakeHost) => void = () => {};

  private constructor(folder: string, clock: Clock) {
    this.#folder = folder;
    this.#clock = clock;
    this.driver.onEnd = (id) => {
      for (const [key, workload] of this.workloads) if (key.startsWith(`${id}/`)) workload.running = false;
    };
  }

  /** `clock` is that of every gateway of the test. */
  static async open(clock: Clock = systemClock): Promise<Harness> {
    const harness = new Harness(await mkdtemp(join(tmpdir(), "openshell-api-")), clock);
    await harness.#boot();
    return harness;
  }

  async #boot(crash?: { readonly step: number; readonly side: Side }): Promise<void> {
    const real = await openStore(join(this.#folder, "gateway.db"));
    const process = new MortalProcess();
    if (crash !== undefined) process.dieAt(crash.step, crash.side);
    this.#process = process;
    void process.died.then(() => this.#loseHost(process));
    this.store = process.store(this.#fallible(real));
    this.#stopping = new AbortController();
    const mac = (purpose: string) => (data: Uint8Array) =>
      new Uint8Array(
        createHmac("sha256", Buffer.concat([this.#keys, Buffer.from(purpose)]))
          .update(data)
          .digest(),
      );
    const deps: GatewayDeps = {
      config: { ...config, supervisor: { ...config.supervisor, middleware: this.middleware } },
      paths: { name: "test", config: this.#folder, state: this.#folder, runtime: this.#folder, logs: this.#folder },
      build: { version: "0.1.0", build: "test" },
      clock: this.#clock,
      log: pino({ level: "trace" }, { write: (line: string) => void this.logLines.push(line) }),
      store: this.store,
      vault: createVault(this.#keys),
      keys: { requestIds: mac("requests"), pageTokens: mac("pages") },
      hosts: this.#launcher(),
      inspectionCas: { of: async () => ({ certificatePem: "CERT", privateKeyPem: new Secret("CA KEY") }) },
      alwaysDenied: () => ["127.0.0.1:17670"],
      stopping: this.#stopping.signal,
      startWaitMs: 0,
    };
    this.deps = deps;
    this.services = assembleServices(deps, process.driver(this.driver), this.bootId);
    const identify: Interceptor = (next) => (request) => {
      request.contextValues.set(callerKey, this.caller);
      return next(request);
    };
    const boundary = errorBoundary({
      translate: translateError,
      onInternal: (error) => void this.logLines.push(String((error as Error).stack)),
    });
    const limited: Interceptor = (next) => (request) =>
      request.stream ? next(request) : this.#within(next(request), `answer to ${request.method.name}`);
    this.client = createClient(
      OpenShell,
      createRouterTransport(this.services.userRoutes, {
        router: {
          interceptors: [decodeEncoded, watchErrors((problem) => this.badErrors.add(problem)), boundary, identify],
        },
        transport: { interceptors: [limited] },
      }),
    );
    this.#hostTransport = createRouterTransport(this.services.hostRoutes, { router: { interceptors: [boundary] } });
    await this.#within(this.services.start(), "start of the gateway");
  }

  #fallible(real: Store): Store {
    const check = (): void => {
      if (this.failWrites) throw new StoreError("store_write_failed", "a test wanted it so");
    };
    return Object.create(real, {
      write: {
        value: async (...commands: Parameters<Store["write"]>) => {
          check();
          await this.beforeWrite(commands);
          const written = await real.write(...commands);
          await this.afterWrite();
          return written;
        },
      },
      modifySandbox: {
        value: async (...change: Parameters<Store["modifySandbox"]>) => {
          check();
          this.beforeModify();
          const written = await real.modifySandbox(...change);
          await this.afterWrite();
          return written;
        },
      },
      failed: { value: real.failed },
      [Symbol.asyncDispose]: { value: () => real[Symbol.asyncDispose]() },
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

  /** The store's file, for looks at everything that is in it. */
  get databasePath(): string {
    return join(this.#folder, "gateway.db");
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

  /** The gateway dies at the `step`-th effect from now. Resolves when it has died; `restartDead` starts its successor. */
  crashAt(step: number, side: Side): Promise<void> {
    this.#process.dieAt(step, side);
    return this.#process.died;
  }

  /**
   * Runs `act` until the gateway dies at the `step`-th effect from now, and starts its successor. False: `act` came to its
   * end, and the death was beyond it.
   */
  async dieDuring(step: number, side: Side, act: () => Promise<unknown>): Promise<boolean> {
    this.crashAt(step, side);
    return await this.#untilDead(act);
  }

  /** As `dieDuring`, for the gateway that starts after a restart of the machine: its start counts. */
  async dieAfterReboot(step: number, side: Side, act: () => Promise<unknown>): Promise<boolean> {
    await this.reboot({ step, side });
    return await this.#untilDead(act);
  }

  async #untilDead(act: () => Promise<unknown>): Promise<boolean> {
    const process = this.#process;
    const { died } = process;
    await Promise.race([died, act()]);
    // What `act` waited for may have been the very effect that the gateway is about to die after.
    if (process.spare()) return false;
    await this.#within(died, "death of the gateway");
    await this.restartDead();
    return true;
  }

  /** As `restart`, for a gateway that died by `crashAt`: nothing of it is disposed in order. */
  async restartDead(): Promise<void> {
    this.#stopping.abort();
    this.#deadStores.push(this.store);
    await this.#boot();
    if (this.#hostRecord !== undefined) this.startHost();
  }

  /** The streams of a host end with the gateway that they lead to. */
  #loseHost(process: MortalProcess): void {
    if (process !== this.#process) return;
    this.host?.kill();
    this.host = undefined;
  }

  /** The gateway dies without a word and another one starts; the host survives and reconnects. */
  async restart(): Promise<void> {
    await this.#halt();
    await this.#boot();
    if (this.#hostRecord !== undefined) this.startHost();
  }

  /** The machine is restarted: every process is gone, the files stay. */
  async reboot(crash?: { readonly step: number; readonly side: Side }): Promise<void> {
    await this.#halt();
    this.#hostRecord = undefined;
    this.bootId = `boot-${randomUUID()}`;
    this.driver.reboot(this.bootId);
    for (const workload of this.workloads.values()) workload.running = false;
    await this.#boot(crash);
  }

  async #halt(): Promise<void> {
    const process = this.#process;
    this.#stopping.abort();
    this.host?.kill();
    this.host = undefined;
    // A dead gateway has nothing more to do, and would wait for itself.
    if (process.spare()) await this.#within(this.services[Symbol.asyncDispose](), "end of the gateway");
    process.kill();
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
  async phase(wanted: SandboxPhase, name = "box", limitMs = this.limitMs): Promise<Sandbox> {
    let sandbox: Sandbox | undefined;
    const reached = async (): Promise<boolean> => {
      sandbox = await this.get(name);
      return sandbox.status?.phase === wanted;
    };
    await this.until(reached, `phase ${SandboxPhase[wanted]} of ${name}`, limitMs);
    return sandbox!;
  }

  /** Waits until something holds. A wait that began before the gateway died is over with it. */
  async until(holds: () => boolean | Promise<boolean>, what: string, limitMs = this.limitMs): Promise<void> {
    const process = this.#process;
    let over = false;
    const poll = async (): Promise<void> => {
      while (!over) {
        const held = await holds();
        if (process !== this.#process) throw new Error(`${what}: the gateway that it was expected of is dead`);
        if (held) return;
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      }
    };
    try {
      await this.#within(poll(), what, limitMs);
    } finally {
      over = true;
    }
  }

  /** @throws Error with the state of everything when `work` takes longer than the limit. */
  async #within<T>(work: PromiseLike<T>, what: string, limitMs = this.limitMs): Promise<T> {
    const { promise: late, reject } = Promise.withResolvers<never>();
    const timer = setTimeout(() => {
      void this.#state().then((state) => reject(new Error(`${what}: not within ${limitMs} ms\n${state}`)));
    }, limitMs);
    try {
      return await Promise.race([work, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** What is known, for the message of a wait that came to its limit. Reads the store as it is, whoever is dead. */
  async #state(): Promise<string> {
    const sandboxes = await this.store.sandboxes.list({ limit: 10 }).catch((error: unknown) => String(error));
    const stored =
      typeof sandboxes === "string"
        ? [sandboxes]
        : sandboxes.map(({ name, generation, status: { phase, conditions } }) => {
            const why = conditions.map(
              ({ type, status, reason, message }) => `${type}=${status} ${reason}: ${message}`,
            );
            return `${name}: generation ${generation}, ${SandboxPhase[phase]} (${why.join("; ")})`;
          });
    const compute = [...this.driver.sandboxes.values()].map(
      ({ sandboxId, generation, running }) => `${sandboxId}/${generation} ${running === undefined ? "ended" : "runs"}`,
    );
    const workloads = [...this.workloads].map(([key, workload]) => `${key} ${JSON.stringify(workload)}`);
    const host = this.host === undefined ? "none" : [...this.host.attached.keys()].join(", ");
    return [
      this.#process.describe(),
      ...stored.map((line) => `stored ${line}`),
      `driver: ${compute.join(", ")}`,
      `workloads: ${workloads.join(", ")}`,
      `host: ${host}`,
      this.logLines.join(""),
    ].join("\n");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#halt();
    for (const store of this.#deadStores) await store[Symbol.asyncDispose]();
    await rm(this.#folder, { recursive: true, force: true });
    if (this.badErrors.size > 0) throw new Error([...this.badErrors].join("\n"));
  }
}
