import { stat, unlink } from "node:fs/promises";
import { join } from "node:path";
import type { ConnectRouter } from "@connectrpc/connect";
import { unavailable } from "@openshell/api/errors.ts";
import { SandboxPhase } from "@openshell/api/generated/openshell_pb.js";
import {
  clientConfigRoot,
  describeError,
  ensureFolder,
  identifyProcess,
  type PathEnvironment,
  RuntimeError,
  systemClock,
  systemCode,
  writeFileAtomic,
} from "@openshell/base";
import { daemonEnvironment } from "@openshell/base/daemon.ts";
import { acquireFileLock } from "@openshell/base/file-lock.ts";
import { type GatewayRecord, gatewayRecordPath, userSocketPath } from "@openshell/base/gateway-record.ts";
import { authInterceptor, checkAuthModes } from "../auth/interceptor.ts";
import { type Address, formatAddress } from "../config/config.ts";
import { DEFAULT_BIND, type LoadedConfig } from "../config/load.ts";
import type { CreateServices, GatewayDeps } from "../deps.ts";
import { createHostLauncher } from "../hosts/launcher.ts";
import { systemHostProcesses } from "../hosts/process.ts";
import { browserGuard } from "../http/browser-guard.ts";
import { type AnyRequest, type AnyResponse, answer, Dispatcher } from "../http/dispatcher.ts";
import { livenessRoute, readinessRoute } from "../http/health.ts";
import { HttpLimits } from "../http/limits.ts";
import { ServingStatus } from "../http/serving-status.ts";
import { storeProbe } from "../http/store-probe.ts";
import { openGatewayLog } from "../logging/logger.ts";
import { loadControlPlane } from "../pki/control-plane.ts";
import { clientFolder, registeredPort, writeDiscovery } from "../pki/discovery.ts";
import { createInspectionCas } from "../pki/inspection-ca.ts";
import { deriveKeys, loadKeyEncryptionKey } from "../pki/keys.ts";
import { checkDatabaseIsThere } from "../store/sqlite.ts";
import { openStore } from "../store/store.ts";
import { createVault } from "../store/vault.ts";
import type { Programs } from "./environment.ts";
import { openHostDoor, openPlainDoor, openTcpDoor, openUserDoor, reachableAt } from "./listeners.ts";
import { localControlRoute } from "./local-control.ts";
import { loadGatewayAddon } from "./native.ts";

const DISK_FULL =
  "the disk of the state folder is full: only what ends sandboxes is still stored, in space that is kept for it. Stop or delete the sandbox that fills it, or free space there";

/** Said at the end as well: the log is on that disk, as a rule, and may have had no room for the beginning. */
const DISK_WAS_FULL = "the disk of the state folder was full, and has room again";

export interface StartOptions {
  readonly loaded: LoadedConfig;
  readonly where: PathEnvironment;
  readonly programs: Programs;
  readonly version: string;
  readonly autoStarted: boolean;
  /** Loaded while the store opens: the services bring most of the code. */
  readonly services: () => Promise<CreateServices>;
}

/** How a gateway comes to its end. */
export interface StopRequest {
  readonly sandboxes: "keep" | "stop";
  readonly reason: string;
  /** Something broke: the process ends with a failure status. */
  readonly failed: boolean;
}

/** A gateway that serves. */
export interface RunningGateway {
  readonly record: GatewayRecord;
  readonly log: GatewayDeps["log"];
  /** Resolves with the first wish to stop that came from inside: the local control, or a lost store. */
  readonly stopRequested: Promise<StopRequest>;
  /** Ends it. Hosts and sandboxes go on, unless they are to be stopped. */
  stop(request: StopRequest): Promise<void>;
}

/** All sandboxes together have this long to stop. Milliseconds. */
const STOP_SANDBOXES_LIMIT_MS = 30_000;

/**
 * Brings a gateway up, in the order that a crash at any point can be resumed from: lock, keys, store, services, the hosts'
 * socket, live hosts and unfinished work, the users' sockets, and last the files by which others find it. Whatever was
 * opened is closed again when a step fails.
 *
 * @throws RuntimeError gateway_running and those of the parts
 */
