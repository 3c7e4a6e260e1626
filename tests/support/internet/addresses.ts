/**
 * Every address of the test internet.
 *
 * They look like ordinary public addresses, because private and documentation ranges would only exercise the
 * exceptions of destination rules. 28.0.0.0/8 is allocated but carries no public service; 2d00::/8 is global unicast
 * space that IANA has not handed out. Nothing can be sent to their owners: the namespace has no link to any network.
 */

/** One family pair. */
export interface AddressPair {
  readonly ipv4: string;
  readonly ipv6: string;
}

/** The namespace in which gateway, CLI and clients run: where connections to test hosts come from. */
export const CLIENT: AddressPair = { ipv4: "28.55.0.1", ipv6: "2d00:5e57::1" };

/** The name server, UDP and TCP port 53. */
export const NAME_SERVER: AddressPair = { ipv4: "28.55.0.53", ipv6: "2d00:5e57::53" };

/** Addresses that no test host ever gets: to reach them there must be no route. */
export const UNASSIGNED: AddressPair = { ipv4: "28.99.0.1", ipv6: "2d00:99::1" };

/** Hosts of one test internet; bounds the addresses below. */
export const MAX_HOSTS = 250;

/** The default addresses of the `index`-th host (0-based). */
export function hostAddresses(index: number): AddressPair {
  if (index < 0 || index >= MAX_HOSTS) throw new Error(`a test internet has at most ${MAX_HOSTS} hosts`);
  return { ipv4: `28.55.1.${index + 1}`, ipv6: `2d00:5e57:1::${(index + 1).toString(16)}` };
}

/** The link-local address of the client namespace on every link: the hosts' IPv6 router. */
export const ROUTER_LINK_LOCAL = "fe80::1";
/** The link-local address of every host on its link. */
export const HOST_LINK_LOCAL = "fe80::2";

/** True for an IPv6 address or prefix. */
export function isIpv6(address: string): boolean {
  return address.includes(":");
}

/** `::ffff:1.2.3.4`, as dual-stack sockets report IPv4 peers, as plain IPv4. */
export function plainAddress(address: string | undefined): string {
  return (address ?? "").replace(/^::ffff:(?=\d+\.\d+\.\d+\.\d+$)/i, "");
}

/** An address with a full-length prefix unless it has one. */
export function withPrefix(address: string): string {
  if (address.includes("/")) return address;
  return `${address}/${isIpv6(address) ? 128 : 32}`;
}
