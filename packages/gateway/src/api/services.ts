import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { ConnectRouter } from "@connectrpc/connect";
import { OpenShell, SandboxPhase } from "@openshell/api";
import { SupervisorGateway } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { unimplementedRest } from "@openshell/api/unimplemented.ts";
import { currentBootId, describeError, LogField, RuntimeError } from "@openshell/base";
import type { ComputeDriver } from "@openshell/drivers/driver.ts";
import { SandboxController } from "../compute/controller.ts";
import { KeyedMutex } from "../compute/keyed-mutex.ts";
import { launchFacts } from "../compute/launch-facts.ts";
import { recover, watchDriver } from "../compute/recovery.ts";
import { runtimeFacts } from "../compute/runtime-record.ts";
import { SandboxFeeds } from "../compute/sandbox-feed.ts";
import { SessionEvents } from "../compute/session-events.ts";
import { wantsToRun, withPhase } from "../compute/status.ts";
import { SessionDelivery } from "../delivery/delivery.ts";
import { ConfigOperations } from "../delivery/operations.ts";
import { Publisher } from "../delivery/publisher.ts";
import { DeliveryScheduler } from "../delivery/scheduler.ts";
import { captureSnapshot } from "../delivery/snapshot.ts";
import type { CreateServices, GatewayDeps, GatewayServices } from "../deps.ts";
import { checkedPolicy } from "../policies/check.ts";
import { checkMiddlewares } from "../policies/middleware.ts";
import { pollingHandlers } from "../polling/handlers.ts";
import { PollingWarnings } from "../polling/warnings.ts";
import { Observations } from "../readiness/observations.ts";
import { ReadinessTracker } from "../readiness/tracker.ts";
import { Attachments } from "../relay/attachments.ts";
import { RelayBroker } from "../relay/broker.ts";
import type { Bootstrap } from "../sessions/backend.ts";
import { HostRegistry } from "../sessions/hosts.ts";
import { DONE } from "../sessions/reader.ts";
import { SessionRegistry } from "../sessions/registry.ts";
import { supervisorService } from "../sessions/service.ts";
import type { SupervisorSession } from "../sessions/session.ts";
import { TokenTable } from "../sessions/tokens.ts";
import { StagedArchives } from "../staging/archives.ts";
import { attachProviderHandlers } from "./attach-provider.ts";
import { configHandlers } from "./config.ts";
import type { ApiDeps } from "./context.ts";
import { localDriver } from "./driver.ts";
import { execHandlers } from "./exec.ts";
import { gatewayHandlers } from "./gateway.ts";
import { logHandlers } from "./logs.ts";
import { storeNonce } from "./mutations.ts";
import { providerStatusHandlers } from "./provider-status.ts";
import { providerHandlers } from "./providers.ts";
import { sandboxProviderHandlers } from "./sandbox-providers.ts";
import { sandboxHandlers } from "./sandboxes.ts";
import { settingsHandlers } from "./settings.ts";
import { stagingHandlers } from "./staging.ts";
import { refusingUnknownFields } from "./unknown-fields.ts";
import { watchHandlers } from "./watch.ts";
import { workspaceHandlers } from "./workspaces.ts";

const DEFAULT_WORKSPACE = "default";
/** Sandboxes that `stopSandboxes` takes into account. */
const MAX_STOPPED_AT_ONCE = 100_000;
/** Phases in which something of a sandbox runs or is about to. */
const ACTIVE_PHASES: readonly SandboxPhase[] = [
  SandboxPhase.PROVISIONING,
  SandboxPhase.READY,
  SandboxPhase.STARTING,
  SandboxPhase.UNKNOWN,
  SandboxPhase.STOPPING,
];

/** The gateway's services over the configured compute driver. */
export const createServices: CreateServices = async (deps) => {
  return assembleServices(deps, await localDriver(deps), currentBootId());
};

