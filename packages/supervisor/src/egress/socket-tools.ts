import { formatAddress } from "./address.ts";

/** What only native code can tell or do about a socket. */
export interface SocketTools {
  /** Where a connection wanted to go before the kernel redirected it. Throws when the kernel does not know. */
  originalDestination(fd: number, family: 4 | 6): { readonly address: string; readonly port: number };
  /** A second descriptor of the same open file, close-on-exec. Without it accepting cannot pause. */
  readonly duplicate?: (fd: number) => number;
}

/** The functions of the addon that are used here. */
export interface SocketAddon {
  getOption(fd: number, level: number, name: number, size: number): Buffer;
  duplicate(fd: number): number;
}

const SOL_IP = 0;
const SOL_IPV6 = 41;
/** SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST have the same number (linux/netfilter_ipv4.h, netfilter_ipv6/ip6_tables.h). */
const SO_ORIGINAL_DST = 80;

export function createSocketTools(addon: SocketAddon): SocketTools {
  return {
    duplicate: (fd) => addon.duplicate(fd),
    originalDestination(fd, family) {
      // sockaddr_in: family, port, address. sockaddr_in6: family, port, flow label, address.
      const bytes =
        family === 4
          ? addon.getOption(fd, SOL_IP, SO_ORIGINAL_DST, 16)
          : addon.getOption(fd, SOL_IPV6, SO_ORIGINAL_DST, 28);
      const address = family === 4 ? bytes.subarray(4, 8) : bytes.subarray(8, 24);
      return { address: formatAddress(new Uint8Array(address)), port: bytes.readUInt16BE(2) };
    },
  };
}
