import { boundaryUntrusted } from "./boundary-error.ts";
import type { Addon } from "./native.ts";

const SOL_SOCKET = 1;
const SO_TYPE = 3;
const SO_PEERCRED = 17;
const SO_ACCEPTCONN = 30;
const SO_PROTOCOL = 38;
const SO_DOMAIN = 39;
const SO_COOKIE = 57;
const SO_NETNS_COOKIE = 71;
const SO_ORIGINAL_DST = 80;
const SOL_IP = 0;
const SOL_IPV6 = 41;
const AF_INET = 2;
const AF_INET6 = 10;
const SOCK_STREAM = 1;
const SOCK_DGRAM = 2;
const IPPROTO_TCP = 6;
const IPPROTO_UDP = 17;

function intOption(addon: Addon, fd: number, name: number): number {
  return addon.getOption(fd, SOL_SOCKET, name, 4).readInt32LE(0);
}

export interface ExpectedSocket {
  readonly transport: "tcp" | "udp";
  readonly family: 4 | 6;
  readonly netnsCookie: bigint;
}

/**
 * Refuses a descriptor that is not exactly the socket it is said to be: domain, type, protocol, listening state, network
 * namespace. Init runs beside the agent, so its word is not enough.
 */
export function checkSocket(addon: Addon, fd: number, expected: ExpectedSocket): void {
  const tcp = expected.transport === "tcp";
  const what = `its ${expected.transport} socket`;
  let facts: readonly [string, number | bigint, number | bigint][];
  try {
    facts = [
      ["domain", intOption(addon, fd, SO_DOMAIN), expected.family === 4 ? AF_INET : AF_INET6],
      ["type", intOption(addon, fd, SO_TYPE), tcp ? SOCK_STREAM : SOCK_DGRAM],
      ["protocol", intOption(addon, fd, SO_PROTOCOL), tcp ? IPPROTO_TCP : IPPROTO_UDP],
      ["listening state", intOption(addon, fd, SO_ACCEPTCONN), tcp ? 1 : 0],
      ["network namespace", netnsCookie(addon, fd), expected.netnsCookie],
    ];
  } catch (error) {
    throw boundaryUntrusted(`${what} is not a socket (${(error as Error).message})`);
  }
  for (const [name, is, wanted] of facts) {
    if (is !== wanted) throw boundaryUntrusted(`${what} has the wrong ${name}`);
  }
}

/** Names the network namespace of a socket for as long as the machine runs (Linux ≥ 5.14). */
export function netnsCookie(addon: Addon, fd: number): bigint {
  return addon.getOption(fd, SOL_SOCKET, SO_NETNS_COOKIE, 8).readBigUInt64LE(0);
}

/** Names a socket for as long as the machine runs. */
export function socketCookie(addon: Addon, fd: number): bigint {
  return addon.getOption(fd, SOL_SOCKET, SO_COOKIE, 8).readBigUInt64LE(0);
}

export interface PeerCredentials {
  /** 0 when the peer is outside this process's pid namespace. */
  readonly pid: number;
  readonly uid: number;
  readonly gid: number;
}

/** Who called connect(2) or, for the connecting side, listen(2). */
export function peerCredentials(addon: Addon, fd: number): PeerCredentials {
  const bytes = addon.getOption(fd, SOL_SOCKET, SO_PEERCRED, 12);
  return { pid: bytes.readInt32LE(0), uid: bytes.readUInt32LE(4), gid: bytes.readUInt32LE(8) };
}

export interface Destination {
  readonly address: string;
  readonly port: number;
}

/** Where a connection redirected by netfilter (capture mode `nft`) wanted to go; undefined when it was not redirected. */
export function originalDestination(addon: Addon, fd: number, family: 4 | 6): Destination | undefined {
  try {
    const v4 = family === 4;
    // struct sockaddr_in: family, port, address; struct sockaddr_in6: family, port, flow, address, scope.
    const bytes = addon.getOption(fd, v4 ? SOL_IP : SOL_IPV6, SO_ORIGINAL_DST, v4 ? 16 : 28);
    const port = bytes.readUInt16BE(2);
    return { address: v4 ? bytes.subarray(4, 8).join(".") : formatIpv6(bytes.subarray(8, 24)), port };
  } catch {
    return undefined;
  }
}

/** RFC 5952 text through Node's own formatter of URLs. */
export function formatIpv6(bytes: Uint8Array): string {
  const groups = Array.from({ length: 8 }, (_, i) =>
    ((bytes[2 * i] ?? 0) * 256 + (bytes[2 * i + 1] ?? 0)).toString(16),
  );
  return new URL(`http://[${groups.join(":")}]/`).hostname.slice(1, -1);
}