/** The handlers that this build has. */
export function openShellHandlers(deps: ApiDeps) {
  return {
    ...gatewayHandlers(deps),
    ...sandboxHandlers(deps),
    ...watchHandlers(deps),
    ...execHandlers(deps),
    ...providerHandlers(deps),
    ...sandboxProviderHandlers(deps),
    ...attachProviderHandlers(deps),
    ...providerStatusHandlers(deps),
    ...configHandlers(deps),
    ...settingsHandlers(deps),
    ...logHandlers(deps),
    ...workspaceHandlers(deps),
    ...stagingHandlers(deps),
  };
}

/** Puts the parts together. No I/O: tests pass doubles. */
export function assembleServices(deps: GatewayDeps, driver: ComputeDriver, bootId: string): GatewayServices {
  const { clock, log, store, vault } = deps;
  const tokens = new TokenTable(clock);
  const sessions = new SessionRegistry();
  const broker = new RelayBroker(clock);
  const attachments = new Attachments();
  const feeds = new SandboxFeeds(() => randomBytes(8).toString("hex"));
  const observations = new Observations(clock);
  const readiness = new ReadinessTracker({ ...deps, sessions, observations });
  let controller: SandboxController;
  const hosts = new HostRegistry({
    clock,
    log,
    launcher: deps.hosts,
    tokens,
    events: {
      onHeld: (hostId, held) => controller.onHeld(hostId, held),
      onAttachFailed: (id, generation, reason) => controller.onAttachFailed(id, generation, reason),
      onDetached: (id, generation) => controller.onDetached(id, generation),
      // A supervisor that polls renews its own evidence: nobody else knows whether it still holds.
      onRenewed: (ids) => observations.renew(ids.filter((id) => sessions.get(id)?.polls !== true)),
    },
  });
  const { archiveBytes: maxBytes } = driver.capabilities;
  const archives = new StagedArchives({ state: deps.paths.state, clock, log, maxBytes });
  const facts = launchFacts({ ...deps, driver });
  controller = new SandboxController({
    store,
    clock,
    log,
    driver,
    launcher: deps.hosts,
    hosts,
    sessions,
    broker,
    attachments,
    feeds,
    archives,
    launchFacts: facts,
    alwaysDenied: deps.alwaysDenied,
    bootId,
    logDirectory: (id) => join(deps.paths.state, "sandboxes", id, "logs"),
    storeNonce: (record, generation) => storeNonce(deps, record.workspace, record.id, generation),
  });
  const operations = new ConfigOperations(store);
  const events = new SessionEvents({
    store,
    vault,
    clock,
    log,
    config: deps.config,
    feeds,
    sessions,
    controller: () => controller,
    operations,
    observations,
    readiness: () => readiness,
    checkPolicy: async (record, policy) => checkMiddlewares(checkedPolicy(policy, record.spec.providers), deps.config),
  });
  const scheduler = new DeliveryScheduler({
    clock,
    reconcileMs: deps.config.configConsistencyCheckMs,
    build: async (sandboxId) => {
      const captured = await captureSnapshot(deps, sandboxId);
      if (captured === undefined) throw new RuntimeError("sandbox_not_found", "the sandbox was deleted");
      return captured.snapshot;
    },
  });
  const openDelivery = (session: SupervisorSession, bootstrap: Bootstrap, publications: number): SessionDelivery => {
    const delivery = new SessionDelivery(session.sandboxId, bootstrap, {
      clock,
      record: async (outcomes) => {
        await events.recordDelivery(session, outcomes);
        for (const { component, outcome } of outcomes) scheduler.stats.answered(component, outcome);
      },
      send: (message) => session.send(message),
      fail: (error) => session.close(error),
      onError: (error, first) => events.deliveryDelayed(session, error, first),
      request: scheduler.request,
      limitAnswer: scheduler.limitAnswer,
    });
    scheduler.register(delivery, publications);
    return delivery;
  };
  const publisher = new Publisher(sessions, scheduler);
  const api: ApiDeps = {
    ...deps,
    driver,
    controller,
    sessions,
    broker,
    attachments,
    feeds,
    observations,
    readiness,
    configurationChanged: (ids) => publisher.publishTo(ids),
    publish: (scope) => publisher.publish(scope),
    operations,
    sameRequest: new KeyedMutex(clock, "request"),
    archives,
    launchFacts: facts,
  };
  const warnings = new PollingWarnings({ clock, log, feeds, stats: scheduler.stats });
  const polling = pollingHandlers({
    ...deps,
    tokens,
    sessions,
    feeds,
    operations,
    backend: events,
    recordDelivery: (session, outcomes) => events.recordDelivery(session, outcomes),
  });
  const hostService = supervisorService({
    clock,
    log,
    backend: events,
    publications: () => scheduler.publications,
    openDelivery,
    closeDelivery: (delivery) => scheduler.unregister(delivery),
    onBootstrap: (end) => scheduler.stats.bootstrapped(end),
    hosts,
    tokens,
    sessions,
    broker,
    onPolling: (session) => warnings.accepted(session),
    stopping: deps.stopping,
  });
  const closed = new AbortController();
  const unsubscribe = deps.hosts.subscribe({
    onGone: (host, isolate) => {
      log[isolate ? "error" : "warn"]({ [LogField.hostId]: host.id, isolate }, "a supervisor host is gone");
      controller.hostGone(host, isolate);
    },
    onIdle: (host) => {
      if (hosts.assignedTo(host.id).length > 0) return;
      void deps.hosts.stop(host.id).catch((error: unknown) => log.warn({ err: error }, describeError(error)));
    },
  });
  const running = async (): Promise<readonly string[]> => {
    const rows = await store.sandboxes.list({ limit: MAX_STOPPED_AT_ONCE, phases: ACTIVE_PHASES });
    return rows.map((row) => row.id);
  };

  return {
    userRoutes: (router: ConnectRouter) =>
      void router.service(OpenShell, unimplementedRest(refusingUnknownFields(openShellHandlers(api)))),
    hostRoutes: (router: ConnectRouter) => {
      router.service(SupervisorGateway, hostService);
      router.service(OpenShell, unimplementedRest(polling));
    },

    delivery: scheduler,

    async start() {
      // Making a key takes longer than a sandbox; the first one should not wait for it.
      void deps.inspectionCas
        .of(DEFAULT_WORKSPACE)
        .catch((error: unknown) => log.warn({ err: error }, "cannot prepare the inspection CA"));
      void watchDriver({ driver, store, clock, log, controller, feeds, signal: closed.signal });
      void scheduler.reconcile();
      await archives.open(async (id) => {
        const record = await store.sandboxes.byId(id);
        return record !== undefined && runtimeFacts(record).launchedGeneration === 0n;
      });
      await recover({ store, driver, controller, events, log });
    },

    async runningSandboxes() {
      const counts = await store.sandboxes.countByPhase();
      return [...ACTIVE_PHASES].reduce((sum, phase) => sum + (counts.get(phase) ?? 0), 0);
    },

    async stopSandboxes(limitMs) {
      const ids = await running();
      const stopOne = async (id: string): Promise<void> => {
        const message = "the gateway is stopping";
        await store.modifySandbox(id, ({ status }) =>
          wantsToRun(status.phase)
            ? { patch: { status: withPhase(status, SandboxPhase.STOPPING, "Stopping", message, clock.now()) } }
            : undefined,
        );
        await controller.request(id);
      };
      const stops = ids.map((id) =>
        stopOne(id).catch((error: unknown) => log.error({ sandbox_id: id, err: error }, describeError(error))),
      );
      const timer = new AbortController();
      const limit = clock.sleep(limitMs, { signal: timer.signal, unref: true }).catch(() => {});
      await Promise.race([Promise.all(stops), limit]);
      timer.abort(DONE);
      return (await running()).length;
    },

    async [Symbol.asyncDispose]() {
      closed.abort();
      unsubscribe();
      scheduler.close();
      await controller.close();
      hosts.close();
      for (const session of [...sessions.all]) session.close();
      await archives[Symbol.asyncDispose]();
      await driver[Symbol.asyncDispose]();
    },
  };
}
