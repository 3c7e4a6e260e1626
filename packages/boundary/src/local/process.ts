import { fstatSync } from "node:fs";
import { Socket } from "node:net";
import type { Duplex, Readable, Writable } from "node:stream";
import { isatty } from "node:tty";
import type { ExitStatus, SandboxProcess } from "../boundary.ts";
import { boundaryLost, boundaryUntrusted } from "./boundary-error.ts";
import type { Addon } from "./native.ts";
import { PtyStream } from "./pty-stream.ts";

/** Streams over the descriptors that init handed out, owned from here on. */
export interface ProcessStreams {
  readonly stdin: Duplex | Writable;
  readonly stdout: Readable;
  readonly stderr: Readable | undefined;
  readonly terminal: PtyStream | undefined;
}

/** `fds`: stdin, stdout, stderr, each undefined when init has closed it; or the terminal's master end alone. */
export function openStreams(addon: Addon, fds: readonly (number | undefined)[], terminal: boolean): ProcessStreams {
  checkStreams(fds, terminal);
  const [first, second, third] = fds;
  if (terminal) {
    const stream = first === undefined ? undefined : new PtyStream(first, addon.duplicate(first));
    stream?.on("error", ignore);
    const ends = stream ?? closedSocket();
    return { stdin: ends, stdout: ends, stderr: undefined, terminal: stream };
  }
  return { stdin: writer(first), stdout: reader(second), stderr: reader(third), terminal: undefined };
}

/** Before any stream owns any descriptor, so that a refusal leaves them all to the caller. Init's word is not enough. */
function checkStreams(fds: readonly (number | undefined)[], terminal: boolean): void {
  for (const fd of fds) {
    if (fd === undefined) continue;
    if (terminal ? !isatty(fd) : !fstatSync(fd).isFIFO()) {
      throw boundaryUntrusted(`a process's ${terminal ? "terminal is none" : "stream is not a pipe"}`);
    }
  }
}

function ignore(): void {}

function closedSocket(): Socket {
  const socket = new Socket();
  socket.on("error", ignore);
  socket.destroy();
  return socket;
}

function reader(fd: number | undefined): Socket {
  if (fd === undefined) return closedSocket();
  const socket = new Socket({ fd, readable: true, writable: false });
  socket.on("error", ignore);
  return socket;
}

/** An agent that stopped reading makes writes fail with EPIPE; whoever cares listens to `error` too. */
function writer(fd: number | undefined): Socket {
  if (fd === undefined) return closedSocket();
  const socket = new Socket({ fd, readable: false, writable: true });
  socket.on("error", ignore);
  // A pipe knows no shutdown: only closing the descriptor ends it.
  socket.on("finish", () => socket.destroy());
  return socket;
}

/** What a process needs of its boundary. */
export interface ProcessHost {
  readonly addon: Addon;
  signal(handle: number, number: number, group: boolean): Promise<void>;
  /** Undefined for exec processes: closing our end is enough. */
  readonly closeMainStdin: (() => Promise<void>) | undefined;
  readonly acknowledgeExit: (() => Promise<void>) | undefined;
}

/** A process that init started for this host, or the main process of a re-attached boundary. */
export class LocalProcess implements SandboxProcess {
  readonly pid: number;
  readonly handle: number;
  readonly stdin: Duplex | Writable;
  readonly stdout: Readable;
  readonly stderr: Readable | undefined;
  readonly exit: Promise<ExitStatus>;
  readonly #host: ProcessHost;
  readonly #terminal: PtyStream | undefined;
  #settle: { resolve(status: ExitStatus): void; reject(error: Error): void } | undefined;

  constructor(host: ProcessHost, handle: number, pid: number, streams: ProcessStreams) {
    this.#host = host;
    this.handle = handle;
    this.pid = pid;
    this.stdin = streams.stdin;
    this.stdout = streams.stdout;
    this.stderr = streams.stderr;
    this.#terminal = streams.terminal;
    this.exit = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    // Who never asks for the status must not end the host by an unhandled rejection.
    this.exit.catch(ignore);
    if (host.closeMainStdin !== undefined && streams.terminal === undefined) {
      this.stdin.once("finish", () => void host.closeMainStdin?.().catch(ignore));
    }
  }

  /** Called by the boundary when init has reported the status. */
  exited(status: ExitStatus): void {
    this.#terminal?.release();
    this.#settle?.resolve(status);
    this.#settle = undefined;
  }

  /** Called by the boundary when it ends before the status is known. */
  lost(reason: string): void {
    this.#settle?.reject(boundaryLost(reason));
    this.#settle = undefined;
    this.#destroyStreams();
  }

  #destroyStreams(): void {
    this.#terminal?.release();
    for (const stream of new Set([this.stdin, this.stdout, this.stderr])) stream?.destroy();
  }

  signal(number: number, target: "process" | "group" = "process"): Promise<void> {
    return this.#host.signal(this.handle, number, target === "group");
  }

  /** Nothing happens on a process without a terminal, as with ssh. */
  async resize(rows: number, columns: number): Promise<void> {
    const fd = this.#terminal?.terminalFd;
    if (fd !== undefined) this.#host.addon.setWindowSize(fd, rows, columns);
  }

  async closeStdin(): Promise<void> {
    if (this.#terminal !== undefined) {
      // End of file on a terminal is what its user types: ^D.
      if (!this.stdin.destroyed) this.stdin.write("\u0004");
      return;
    }
    await new Promise<void>((resolve) => {
      if (this.stdin.destroyed || this.stdin.writableEnded) resolve();
      else {
        this.stdin.once("close", resolve);
        this.stdin.end();
      }
    });
    await this.#host.closeMainStdin?.();
  }

  async acknowledgeExit(): Promise<void> {
    await this.#host.acknowledgeExit?.();
  }
}

/** From the wire: 0 exited with a code, 1 ended by a signal. */
export function exitStatus(signaled: boolean, value: number): ExitStatus {
  return signaled ? { kind: "signaled", signal: value } : { kind: "exited", code: value };
}
