import { closeSync, writeSync } from "node:fs";
import { describeError, escapeUntrusted, type PathEnvironment, RuntimeError, systemCode } from "@openshell/base";
import { daemonEnvironment } from "@openshell/base/daemon.ts";
import type { ReadyLine } from "@openshell/base/gateway-record.ts";
import { homeFolder } from "@openshell/base/home.ts";
import { lookup, parseFlags } from "../config/inputs.ts";
import { loadConfig } from "../config/load.ts";
import type { CreateServices } from "../deps.ts";
import { findPrograms } from "./environment.ts";
import type { RunningGateway, StopRequest } from "./gateway.ts";

export interface ServeOptions {
  /** Arguments after `serve`. */
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  /** import.meta.url of the program. */
  readonly mainUrl: string;
  readonly version: string;
  readonly services: () => Promise<CreateServices>;
}

/** Stopping without ending sandboxes takes less than a second; past this something hangs, and the process ends all the same. Milliseconds. */
const STOP_LIMIT_MS = 5_000;
/** As above, beside the 30 s that sandboxes have. Milliseconds. */
const STOP_WITH_SANDBOXES_LIMIT_MS = 40_000;

/** Runs a gateway until it is told to stop. Resolves with the exit status. */
export async function serve(options: ServeOptions): Promise<number> {
  const { args, env, mainUrl, version } = options;
  process.umask(0o077);
  // A start by hand may bring anything: credentials of the person, and what steers Node, TLS or proxies.
  const allowed = daemonEnvironment(env);
  for (const name of Object.keys(env)) if (!(name in allowed)) delete env[name];
  // With a handler of ours, Node does not open its inspector on this signal.
  process.on("SIGUSR1", () => {});
  process.on("SIGHUP", () => {});

  let report = (_line: ReadyLine): void => {};
  let gateway: RunningGateway;
  const signalled = stopSignals();
  try {
    const flags = parseFlags(args);
    report = readyReporter(lookup("--ready-fd", flags, new Map()));
    const where: PathEnvironment = { uid: process.getuid!(), env, home: homeFolder(env) };
    const loaded = await loadConfig(flags, where);
    const programs = findPrograms(mainUrl, env);
    // Whoever this process starts finds the same programs and addon.
    if (programs.dist !== undefined) env["OPENSHELL_DIST"] = programs.dist;
    const { startGateway } = await import("./gateway.ts");
    const autoStarted = lookup("--auto-started", flags, new Map()) === "true";
    gateway = await startGateway({ loaded, where, programs, version, autoStarted, services: options.services });
  } catch (error) {
    const failure = startFailure(error);
    report({ ready: false, code: failure.code, message: failure.message, next: failure.next });
    process.stderr.write(`openshell gateway: ${describeError(failure)}\n`);
    // Only where nobody foresaw it: what the machine refused is said in full.
    if (failure !== error && systemCode(error) === undefined) process.stderr.write(`${(error as Error).stack}\n`);
    return 1;
  }
  const { log } = gateway;
  process.on("uncaughtException", (error) => {
    log.fatal({ err: error }, "an error that nobody handled");
    // State may be half changed: end, and let the next start rebuild it from the store.
    void end(gateway, { sandboxes: "keep", reason: "an unhandled error", failed: true }).then(() => process.exit(1));
  });
  process.on("unhandledRejection", (error) => log.error({ err: error }, "a failure that nobody waited for"));
  report({ ready: true, record: gateway.record });
  const request = await Promise.race([gateway.stopRequested, signalled]);
  const inOrder = await end(gateway, request);
  return inOrder && !request.failed ? 0 : 1;
}

/** The reason why it did not start, for a person. What the machine refuses names its path itself: `EISDIR: …, open '/x'`. */
function startFailure(error: unknown): RuntimeError {
  if (error instanceof RuntimeError) return error;
  const message = escapeUntrusted((error as Error).message, 1_000);
  const next =
    systemCode(error) === undefined
      ? "Read the error output; report it as a fault of OpenShell"
      : "Correct what is at that path: its kind, its owner or its rights";
  return new RuntimeError("start_failed", message, { next, cause: error });
}

/** Stops in order; false when that took too long and the process should just end. */
async function end(gateway: RunningGateway, request: StopRequest): Promise<boolean> {
  const limitMs = request.sandboxes === "stop" ? STOP_WITH_SANDBOXES_LIMIT_MS : STOP_LIMIT_MS;
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), limitMs);
  });
  const stopped = gateway.stop(request).then(
    () => true,
    (error: unknown) => {
      process.stderr.write(`openshell gateway: ${describeError(error)}\n`);
      return false;
    },
  );
  const inOrder = await Promise.race([stopped, late]);
  clearTimeout(timer);
  return inOrder;
}

/** Resolves at the first SIGTERM or SIGINT; a second one ends the process at once. */
function stopSignals(): Promise<StopRequest> {
  return new Promise((resolve) => {
    let seen = false;
    for (const signal of ["SIGTERM", "SIGINT"] as const) {
      process.on(signal, () => {
        if (seen) process.exit(130);
        seen = true;
        resolve({ sandboxes: "keep", reason: signal, failed: false });
      });
    }
  });
}

/** Writes one line to the descriptor that the starter gave, and closes it. */
function readyReporter(fdText: string | undefined): (line: ReadyLine) => void {
  if (fdText === undefined) return () => {};
  const fd = Number(fdText);
  if (!Number.isInteger(fd) || fd < 3) {
    throw new RuntimeError("invalid_configuration", "--ready-fd is not a descriptor above 2", {
      next: "Pass the number of an open pipe",
    });
  }
  return (line) => {
    try {
      writeSync(fd, `${JSON.stringify(line)}\n`);
      closeSync(fd);
    } catch {
      // The starter has gone; nobody is left to tell.
    }
  };
}
