import type { Socket as UdpSocket } from "node:dgram";
import type { Duplex } from "node:stream";

interface ReadHandle {
  readStop?(): number;
  readStart?(): number;
}

/**
 * Makes the event loop blind for what comes in on a socket, at once. `pause` does not: a paused socket is read until its
 * buffer is full, and hundreds that get a byte each are as much work as if they were not paused. There is no public call
 * for it; a stream without a socket behind it is left as it is.
 */
export function holdReads(socket: Duplex): void {
  handleOf(socket)?.readStop?.();
}

/** Ends `holdReads`. Whether the socket is paused is another matter. */
export function releaseReads(socket: Duplex): void {
  if (!socket.destroyed) handleOf(socket)?.readStart?.();
}

interface ReceiveHandle {
  recvStop?(): number;
  recvStart?(): number;
}

/** The same for datagrams: further ones stay in the kernel's buffer, and are lost there once it is full. */
export function holdMessages(socket: UdpSocket): void {
  receiver(socket)?.recvStop?.();
}

/** Ends `holdMessages`. */
export function releaseMessages(socket: UdpSocket): void {
  receiver(socket)?.recvStart?.();
}

/** Of the state that a datagram socket keeps under a symbol of its own; `_handle` would warn of its use. Closed: none. */
function receiver(socket: UdpSocket): ReceiveHandle | null | undefined {
  const symbol = Object.getOwnPropertySymbols(socket).find(({ description }) => description === "state symbol");
  if (symbol === undefined) return undefined;
  return (socket as unknown as Record<symbol, { readonly handle?: ReceiveHandle | null }>)[symbol]?.handle;
}

function handleOf(socket: Duplex): ReadHandle | null | undefined {
  return (socket as { _handle?: ReadHandle | null })._handle;
}
