import { randomUUID } from "node:crypto";
import { closeSync, constants, openSync } from "node:fs";
import { describeError, RuntimeError, systemClock } from "@openshell/base";
import { RotatingFile } from "@openshell/base/rotating-file.ts";
import { loadAddon } from "@openshell/boundary/local/native.ts";
import pino from "pino";
import { Host } from "./host/host.ts";
import { GatewayLink } from "./host/link.ts";
import { openSandbox, SharedResources } from "./host/open.ts";
import { listenForPokes } from "./host/poke.ts";
import { readHostStart } from "./host/start.ts";

/** 32 MiB in all. */
const LOG_LIMITS = { fileBytes: 8 * 1024 * 1024, oldFiles: 3 };

/** A supervisor host (docs/architecture/supervisor.md). Started by the gateway only. */
async function main(): Promise<number> {
  const start = readHostStart();
  const addon = loadAddon();
  // Core size 0, not dumpable: this process will hold credentials.
  addon.harden();
  process.umask(0o077);
  // Bounded, and a disk that the agents filled costs lines, not the process.
  const logFile = RotatingFile.open(start.logFile, LOG_LIMITS);
  process.on("exit", () => logFile.flush());
  const log = pino(
    { base: { host_id: start.hostId, pid: process.pid }, timestamp: pino.stdTimeFunctions.isoTime },
    logFile,
  );
  const lock = openSync(start.lockFile, constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW, 0o600);
  if (!addon.lock(lock))
    throw new RuntimeError("host_running", `another process is host ${start.hostId}`, { next: "Stop it first" });

  const link = new GatewayLink(start.gatewaySocket);
  const instanceId = randomUUID();
  const shared = new SharedResources();
  const host = new Host({
    hostId: start.hostId,
    instanceId,
    build: start.build,
    secret: start.secret,
    link,
    clock: systemClock,
    log,
    open: (assignment) =>
      openSandbox({ addon, link, clock: systemClock, log, shared, instanceId, version: start.build }, assignment),
  });
  const pokes = await listenForPokes(start.controlSocket, () => host.poke());
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"] as const)
    process.once(signal, () => void host[Symbol.asyncDispose]());
  process.on("unhandledRejection", (reason) => {
    // Only the message: a reason may carry data of a request.
    log.error({ err: describeError(reason) }, "unhandled rejection");
  });
  log.info("started");
  const end = await host.run();
  log.info({ reason: end.reason }, "ending");
  await host[Symbol.asyncDispose]();
  await pokes[Symbol.asyncDispose]();
  await shared[Symbol.asyncDispose]();
  closeSync(lock);
  return end.code;
}

main().then(
  (code) => process.exit(code),
  (error: unknown) => {
    process.stderr.write(`openshell host: ${describeError(error)}\n`);
    process.exit(1);
  },
);
