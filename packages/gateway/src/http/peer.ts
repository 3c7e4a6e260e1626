import type { Socket } from "node:net";
import type { Caller } from "../auth/caller.ts";

/** Which door a connection came through. */
export type ListenerKind = "user" | "host" | "tcp";

/** What is known of the other end of a connection; the same for all its requests. */
export interface Peer {
  readonly listener: ListenerKind;
  /** Who it is by the connection alone; undefined when that proves nothing. */
  readonly caller: Caller | undefined;
  /** Why `caller` is undefined: the text of the UNAUTHENTICATED answer, and what to do. */
  readonly refusal: { readonly message: string; readonly next: string } | undefined;
}

/** True for a connection that proved nothing. A host proves itself in each call; its socket is the owner's alone. */
export function isStranger(peer: Peer): boolean {
  return peer.caller === undefined && peer.listener !== "host";
}

const peers = new WeakMap<object, Peer>();

/** Remembers what a connection proved. */
export function setPeer(socket: Socket, peer: Peer): void {
  peers.set(socket, peer);
}

/** What the connection under a request proved. Keys are raw sockets and requests, never the proxies that http2 hands out. */
export function peerOf(socketOrRequest: object): Peer | undefined {
  return peers.get(socketOrRequest);
}

/** Remembers the connection's peer for one of its requests. */
export function setRequestPeer(request: object, peer: Peer): void {
  peers.set(request, peer);
}
