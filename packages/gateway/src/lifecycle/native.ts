import { createRequire } from "node:module";
import type { Socket } from "node:net";
import { join } from "node:path";
import type { PeerCredentials } from "../auth/identify.ts";

/** What the gateway itself uses of the native addon. */
export interface GatewayAddon {
  getOption(fd: number, level: number, name: number, size: number): Buffer;
  /** This process writes no core file, and processes of its own user cannot read or trace it. */
  harden(): void;
}

const SOL_SOCKET = 1;
const SO_PEERCRED = 17;
/** struct ucred: pid, uid, gid, 32 bits each (unix(7)). */
const UCRED_BYTES = 12;

/** The addon below the given folder; undefined when it is not there, which only a run from sources may have. */
export function loadGatewayAddon(dist: string | undefined): GatewayAddon | undefined {
  if (dist === undefined) return undefined;
  try {
    return createRequire(import.meta.url)(join(dist, "native", "openshell.node")) as GatewayAddon;
  } catch {
    return undefined;
  }
}

/** Who connected to a Unix socket, by the kernel's word at the time of connect(2). */
export function peerCredentials(addon: GatewayAddon | undefined, socket: Socket): PeerCredentials | undefined {
  const fd = (socket as unknown as { readonly _handle?: { readonly fd?: number } })._handle?.fd;
  if (addon === undefined || fd === undefined || fd < 0) return undefined;
  const credentials = addon.getOption(fd, SOL_SOCKET, SO_PEERCRED, UCRED_BYTES);
  return { pid: credentials.readInt32LE(0), uid: credentials.readUInt32LE(4) };
}
