import type { Socket } from "node:net";
import { networkInterfaces } from "node:os";
import { devPeer, hostPeer, tlsPeer, userSocketPeer } from "../auth/identify.ts";
import { type Address, formatAddress, type GatewayConfig } from "../config/config.ts";
import { ConnectionServer } from "../http/connection-server.ts";
import type { Dispatcher } from "../http/dispatcher.ts";
import { HttpLimits } from "../http/limits.ts";
import { type Listener, listenPreferring, listenTcp, listenTls, listenUnix } from "../http/listen.ts";
import type { ControlPlanePki } from "../pki/control-plane.ts";
import { type GatewayAddon, peerCredentials } from "./native.ts";

/** A listener with the connections that came through it. */
export class Door implements AsyncDisposable {
  readonly listener: Listener;
  readonly #server: ConnectionServer;
  readonly #drainMs: number;

  constructor(listener: Listener, server: ConnectionServer, drainMs: number = HttpLimits.drainMs) {
    this.listener = listener;
    this.#server = server;
    this.#drainMs = drainMs;
  }

  /** Accepts no more, lets calls under way finish for a moment, closes the rest. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.listener.close();
    await this.#server.drain(this.#drainMs);
  }
}

/** The users' socket: this uid and nobody else. */
export async function openUserDoor(
  path: string,
  dispatcher: Dispatcher,
  addon: GatewayAddon | undefined,
): Promise<Door> {
  const server = new ConnectionServer(dispatcher, { streams: HttpLimits.streams, ping: false });
  const uid = process.getuid!();
  const accept = (socket: Socket): void => server.accept(socket, userSocketPeer(uid, peerCredentials(addon, socket)));
  return new Door(await listenUnix(path, accept), server);
}

/** The hosts' socket. Hosts dial again whenever their streams end, so there is nothing to wait for. */
export async function openHostDoor(path: string, dispatcher: Dispatcher): Promise<Door> {
  const server = new ConnectionServer(dispatcher, { streams: HttpLimits.hostStreams, ping: false });
  return new Door(await listenUnix(path, (socket) => server.accept(socket, hostPeer)), server, 0);
}

/**
 * The TCP listener for SDKs and other machines. `earlier`: the port of the last start, the second choice, so that clients
 * survive a restart. `pki` is undefined where the configuration turned TLS off.
 */
export async function openTcpDoor(
  bind: GatewayConfig["bind"],
  earlier: number | undefined,
  dispatcher: Dispatcher,
  pki: ControlPlanePki | undefined,
): Promise<Door> {
  const server = new ConnectionServer(dispatcher, { streams: HttpLimits.streams, ping: true });
  const listener = await listenPreferring(bind, earlier, (address) => {
    if (pki === undefined) return listenTcp(address, (socket) => server.accept(socket, devPeer()));
    const material = { cert: pki.server.certificatePem, key: pki.server.privateKeyPem, ca: pki.caPem };
    return listenTls(address, material, (socket) => server.acceptTls(socket, tlsPeer(socket)));
  });
  return new Door(listener, server);
}

/** A plain HTTP listener for probes: no caller is known there, so nothing but open routes may be served. */
export async function openPlainDoor(address: Address, dispatcher: Dispatcher): Promise<Door> {
  const server = new ConnectionServer(dispatcher, { streams: HttpLimits.streams, ping: false });
  const peer = { listener: "tcp", caller: undefined, refusal: undefined } as const;
  const bind = { ...address, chosen: true };
  return new Door(
    await listenPreferring(bind, undefined, (wanted) => listenTcp(wanted, (socket) => server.accept(socket, peer))),
    server,
  );
}

/** Every `IP:port` at which a bound address can be reached on this machine: a wildcard is all of them. */
export function reachableAt(address: Address): readonly string[] {
  if (address.host !== "0.0.0.0" && address.host !== "::") return [formatAddress(address)];
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  return all.map(({ address: host }) => formatAddress({ host, port: address.port }));
}
