/** Addresses and CIDR blocks as numbers; no name is ever resolved here. */

export interface IpAddress {
  readonly family: 4 | 6;
  readonly value: bigint;
}

export interface Cidr {
  readonly family: 4 | 6;
  /** First address of the block. */
  readonly base: bigint;
  readonly prefix: number;
}

/** Strict dotted quad (no octal, no short forms) or RFC 4291 text, without brackets and zone. */
export function parseIp(text: string): IpAddress | undefined {
  if (text.includes(":")) {
    const value = parseIpv6(text);
    return value === undefined ? undefined : { family: 6, value };
  }
  const value = parseIpv4(text);
  return value === undefined ? undefined : { family: 4, value };
}

function parseIpv4(text: string): bigint | undefined {
  if (!/^\d{1,3}(\.\d{1,3}){3}$/.test(text)) return undefined;
  let value = 0n;
  for (const part of text.split(".")) {
    if (Number(part) > 255 || (part.length > 1 && part.startsWith("0"))) return undefined;
    value = (value << 8n) | BigInt(part);
  }
  return value;
}

function parseIpv6(text: string): bigint | undefined {
  let source = text;
  const tail = /^(.*:)(\d{1,3}(?:\.\d{1,3}){3})$/.exec(source);
  if (tail !== null) {
    const v4 = parseIpv4(tail[2] as string);
    if (v4 === undefined) return undefined;
    source = `${tail[1]}${(v4 >> 16n).toString(16)}:${(v4 & 0xffffn).toString(16)}`;
  }
  const halves = source.split("::");
  if (halves.length > 2) return undefined;
  const groups = (half: string | undefined): string[] => (half === undefined || half === "" ? [] : half.split(":"));
  const head = groups(halves[0]);
  const rest = groups(halves[1]);
  const missing = 8 - head.length - rest.length;
  if (halves.length === 2 ? missing < 1 : missing !== 0) return undefined;
  let value = 0n;
  for (const group of [...head, ...new Array<string>(missing).fill("0"), ...rest]) {
    if (!/^[0-9a-fA-F]{1,4}$/.test(group)) return undefined;
    value = (value << 16n) | BigInt(Number.parseInt(group, 16));
  }
  return value;
}

/** RFC 5952 text of an address. */
export function formatIp(address: IpAddress): string {
  if (address.family === 4) {
    return [24n, 16n, 8n, 0n].map((shift) => ((address.value >> shift) & 0xffn).toString()).join(".");
  }
  const groups = Array.from({ length: 8 }, (_, i) => Number((address.value >> BigInt(112 - 16 * i)) & 0xffffn));
  let best = { start: -1, length: 1 };
  for (let start = 0; start < 8; start += 1) {
    let length = 0;
    while (start + length < 8 && groups[start + length] === 0) length += 1;
    if (length > best.length) best = { start, length };
  }
  const text = (part: number[]): string => part.map((group) => group.toString(16)).join(":");
  return best.start < 0
    ? text(groups)
    : `${text(groups.slice(0, best.start))}::${text(groups.slice(best.start + best.length))}`;
}

/** An address (a block of one) or `address/prefix`. */
export function parseCidr(text: string): Cidr | undefined {
  const slash = text.indexOf("/");
  const address = parseIp(slash < 0 ? text : text.slice(0, slash));
  if (address === undefined) return undefined;
  const bits = address.family === 4 ? 32 : 128;
  const digits = slash < 0 ? String(bits) : text.slice(slash + 1);
  if (!/^\d{1,3}$/.test(digits) || Number(digits) > bits) return undefined;
  const prefix = Number(digits);
  const shift = BigInt(bits - prefix);
  return { family: address.family, base: (address.value >> shift) << shift, prefix };
}

export function cidrContains(block: Cidr, address: IpAddress): boolean {
  if (block.family !== address.family) return false;
  const shift = BigInt((block.family === 4 ? 32 : 128) - block.prefix);
  return address.value >> shift === block.base >> shift;
}

export function cidrsOverlap(a: Cidr, b: Cidr): boolean {
  if (a.family !== b.family) return false;
  const [wide, narrow] = a.prefix <= b.prefix ? [a, b] : [b, a];
  return cidrContains(wide, { family: narrow.family, value: narrow.base });
}

/** Loopback, link-local and unspecified: no policy reaches them, in any spelling (sandbox destinations, RFC 6890). */
export const ALWAYS_BLOCKED: readonly Cidr[] = [
  "0.0.0.0/8",
  "127.0.0.0/8",
  "169.254.0.0/16",
  "::/128",
  "::1/128",
  "fe80::/10",
  "::ffff:0.0.0.0/104",
  "::ffff:127.0.0.0/104",
  "::ffff:169.254.0.0/112",
].map((text) => parseCidr(text) as Cidr);

const PLAIN_NAME = /^(?:[a-z0-9_-]+\.)*[a-z][a-z0-9-]*$/;

/** The canonical form of a host as the data path uses it: lower case, no trailing dot, addresses normalised without brackets. */
export function canonicalHost(host: string): string {
  // The usual case: a name in lower case whose last label starts with a letter is canonical as it is.
  if (PLAIN_NAME.test(host)) return host;
  const bare = host.startsWith("[") && host.endsWith("]") ? host.slice(1, -1) : host;
  const address = parseIp(bare);
  if (address !== undefined) return formatIp(address);
  const lower = bare.toLowerCase();
  return lower.endsWith(".") ? lower.slice(0, -1) : lower;
}
