import { isIP } from "node:net";
import type { Address } from "./config.ts";

/** `IP:port` or `[IPv6]:port`, port 0 to 65535; undefined for anything else. Names are not resolved: they could change. */
export function parseAddress(text: string): Address | undefined {
  const match = /^(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)):(\d{1,5})$/.exec(text);
  if (match === null) return undefined;
  const [, v6, v4, digits] = match;
  const port = Number(digits);
  const host = v6 ?? v4!;
  if (isIP(host) !== (v6 === undefined ? 4 : 6) || port > 65_535) return undefined;
  return { host, port };
}

/** What a certificate can be made out for: an IP address, or a host name, its first label perhaps `*` (RFC 6125, 6.4.3). */
export function isSubjectName(text: string): boolean {
  if (isIP(text) !== 0) return true;
  return text.length <= 253 && /^(?:\*\.)?(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(?:\.|$))+$/.test(text);
}

/** 127.0.0.0/8 and ::1. */
export function isLoopback(host: string): boolean {
  return host === "::1" || (isIP(host) === 4 && host.startsWith("127."));
}
