import { closeSync, constants, openSync } from "node:fs";
import { connect } from "node:net";
import type { Writable } from "node:stream";
import { identifyProcess, isAlive, type ProcessIdentity } from "@openshell/base";
import { spawnDaemon } from "@openshell/base/daemon.ts";

/**
 * A young generation of 8 MB in place of 16: a flood of bytes of one sandbox has its buffers collected there more often, in place of
 * everything being collected because of them (10 to 40 ms, felt by its neighbours). Small requests cost the same; with 4 MB a few
 * hundredths more.
 */
const HOST_NODE_OPTIONS: readonly string[] = ["--max-semi-space-size=8"];

/** What the launcher does to processes; tests pass doubles. */
export interface HostProcesses {
  /** Starts a host and hands it its start line. `onExit` is called once when it ends or could not be started. */
  start(request: HostStartRequest, onExit: () => void): ProcessIdentity | undefined;
  alive(identity: ProcessIdentity): boolean;
  signal(identity: ProcessIdentity, signal: "SIGTERM" | "SIGKILL"): void;
  /** Tells a host that the gateway listens again. */
  poke(socket: string): void;
}

export interface HostStartRequest {
  readonly program: string;
  readonly env: Readonly<Record<string, string>>;
  readonly logFile: string;
  /** One JSON line with the secret: goes through a pipe, never argv or environment. */
  readonly startLine: string;
}

/** A poke that is not taken at once means that nobody is there. Milliseconds. */
const POKE_LIMIT_MS = 500;

export const systemHostProcesses: HostProcesses = {
  start({ program, env, logFile, startLine }, onExit) {
    const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_APPEND | constants.O_NOFOLLOW;
    const output = openSync(logFile, flags, 0o600);
    try {
      const child = spawnDaemon({ program, args: [], env, output, nodeOptions: HOST_NODE_OPTIONS });
      child.once("error", onExit);
      child.once("exit", onExit);
      const pipe = child.stdio[3] as Writable;
      // A host that ended before it read its line is reported by its exit.
      pipe.on("error", () => {});
      pipe.end(`${startLine}\n`);
      child.unref();
      if (child.pid === undefined) return undefined;
      try {
        return identifyProcess(child.pid);
      } catch (error) {
        // A host that nobody could look after must not live.
        child.kill("SIGKILL");
        throw error;
      }
    } finally {
      closeSync(output);
    }
  },
  alive: isAlive,
  signal(identity, signal) {
    if (!isAlive(identity)) return;
    try {
      process.kill(identity.pid, signal);
    } catch {
      // It ended between the look and the call.
    }
  },
  poke(path) {
    const socket = connect(path);
    socket.setTimeout(POKE_LIMIT_MS, () => socket.destroy());
    socket.on("error", () => {});
    socket.on("connect", () => socket.destroy());
    socket.unref();
  },
};
