import type { ConnectionAllowed } from "@openshell/policy/decision.ts";
import {
  type AddressBytes,
  type Cidr,
  contains,
  embeddedIpv4,
  overlaps,
  parseAddress,
  parseCidr,
  sameAddress,
} from "./address.ts";
import { isIpLiteral, normaliseHost } from "./host-name.ts";
import { CONTROL_PLANE_PORTS } from "./limits.ts";

/** Which upstream addresses may be dialled. The rules are the same for every way a request came in. */

export interface DestinationRules {
  readonly alwaysDenied: readonly DeniedEndpoint[];
  /** `name:port`: denied by name, whatever it resolves to. */
  readonly deniedNames: ReadonlySet<string>;
  /** Addresses of this machine, for denied endpoints that listen on all of them. */
  readonly ownAddresses: () => readonly string[];
}

export interface DeniedEndpoint {
  readonly address: AddressBytes;
  /** Undefined: every port. */
  readonly port: number | undefined;
}

export type DestinationDecision =
  | { readonly allowed: true }
  | {
      readonly allowed: false;
      /** In the reference's words, for `CONNECT h:p blocked: <kind>`. */
      readonly kind: string;
      readonly reason: string;
      readonly next: string;
    };

const LOOPBACK_AND_LINK = ["127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8", "::1/128", "::/128", "fe80::/10"].map(
  mustParse,
);

/** Never a unicast destination, so never dialled in any mode. */
const NOT_UNICAST = ["224.0.0.0/4", "240.0.0.0/4", "ff00::/8"].map(mustParse);

const INTERNAL = [
  "10.0.0.0/8",
  "172.16.0.0/12",
  "192.168.0.0/16",
  "100.64.0.0/10",
  "192.0.0.0/24",
  "192.0.2.0/24",
  "198.51.100.0/24",
  "203.0.113.0/24",
  "198.18.0.0/15",
  "192.88.99.0/24",
  "fc00::/7",
  "fec0::/10",
  "100::/64",
  "2001:db8::/32",
  "3fff::/20",
  "5f00::/16",
  "64:ff9b:1::/48",
].map(mustParse);

function mustParse(text: string): Cidr {
  return parseCidr(text)!;
}

/** Loopback, link-local, unspecified and non-unicast addresses, also where IPv6 carries them. Blocked in every mode. */
export function isAlwaysBlocked(address: AddressBytes): boolean {
  if ([...LOOPBACK_AND_LINK, ...NOT_UNICAST].some((network) => contains(network, address))) return true;
  const inner = embeddedIpv4(address);
  return inner !== undefined && isAlwaysBlocked(inner);
}

/** Anything that is not globally routable. */
export function isInternal(address: AddressBytes): boolean {
  if (isAlwaysBlocked(address) || INTERNAL.some((network) => contains(network, address))) return true;
  const inner = embeddedIpv4(address);
  return inner !== undefined && isInternal(inner);
}

/** `IP`, `IP:port` or `[IPv6]:port`; undefined for anything else. */
export function parseDeniedEndpoint(text: string): DeniedEndpoint | undefined {
  const plain = parseAddress(text);
  if (plain !== undefined) return { address: plain, port: undefined };
  const match = /^(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})$/.exec(text);
  const address = match === null ? undefined : parseAddress(match[1] ?? match[2]!);
  return address === undefined ? undefined : { address, port: Number(match![3]) };
}

/** `name:port` in the form in which names are compared; undefined for anything else. */
export function parseDeniedName(text: string): string | undefined {
  const match = /^([^:[\]\s]+):(\d{1,5})$/.exec(text);
  return match === null || isIpLiteral(match[1]!) ? undefined : `${normaliseHost(match[1]!)}:${Number(match[2])}`;
}

export interface Destination {
  readonly host: string;
  readonly port: number;
  /** Everything the name resolved to; one bad address refuses all. */
  readonly addresses: readonly AddressBytes[];
}

