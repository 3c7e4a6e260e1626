import { closeSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import type { CaptureListener, CaptureSockets, SocketPair } from "@openshell/boundary";
import { formatAddress, parseAddress } from "./address.ts";
import type { NameTable } from "./dns/names.ts";
import type { FairShare } from "./fair-share.ts";
import type { Accepted, FlowDestination } from "./flow.ts";
import {
  MAX_WAITING_FLOWS,
  PROXY_PORT,
  RESUME_RETRY_MAX_MS,
  RESUME_RETRY_MS,
  SYNTHETIC_BASE,
  SYNTHETIC_SIZE,
} from "./limits.ts";
import type { SocketTools } from "./socket-tools.ts";

export interface CaptureDeps {
  readonly sockets: CaptureSockets;
  /** Without them there is no `nft` mode, and connections above the limits are taken and held instead of left in the kernel. */
  readonly tools: SocketTools | undefined;
  /** Port of the explicit proxy; another one in tests only. */
  readonly proxyPort?: number;
  readonly names: NameTable;
  /** Of the event loop: a flood of connections is taken slice by slice. */
  readonly share: FairShare;
  /** Milliseconds until one more connection may be taken; 0 takes it now; undefined: when one ends (`poke`). */
  readonly admit: () => number | undefined;
  readonly onFlow: (accepted: Accepted) => void;
  /** A connection was reset because too many wait already. */
  readonly onShed: () => void;
}

interface Endpoint {
  readonly address: string;
  readonly port: number;
}

/**
 * Takes connections from the sandbox's listening sockets and finds out where they wanted to go. Above the limits it
 * stops accepting, so that the kernel's backlog pushes back; the few that were accepted already wait, oldest first.
 */
export class Capture implements AsyncDisposable {
  readonly #deps: CaptureDeps;
  readonly #proxyPort: number;
  readonly #servers = new Map<CaptureListener, Server>();
  readonly #waiting: { readonly socket: Socket; readonly listener: CaptureListener }[] = [];
  #timer: NodeJS.Timeout | undefined;
  #retry: NodeJS.Timeout | undefined;
  #paused = false;
  /** The sandbox had its slice of the event loop; what waits is looked at in its turn. */
  #turn = false;
  #closed = false;

  constructor(deps: CaptureDeps) {
    this.#deps = deps;
    this.#proxyPort = deps.proxyPort ?? PROXY_PORT;
  }

  /** Listens. Where that failed (no descriptor was left, say) it may be called again: what listens already goes on. */
  async start(): Promise<void> {
    const missing = this.#deps.sockets.tcp.filter((listener) => !this.#servers.has(listener));
    const results = await Promise.allSettled(missing.map((listener) => this.#listen(listener)));
    for (const result of results) if (result.status === "rejected") throw result.reason;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  get paused(): boolean {
    return this.#paused;
  }

  /** A connection ended: one that waits may have its place. */
  poke(): void {
    if (this.#turn || this.#closed) return;
    while (this.#waiting.length > 0) {
      const wait = this.#admit();
      if (wait === 0) {
        const { socket, listener } = this.#waiting.shift()!;
        this.#take(socket, listener);
        if (this.#waiting.length === 0 || this.#deps.share.alone) continue;
        // One in each piece of work: what it took is counted in between.
        this.#later();
        return;
      }
      if (wait !== undefined) {
        this.#timer ??= setTimeout(() => {
          this.#timer = undefined;
          // A timer's work is on nobody's account; a turn is.
          if (this.#deps.share.alone) this.poke();
          else if (!this.#turn) this.#later();
        }, wait).unref();
      }
      return;
    }
    if (this.#paused && !this.#closed) this.#resume(RESUME_RETRY_MS);
  }

  /** Where connections can be left in the kernel a flood of them is taken with pauses. */
  #admit(): number | undefined {
    const { share, tools, admit } = this.#deps;
    const pause = tools?.duplicate === undefined ? 0 : share.admissionPause;
    if (pause > 0) return pause;
    const wait = admit();
    if (wait === 0) share.admitted();
    return wait;
  }

  #later(): void {
    this.#turn = true;
    this.#deps.share.later(() => {
      this.#turn = false;
      this.poke();
    });
  }

  /** Accepts again; where descriptors are short it tries until there are some, ever more rarely. */
  #resume(retryMs: number): void {
    this.#paused = false;
    const missing = this.#deps.sockets.tcp.filter((listener) => !this.#servers.has(listener));
    void Promise.allSettled(missing.map((listener) => this.#listen(listener))).then((results) => {
      if (this.#closed || this.#paused || results.every(({ status }) => status === "fulfilled")) return;
      this.#retry ??= setTimeout(() => {
        this.#retry = undefined;
        if (!this.#closed && !this.#paused) this.#resume(Math.min(retryMs * 2, RESUME_RETRY_MAX_MS));
      }, retryMs).unref();
    });
  }

  /** Leaves further connections to the kernel: the server closes its own duplicate of the listening descriptor. */
  #pause(): void {
    if (this.#paused || this.#deps.tools?.duplicate === undefined) return;
    this.#paused = true;
    for (const server of this.#servers.values()) server.close();
    this.#servers.clear();
  }

  async #listen(listener: CaptureListener): Promise<void> {
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: true, noDelay: true }, (socket) => {
      // Without a listener a reset while waiting would be thrown.
      socket.on("error", () => socket.destroy());
      // Node takes all connections that are there at once, a thousand perhaps; only closing the server ends that.
      const late = this.#deps.tools?.duplicate !== undefined && !this.#deps.share.ready();
      if (!late && this.#waiting.length === 0 && this.#admit() === 0) {
        this.#take(socket, listener);
        return;
      }
      if (this.#waiting.length >= MAX_WAITING_FLOWS) {
        socket.resetAndDestroy();
        this.#deps.onShed();
        return;
      }
      this.#waiting.push({ socket, listener });
      this.#pause();
      if (!late) this.poke();
      else if (!this.#turn) this.#later();
    });
    const fd = this.#deps.tools?.duplicate?.(listener.fd) ?? listener.fd;
    await new Promise<void>((resolve, reject) => {
      server.once("error", (error) => {
        this.#servers.delete(listener);
        reject(error);
      });
      this.#servers.set(listener, server);
      // Listening on a shared descriptor sets its backlog anew, to 511 unless told otherwise.
      server.listen({ fd, backlog: 4096 }, () => {
        server.removeAllListeners("error");
        server.on("error", () => undefined);
        resolve();
      });
    });
  }

  #take(socket: Socket, listener: CaptureListener): void {
    const accepted = this.#accepted(socket, listener);
    if (accepted === undefined) socket.resetAndDestroy();
    else this.#deps.onFlow(accepted);
  }

  /** Undefined when the connection is gone already or nobody can say where it wanted to go. */
  #accepted(socket: Socket, listener: CaptureListener): Accepted | undefined {
    const { remoteAddress, remotePort, localAddress, localPort } = socket;
    if (
      remoteAddress === undefined ||
      remotePort === undefined ||
      localAddress === undefined ||
      localPort === undefined
    ) {
      return undefined;
    }
    const direct = { address: canonical(localAddress), port: localPort };
    const wanted = this.#wanted(socket, listener, direct);
    const pair: SocketPair = {
      family: listener.family,
      local: { address: canonical(remoteAddress), port: remotePort },
      remote: wanted,
    };
    if (this.#isProxy(wanted)) return { socket, origin: "explicit", pair, destination: undefined };
    return { socket, origin: "transparent", pair, destination: this.#destination(wanted) };
  }

  /** A redirected connection was accepted at the proxy's own address, so the kernel is asked where it wanted to go. */
  #wanted(socket: Socket, listener: CaptureListener, direct: Endpoint): Endpoint {
    const fd = (socket as unknown as { _handle?: { fd: number } })._handle?.fd;
    if (this.#deps.sockets.mode !== "nft" || fd === undefined || this.#deps.tools === undefined) return direct;
    try {
      const { address, port } = this.#deps.tools.originalDestination(fd, listener.family);
      return { address: canonical(address), port };
    } catch {
      // Not redirected: it came to the proxy itself.
      return direct;
    }
  }

  #destination(wanted: Endpoint): FlowDestination {
    const { address, port } = wanted;
    const bytes = parseAddress(address);
    if (bytes?.length === 4) {
      const value = ((bytes[0]! << 24) | (bytes[1]! << 16) | (bytes[2]! << 8) | bytes[3]!) >>> 0;
      if (value >= SYNTHETIC_BASE && value < SYNTHETIC_BASE + SYNTHETIC_SIZE) {
        const host = this.#deps.names.nameOf(value);
        return host === undefined ? { known: false, address, port } : { known: true, host, port };
      }
    }
    return { known: true, host: address, port };
  }

  /** The explicit proxy is the loopback address alone: the same port of any other address is an ordinary destination. */
  #isProxy(destination: Endpoint): boolean {
    const { address, port } = destination;
    return port === this.#proxyPort && (address === "127.0.0.1" || address === "::1");
  }

  /** The listening descriptors are closed as well. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#retry);
    for (const { socket } of this.#waiting.splice(0)) socket.resetAndDestroy();
    await Promise.all(
      [...this.#servers.values()].map((server) => new Promise<void>((resolve) => server.close(() => resolve()))),
    );
    if (this.#deps.tools?.duplicate !== undefined) for (const { fd } of this.#deps.sockets.tcp) closeSync(fd);
  }
}

function canonical(address: string): string {
  const bytes = parseAddress(address);
  return bytes === undefined ? address : formatAddress(bytes);
}
