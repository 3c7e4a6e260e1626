import type { ChildProcess } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { killGroup, spawnCommand } from "../../support/command.ts";
import { requiredProgram } from "../../support/programs.ts";
import { Caller, until } from "./caller.ts";
import { ConnectDriver } from "./connect-driver.ts";
import { OurClient, OurServer } from "./implementation.ts";
import type { ClientEvent, Listening, PeerConfig, TlsFiles } from "./protocol.ts";

/** Pairs of our server or client with a program written with somebody else's library. */

export const PEERS = ["grpc-js", "grpc-python", "grpc-go", "connect-es"] as const;
export type PeerName = (typeof PEERS)[number];

/** Who calls whom. */
export const DIRECTIONS = ["calls us", "is called by us"] as const;
export type Direction = (typeof DIRECTIONS)[number];

const folder = join(import.meta.dirname, "peers");
const MAX_SHOWN = 2_000;

function command(peer: PeerName): { argv: readonly string[]; env?: Record<string, string> } {
  switch (peer) {
    case "grpc-js":
    case "connect-es":
      return { argv: [process.execPath, join(folder, `${peer}.ts`)] };
    case "grpc-python": {
      const env = { PYTHONPATH: requiredProgram("grpcio"), PYTHONDONTWRITEBYTECODE: "1" };
      return { argv: ["/usr/bin/python3", join(folder, "python", "peer.py")], env };
    }
    case "grpc-go":
      return { argv: [requiredProgram("grpc-go")] };
  }
}

/** A running peer. */
export class PeerProcess implements AsyncDisposable {
  readonly child: ChildProcess;
  readonly #name: PeerName;
  #stderr = "";
  #listening: string[] = [];
  onEvent: (event: ClientEvent) => void = () => {};

  constructor(name: PeerName, config: PeerConfig) {
    this.#name = name;
    const { argv, env } = command(name);
    this.child = spawnCommand([...argv, JSON.stringify(config)], { env: { ...env, no_proxy: "*" } });
    this.child.stdin!.on("error", () => {});
    this.child.stderr!.on("data", (chunk: Buffer) => {
      this.#stderr = (this.#stderr + chunk.toString()).slice(-MAX_SHOWN);
    });
    createInterface({ input: this.child.stdout! }).on("line", (line) => {
      const event = JSON.parse(line) as ClientEvent | Listening;
      if ("listening" in event) this.#listening.push(event.listening);
      else this.onEvent(event);
    });
  }

  order(op: object): void {
    this.child.stdin!.write(`${JSON.stringify(op)}\n`);
  }

  /** The address of its `nth` listener, from 1. */
  async listening(nth = 1): Promise<string> {
    return until(`listener ${nth} of ${this.#name}`, () => {
      if (this.child.exitCode !== null) throw new Error(`${this.#name} ended: ${this.#stderr}`);
      return this.#listening[nth - 1];
    });
  }

  /** What it complained about. */
  get stderr(): string {
    return this.#stderr;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    killGroup(this.child, "SIGCONT");
    killGroup(this.child);
    if (this.child.exitCode === null && this.child.signalCode === null) {
      await new Promise((done) => this.child.once("exit", done));
    }
  }
}

export interface PairOptions {
  /** The server compresses its answers. */
  readonly gzip?: boolean;
  readonly tls?: { readonly server: TlsFiles; readonly client: TlsFiles };
  /** Path of a unix socket in place of a port. */
  readonly unix?: string;
  readonly keepaliveMs?: number;
  /** Our client gives up a server that has not answered a ping for this long. */
  readonly keepaliveTimeoutMs?: number;
}

/** A client and a server that are connected, one of them ours. */
export interface Pair extends AsyncDisposable {
  readonly caller: Caller;
  readonly process: PeerProcess;
  readonly ours: OurServer | OurClient;
  /** Bytes on the wire so far, seen from the server. */
  traffic(): { readonly requests: number; readonly answers: number };
  /** Calls under way go on; the next one finds another server. Resolves when that one listens; `drained` later. */
  drain(): Promise<{ readonly drained: Promise<void>; readonly connections: () => number }>;
}

const DRAIN_MS = 20_000;

export async function makePair(peer: PeerName, direction: Direction, options: PairOptions = {}): Promise<Pair> {
  return direction === "calls us" ? peerCallsUs(peer, options) : weCallPeer(peer, options);
}

async function peerCallsUs(peer: PeerName, options: PairOptions): Promise<Pair> {
  const { gzip = false, tls, unix, keepaliveMs } = options;
  const wanted = unix === undefined ? "127.0.0.1:0" : `unix:${unix}`;
  const serve = async (address: string): Promise<OurServer> => {
    const server = new OurServer({ address, gzip, ...(tls === undefined ? {} : { tls: tls.server }) });
    await server.listen();
    return server;
  };
  let server = await serve(wanted);
  const process = new PeerProcess(peer, {
    role: "client",
    address: server.address,
    ...(tls === undefined ? {} : { tls: tls.client }),
    ...(keepaliveMs === undefined ? {} : { keepaliveMs }),
  });
  const caller = new Caller((op) => process.order(op));
  process.onEvent = (event) => caller.take(event);
  const ours = server;
  return {
    caller,
    process,
    ours,
    traffic: () => {
      const { received, sent } = server.traffic();
      return { requests: received, answers: sent };
    },
    drain: async () => {
      const old = server;
      const { address } = old;
      const drained = old.drain(DRAIN_MS);
      // The same address: clients of the other libraries come back to it by themselves.
      server = await serve(address);
      return { drained, connections: () => server.connections };
    },
    [Symbol.asyncDispose]: async () => {
      await process[Symbol.asyncDispose]();
      await server[Symbol.asyncDispose]();
    },
  };
}

async function weCallPeer(peer: PeerName, options: PairOptions): Promise<Pair> {
  const { gzip = false, tls, unix, keepaliveMs, keepaliveTimeoutMs = 20_000 } = options;
  const process = new PeerProcess(peer, {
    role: "server",
    address: unix === undefined ? "127.0.0.1:0" : `unix:${unix}`,
    gzip,
    ...(tls === undefined ? {} : { tls: tls.server }),
  });
  let address = await process.listening();
  const client = new OurClient({
    address: () => address,
    ...(tls === undefined ? {} : { tls: tls.client }),
    ...(keepaliveMs === undefined ? {} : { keepalive: { intervalMs: keepaliveMs, timeoutMs: keepaliveTimeoutMs } }),
  });
  const driver = new ConnectDriver(
    (compress) => client.transport(compress),
    (event) => caller.take(event),
  );
  const caller: Caller = new Caller((op) => driver.handle(op));
  let listeners = 1;
  return {
    caller,
    process,
    ours: client,
    traffic: () => {
      const { received, sent } = client.traffic();
      return { requests: sent, answers: received };
    },
    drain: async () => {
      const before = client.connections;
      process.order({ op: "drain" });
      address = await process.listening(++listeners);
      return { drained: Promise.resolve(), connections: () => client.connections - before };
    },
    [Symbol.asyncDispose]: async () => {
      await client[Symbol.asyncDispose]();
      await process[Symbol.asyncDispose]();
    },
  };
}