export function checkDestination(
  destination: Destination,
  grant: Pick<ConnectionAllowed, "allowedIps" | "exactHost">,
  rules: DestinationRules,
): DestinationDecision {
  const { host, port, addresses } = destination;
  if (addresses.length === 0) {
    return blocked("internal address", `DNS resolution failed for ${host}:${port}`, "Check the host name.");
  }
  const named = rules.deniedNames.has(`${host}:${port}`);
  if (named || addresses.some((address) => isDenied(address, port, rules))) {
    return blocked(
      "internal address",
      `${host}:${port} is an endpoint of OpenShell itself`,
      "Sandboxes can never reach the gateway, its resolvers or its middleware services; use another destination.",
    );
  }
  if (grant.allowedIps !== undefined) return checkAllowedIps(destination, grant.allowedIps);
  const declared = isIpLiteral(host) || grant.exactHost;
  if (!declared) {
    if (addresses.some(isInternal)) {
      return blocked(
        "internal address",
        "resolves to internal address",
        `List the network of ${host} in allowed_ips of the endpoint to reach private addresses.`,
      );
    }
    if (!addresses.some((address) => isOwn(address, rules))) return { allowed: true };
    return blocked(
      "internal address",
      "resolves to an address of this machine",
      `Services of this machine are reached only through an endpoint that names ${host} itself, or with allowed_ips.`,
    );
  }
  if (CONTROL_PLANE_PORTS.has(port)) return controlPlane("declared endpoint check failed", port);
  return addresses.some(isAlwaysBlocked)
    ? blocked(
        "declared endpoint check failed",
        "resolves to always-blocked address",
        "Loopback, link-local and unspecified addresses are never reachable; use a routable address of the service.",
      )
    : { allowed: true };
}

function checkAllowedIps(destination: Destination, allowedIps: readonly string[]): DestinationDecision {
  const networks: Cidr[] = [];
  for (const text of allowedIps) {
    const network = parseCidr(text.trim());
    if (network === undefined || LOOPBACK_AND_LINK.some((denied) => overlaps(denied, network))) {
      return blocked(
        "invalid allowed_ips in policy",
        `allowed_ips entry is not usable: ${text}`,
        "Use networks that contain no loopback, link-local or unspecified address.",
      );
    }
    networks.push(network);
  }
  if (CONTROL_PLANE_PORTS.has(destination.port)) return controlPlane("allowed_ips check failed", destination.port);
  for (const address of destination.addresses) {
    if (isAlwaysBlocked(address)) {
      return blocked(
        "allowed_ips check failed",
        "resolves to always-blocked address",
        "Loopback, link-local and unspecified addresses are never reachable.",
      );
    }
    if (!networks.some((network) => contains(network, address))) {
      return blocked(
        "allowed_ips check failed",
        `${destination.host} resolves to an address which is not in allowed_ips, connection rejected`,
        "Add the address of the service to allowed_ips of the endpoint.",
      );
    }
  }
  return { allowed: true };
}

function isDenied(address: AddressBytes, port: number, rules: DestinationRules): boolean {
  const inner = embeddedIpv4(address);
  if (inner !== undefined && isDenied(inner, port, rules)) return true;
  return rules.alwaysDenied.some((denied) => {
    if (denied.port !== undefined && denied.port !== port) return false;
    if (sameAddress(denied.address, address)) return true;
    // A listener on the unspecified address is reachable through every address of the machine.
    return denied.address.every((byte) => byte === 0) && isOwn(address, rules);
  });
}

/** Publicly routable or not: behind it are services that listen on this machine, among them such as trust their neighbours. */
function isOwn(address: AddressBytes, rules: DestinationRules): boolean {
  return rules.ownAddresses().some((own) => {
    const bytes = parseAddress(own);
    return bytes !== undefined && sameAddress(bytes, address);
  });
}

function controlPlane(kind: string, port: number): DestinationDecision {
  return blocked(
    kind,
    `port ${port} is a blocked control-plane port, connection rejected`,
    "Control-plane ports are never reachable from a sandbox.",
  );
}

function blocked(kind: string, reason: string, next: string): DestinationDecision {
  return { allowed: false, kind, reason, next };
}