export async function startGateway(options: StartOptions): Promise<RunningGateway> {
  const { loaded, where, programs, version } = options;
  const { config, paths } = loaded;
  await using opened = new AsyncDisposableStack();

  for (const folder of [paths.state, paths.runtime, paths.logs]) await ensureOwnFolder(folder);
  const gatewayLog = opened.use(openGatewayLog(join(paths.logs, "gateway.log"), config.logLevel));
  const { log } = gatewayLog;
  const lock = acquireFileLock(join(paths.state, "lock"));
  if (lock === undefined) {
    throw new RuntimeError("gateway_running", `a gateway named ${config.name} is running already`, {
      next: "Use it, or stop it with `openshell gateway stop`",
    });
  }
  opened.use(lock);

  const addon = loadGatewayAddon(programs.dist);
  if (addon === undefined) log.warn("the native addon is not there: this process can be traced by its own user");
  else addon.harden();

  const stopping = new AbortController();
  const wish = Promise.withResolvers<StopRequest>();

  // Independent of each other; the code of the services loads meanwhile.
  const loading = Promise.all([options.services(), import("../http/rpc.ts"), import("../http/standard-services.ts")]);
  loading.catch(() => {});
  checkDatabaseIsThere(paths.state);
  const kek = await loadKeyEncryptionKey(paths.state);
  const pkiOptions = {
    keys: join(paths.state, "keys"),
    clientFolder: join(clientFolder(clientConfigRoot(where), config.name), "mtls"),
    extraNames: [...config.serverSans, ...ownName(config.bind)],
    now: systemClock.now(),
  };
  const [store, pki] = await Promise.all([
    openStore(join(paths.state, "gateway.db"), {
      path: join(paths.state, "disk-reserve"),
      onChange: (state) => {
        if (state === "whole") log.warn({ folder: paths.state }, DISK_WAS_FULL);
        else log.error({ folder: paths.state }, DISK_FULL);
      },
    }).then((made) => opened.use(made)),
    config.disableTls ? undefined : loadControlPlane(pkiOptions),
  ]);
  if (pki !== undefined && pki.renewed.length > 0) log.info({ renewed: pki.renewed }, "made new certificates");
  store.failed.catch((error) => {
    log.fatal({ err: error }, "the store is lost");
    wish.resolve({ sandboxes: "keep", reason: "the store is lost", failed: true });
  });

  const vault = createVault(kek);
  const inspectionCas = createInspectionCas({ store, vault, clock: systemClock });
  const hosts = opened.use(
    createHostLauncher({
      store,
      clock: systemClock,
      log,
      processes: systemHostProcesses,
      program: programs.host,
      env: daemonEnvironment(process.env),
      build: programs.build === "" ? "source" : programs.build,
      placement: config.supervisor.placement,
      folder: join(paths.runtime, "h"),
      logs: paths.logs,
      gatewaySocket: join(paths.runtime, "host.sock"),
    }),
  );
  const denied: string[] = [...config.supervisor.network.resolvers];
  const registered = config.supervisor.middleware;
  const middleware =
    registered.length === 0
      ? undefined
      : opened.use(await (await import("./middleware-endpoints.ts")).MiddlewareEndpoints.open(registered));
  const [createServices, { rpcServer }, { PUBLIC_SERVICES, standardRoutes }] = await loading;
  const services = opened.use(
    await createServices({
      config,
      paths,
      build: { version, build: programs.build },
      clock: systemClock,
      log,
      store,
      vault,
      keys: deriveKeys(kek),
      hosts,
      inspectionCas,
      alwaysDenied: () => [...denied, ...(middleware?.denied ?? [])],
      stopping: stopping.signal,
    }),
  );
  kek.fill(0);

  let record: GatewayRecord | undefined;
  const control = localControlRoute({
    record: () => record,
    runningSandboxes: () => services.runningSandboxes(),
    stopSandboxes: () => services.stopSandboxes(STOP_SANDBOXES_LIMIT_MS),
    hosts: () => hosts.current().length,
    stop: (sandboxes) => wish.resolve({ sandboxes, reason: "asked through the users' socket", failed: false }),
  });
  const probe = storeProbe(() => store.check());
  const readiness = readinessRoute({ version, probe });
  // Loaded and counted only when somebody asks for metrics.
  const metrics =
    config.metrics &&
    (await import("../http/metrics.ts")).createMetrics({
      sandboxes: async () => sandboxesByPhase(await store.sandboxes.countByPhase()),
      hosts: () => hosts.current().length,
      storeHealthy: async () => (await probe()).healthy,
      delivery: () => services.delivery,
    });
  const serving = new ServingStatus({ clock: systemClock, probe, stopping: stopping.signal });
  checkAuthModes(PUBLIC_SERVICES);
  const standard = standardRoutes({ serving, clock: systemClock, stopping: stopping.signal });
  const userRoutes = (router: ConnectRouter): void => {
    services.userRoutes(router);
    standard(router);
  };
  const rpc = { log, stopping: stopping.signal };
  const userInterceptors = metrics === undefined ? [authInterceptor] : [metrics.interceptor, authInterceptor];
  const userRpc = rpcServer({ ...rpc, routes: userRoutes, interceptors: userInterceptors });
  const strangerRpc = rpcServer({
    ...rpc,
    routes: userRoutes,
    interceptors: userInterceptors,
    messageBytes: HttpLimits.strangerMessageBytes,
  });
  const hostRpc = rpcServer({ ...rpc, routes: services.hostRoutes, interceptors: [] });

  const hostDispatcher = new Dispatcher({ routes: [], rpc: hostRpc });
  const userDispatcher = new Dispatcher({ routes: [livenessRoute, control], rpc: userRpc });
  const tcpDispatcher = new Dispatcher({
    routes: [livenessRoute],
    ...(config.disableTls ? { guard: browserGuard } : {}),
    rpc: userRpc,
    strangers: strangerRpc,
  });

  opened.use(await openHostDoor(join(paths.runtime, "host.sock"), hostDispatcher));
  const root = clientConfigRoot(where);
  const earlier = await registeredPort(root, config.name);
  const tcp = opened.use(await openTcpDoor(config.bind, earlier, tcpDispatcher, pki));
  const address = tcp.listener.address as Address;
  denied.push(...reachableAt(address));
  for (const [plain, routes] of [
    [config.health, [livenessRoute, readiness]],
    [config.metrics, metrics === undefined ? [] : [metrics.route]],
  ] as const) {
    if (plain === undefined) continue;
    const notFound = { handler: (_request: AnyRequest, response: AnyResponse) => answer(response, 404, "not found\n") };
    const door = opened.use(await openPlainDoor(plain, new Dispatcher({ routes, rpc: notFound })));
    denied.push(...reachableAt(door.listener.address as Address));
  }

  await hosts.adopt();
  await services.start();
  const socket = userSocketPath(paths);
  opened.use(await openUserDoor(socket, userDispatcher, addon));

  const scheme = config.disableTls ? "http" : "https";
  const shown = address.host === "0.0.0.0" || address.host === "::" ? { ...address, host: "127.0.0.1" } : address;
  const identity = identifyProcess(process.pid)!;
  record = {
    ...identity,
    name: config.name,
    version,
    build: programs.build,
    startedAt: systemClock.now(),
    userSocket: socket,
    endpoint: `${scheme}://${formatAddress(shown)}`,
    autoStarted: options.autoStarted,
  };
  const recordPath = gatewayRecordPath(paths);
  await writeFileAtomic(recordPath, `${JSON.stringify(record, undefined, 2)}\n`);
  opened.defer(() => unlink(recordPath).catch(() => {}));
  const discovery = await writeDiscovery({
    root,
    name: config.name,
    endpoint: record.endpoint,
    port: address.port,
    authMode: config.disableTls ? "plaintext" : "mtls",
  });
  if (discovery === "foreign") {
    log.warn("a registration of this name is of another machine, or cannot be read; it is left as it is");
  }
  if (address.port !== DEFAULT_BIND.port && !config.bind.chosen) {
    log.info({ port: address.port }, `port ${DEFAULT_BIND.port} is taken; listening on another one`);
  }
  serving.started();
  log.info({ version, build: programs.build, endpoint: record.endpoint, socket, config: loaded.file }, "listening");

  const resources = opened.move();
  return {
    record,
    log,
    stopRequested: wish.promise,
    async stop({ sandboxes, reason }) {
      log.info({ sandboxes, reason }, "stopping");
      serving.stop();
      if (sandboxes === "stop") {
        const left = await services.stopSandboxes(STOP_SANDBOXES_LIMIT_MS).catch((error: unknown) => {
          log.error({ err: error }, describeError(error));
          return -1;
        });
        if (left !== 0) log.error({ left }, "some sandboxes did not stop in time");
      }
      // Calls and streams under way end with UNAVAILABLE.
      stopping.abort(unavailable("the gateway is stopping", { next: "Try again" }));
      await resources.disposeAsync();
    },
  };
}

/** A private folder of this uid. One that somebody else made first, say below a shared XDG_RUNTIME_DIR, is theirs to change. */
async function ensureOwnFolder(folder: string): Promise<void> {
  const refuse = (why: string, cause?: unknown): never => {
    throw new RuntimeError("folder_unusable", `the folder ${folder} cannot be used: ${why}`, {
      next: "HOME and the XDG variables must name folders of your own; unset those that do not (XDG_RUNTIME_DIR after su or sudo)",
      cause,
    });
  };
  try {
    await ensureFolder(folder);
  } catch (error) {
    refuse(systemCode(error) ?? (error as Error).message, error);
  }
  const { uid } = await stat(folder);
  if (uid !== process.getuid?.()) refuse(`it belongs to uid ${uid}`);
}

function sandboxesByPhase(counts: ReadonlyMap<number, number>): ReadonlyMap<string, number> {
  return new Map([...counts].map(([phase, count]) => [SandboxPhase[phase]?.toLowerCase() ?? "unknown", count]));
}

/** The name by which a specific listen address is called. */
function ownName(bind: Address): readonly string[] {
  return bind.host === "0.0.0.0" || bind.host === "::" ? [] : [bind.host];
}
