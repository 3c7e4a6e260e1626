import { formatAddress, parseAddress } from "./address.ts";

export interface Authority {
  /** Lower case, no trailing dot; an IP literal in canonical form, IPv6 without brackets. */
  readonly host: string;
  readonly port: number;
}

/**
 * One spelling for one host. Undefined for what is neither a DNS name nor a canonical IP literal: in particular the old
 * inet_aton spellings (`127.1`, `0x7f000001`, `2130706433`, `0177.0.0.1`), which some resolver would still understand.
 */
export function normaliseHost(text: string): string | undefined {
  if (text === "" || text.length > 255) return undefined;
  if (text.startsWith("[")) {
    if (!text.endsWith("]")) return undefined;
    const inner = text.slice(1, -1);
    const bytes = inner.includes(":") ? parseAddress(inner) : undefined;
    return bytes === undefined ? undefined : formatAddress(bytes);
  }
  if (text.includes(":")) {
    const bytes = parseAddress(text);
    return bytes === undefined ? undefined : formatAddress(bytes);
  }
  const name = (text.endsWith(".") ? text.slice(0, -1) : text).toLowerCase();
  if (name.length > 253) return undefined;
  const labels = name.split(".");
  for (const label of labels) if (!/^[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?$/.test(label)) return undefined;
  const last = labels.at(-1)!;
  if (/^(?:\d+|0x[0-9a-f]*)$/.test(last)) return parseAddress(name) === undefined ? undefined : name;
  return name;
}

export function isIpLiteral(host: string): boolean {
  return parseAddress(host) !== undefined;
}

/** `host:port`, `[v6]:port`, or without port when `defaultPort` is given. */
export function parseAuthority(text: string, defaultPort: number | undefined): Authority | undefined {
  let hostText: string;
  let portText: string | undefined;
  if (text.startsWith("[")) {
    const close = text.indexOf("]");
    if (close === -1) return undefined;
    hostText = text.slice(0, close + 1);
    const rest = text.slice(close + 1);
    if (rest !== "" && !rest.startsWith(":")) return undefined;
    portText = rest === "" ? undefined : rest.slice(1);
  } else {
    const colon = text.indexOf(":");
    if (colon !== text.lastIndexOf(":")) return undefined;
    hostText = colon === -1 ? text : text.slice(0, colon);
    portText = colon === -1 ? undefined : text.slice(colon + 1);
  }
  const host = normaliseHost(hostText);
  if (host === undefined) return undefined;
  if (portText === undefined || (portText === "" && defaultPort !== undefined)) {
    return defaultPort === undefined ? undefined : { host, port: defaultPort };
  }
  if (!/^\d{1,5}$/.test(portText)) return undefined;
  const port = Number(portText);
  return port < 1 || port > 65_535 ? undefined : { host, port };
}

/** As it stands in a Host field: IPv6 in brackets, the scheme's own port left out. */
export function formatAuthority(authority: Authority, defaultPort?: number): string {
  const host = authority.host.includes(":") ? `[${authority.host}]` : authority.host;
  return authority.port === defaultPort ? host : `${host}:${authority.port}`;
}
