import { randomUUID } from "node:crypto";
import type { AttachSandbox } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { systemClock } from "@openshell/base";
import { RotatingFile } from "@openshell/base/rotating-file.ts";
import { CredentialState } from "@openshell/credentials";
import { LOG_LINES } from "@openshell/gateway/compute/limits.ts";
import { createCompiler } from "@openshell/supervisor/config/compiler.ts";
import { createConfigEvents } from "@openshell/supervisor/config/config-events.ts";
import { ConfigurationController } from "@openshell/supervisor/config/controller.ts";
import { ImageRoot } from "@openshell/supervisor/config/image-root.ts";
import { Host } from "@openshell/supervisor/host/host.ts";
import { GatewayLink } from "@openshell/supervisor/host/link.ts";
import { listenForPokes } from "@openshell/supervisor/host/poke.ts";
import { readHostStart } from "@openshell/supervisor/host/start.ts";
import { LogPusher } from "@openshell/supervisor/logs/log-pusher.ts";
import { SandboxLog } from "@openshell/supervisor/logs/sandbox-log.ts";
import { MiddlewareManager } from "@openshell/supervisor/middleware/manager.ts";
import { ReadinessTracker } from "@openshell/supervisor/session/readiness.ts";
import { SandboxSupervisor } from "@openshell/supervisor/session/supervisor.ts";
import { Workload } from "@openshell/supervisor/session/workload.ts";
import pino from "pino";
import { SimulatedBoundary } from "./boundary.ts";
import { SIMULATED_FULL } from "./names.ts";

const FILL_LINES = 100;
const FILL_PAUSE_MS = 500;
const LOG_LIMITS = { fileBytes: 8 * 1024 * 1024, oldFiles: 1 };

const nothing = {
  publish: async (): Promise<void> => {},
  [Symbol.asyncDispose]: async (): Promise<void> => {},
};

/** In pieces that no limit on the way cuts off. */
async function fill(log: SandboxLog): Promise<void> {
  for (let line = 0; line < LOG_LINES; line += 1) {
    if (line % FILL_LINES === 0) await systemClock.sleep(FILL_PAUSE_MS, { unref: true });
    log.info(`line ${line} of a simulated sandbox that has run for long`);
  }
}

function open(link: GatewayLink, assignment: AttachSandbox): SandboxSupervisor {
  const boundary = new SimulatedBoundary(assignment.sandboxId, assignment.generation);
  const credentials = new CredentialState();
  const pusher = new LogPusher();
  const log = new SandboxLog(
    pusher,
    systemClock,
    (text) => text,
    () => {},
  );
  if (assignment.sandboxName.startsWith(SIMULATED_FULL)) void fill(log);
  const root = new ImageRoot("", assignment.local!.layout!);
  const readiness = new ReadinessTracker();
  const middleware = new MiddlewareManager({
    clock: systemClock,
    connect: () => Promise.reject(new Error("a simulated sandbox has no middleware")),
  });
  const configuration = new ConfigurationController({
    egress: nothing,
    middleware,
    compile: createCompiler(
      credentials,
      () => systemClock.now(),
      (path) => root.realPath(path),
    ),
    events: createConfigEvents(
      () => {},
      systemClock,
      (text) => text,
    ),
    readiness,
    onSettings: () => {},
  });
  const workload = new Workload({
    assignment,
    layout: assignment.local!.layout!,
    boundary,
    egress: nothing,
    configuration,
    readiness,
    clock: systemClock,
    restrictions: async () => ({ landlock: undefined, seccomp: new Uint8Array(), rlimits: [], umask: 0o022 }),
  });
  return new SandboxSupervisor({
    assignment,
    link,
    clock: systemClock,
    log,
    pusher,
    boundary,
    workload,
    configuration,
    root,
    readiness,
  });
}

/**
 * A host that differs from the real one in what is below its supervisors: boundaries without sandboxes, no egress and no
 * event files. Its connection, sessions, compiler, configuration and readiness are the product's own code.
 */
async function main(): Promise<number> {
  const start = readHostStart();
  const logFile = RotatingFile.open(start.logFile, LOG_LIMITS);
  process.on("exit", () => logFile.flush());
  const link = new GatewayLink(start.gatewaySocket);
  const host = new Host({
    hostId: start.hostId,
    instanceId: randomUUID(),
    build: start.build,
    secret: start.secret,
    link,
    clock: systemClock,
    log: pino({ level: "warn" }, logFile),
    open: async (assignment) => open(link, assignment),
  });
  const pokes = await listenForPokes(start.controlSocket, () => host.poke());
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"] as const)
    process.once(signal, () => void host[Symbol.asyncDispose]());
  const end = await host.run();
  await host[Symbol.asyncDispose]();
  await pokes[Symbol.asyncDispose]();
  return end.code;
}

process.exit(await main());
