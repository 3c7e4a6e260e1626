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

function handleOf(socket: Duplex): ReadHandle | null | undefined {
  return (socket as { _handle?: ReadHandle | null })._handle;
}
