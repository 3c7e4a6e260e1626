/** IP addresses as bytes: 4 for IPv4, 16 for IPv6; IPv4-mapped IPv6 addresses are always turned into IPv4. */
export type AddressBytes = Uint8Array;

/** Strict: dotted quad without leading zeros, or IPv6 as RFC 4291 writes it, without zone. Undefined for anything else. */
export function parseAddress(text: string): AddressBytes | undefined {
  if (text.includes(":")) {
    const bytes = parseIpv6(text);
    return bytes === undefined ? undefined : unmap(bytes);
  }
  return parseIpv4(text);
}

function parseIpv4(text: string): AddressBytes | undefined {
  const match = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/.exec(text);
  if (match === null) return undefined;
  const bytes = new Uint8Array(4);
  for (let i = 0; i < 4; i += 1) {
    const part = match[i + 1]!;
    const value = Number(part);
    if (value > 255 || (part.length > 1 && part.startsWith("0"))) return undefined;
    bytes[i] = value;
  }
  return bytes;
}

function parseIpv6(text: string): AddressBytes | undefined {
  if (text.length > 45 || text.includes(":::")) return undefined;
  const halves = text.split("::");
  if (halves.length > 2) return undefined;
  const head = groups(halves[0]!, halves.length === 1);
  const tail = halves.length === 2 ? groups(halves[1]!, true) : [];
  if (head === undefined || tail === undefined) return undefined;
  const missing = 8 - head.length - tail.length;
  if (halves.length === 2 ? missing < 1 : missing !== 0) return undefined;
  const all = [...head, ...new Array<number>(halves.length === 2 ? missing : 0).fill(0), ...tail];
  const bytes = new Uint8Array(16);
  for (let i = 0; i < 8; i += 1) {
    bytes[i * 2] = all[i]! >> 8;
    bytes[i * 2 + 1] = all[i]! & 0xff;
  }
  return bytes;
}

function groups(text: string, mayEndInIpv4: boolean): number[] | undefined {
  if (text === "") return [];
  const parts = text.split(":");
  const result: number[] = [];
  for (const [index, part] of parts.entries()) {
    if (mayEndInIpv4 && index === parts.length - 1 && part.includes(".")) {
      const v4 = parseIpv4(part);
      if (v4 === undefined) return undefined;
      result.push((v4[0]! << 8) | v4[1]!, (v4[2]! << 8) | v4[3]!);
    } else if (/^[0-9a-fA-F]{1,4}$/.test(part)) result.push(Number.parseInt(part, 16));
    else return undefined;
  }
  return result;
}

function unmap(bytes: AddressBytes): AddressBytes {
  for (let i = 0; i < 10; i += 1) if (bytes[i] !== 0) return bytes;
  return bytes[10] === 0xff && bytes[11] === 0xff ? bytes.slice(12) : bytes;
}

/** RFC 5952 form. */
export function formatAddress(bytes: AddressBytes): string {
  if (bytes.length === 4) return bytes.join(".");
  const parts: number[] = [];
  for (let i = 0; i < 16; i += 2) parts.push((bytes[i]! << 8) | bytes[i + 1]!);
  let start = -1;
  let length = 1;
  for (let i = 0; i < 8; i += 1) {
    let run = 0;
    while (i + run < 8 && parts[i + run] === 0) run += 1;
    if (run > length) {
      start = i;
      length = run;
    }
  }
  const hex = (from: number, to: number): string =>
    parts
      .slice(from, to)
      .map((part) => part.toString(16))
      .join(":");
  return start === -1 ? hex(0, 8) : `${hex(0, start)}::${hex(start + length, 8)}`;
}

export interface Cidr {
  readonly bytes: AddressBytes;
  readonly prefix: number;
}

/** `ADDRESS` or `ADDRESS/PREFIX`. A prefix of an IPv4-mapped network counts from the mapped part. */
export function parseCidr(text: string): Cidr | undefined {
  const slash = text.indexOf("/");
  const address = slash === -1 ? text : text.slice(0, slash);
  const bytes = parseAddress(address);
  if (bytes === undefined) return undefined;
  const bits = bytes.length * 8;
  if (slash === -1) return { bytes, prefix: bits };
  const suffix = text.slice(slash + 1);
  if (!/^\d{1,3}$/.test(suffix)) return undefined;
  const written = Number(suffix);
  const prefix = address.includes(":") && bits === 32 ? written - 96 : written;
  return prefix < 0 || prefix > bits ? undefined : { bytes, prefix };
}

export function contains(network: Cidr, address: AddressBytes): boolean {
  if (network.bytes.length !== address.length) return false;
  const whole = network.prefix >> 3;
  for (let i = 0; i < whole; i += 1) if (network.bytes[i] !== address[i]) return false;
  const rest = network.prefix & 7;
  return rest === 0 || ((network.bytes[whole]! ^ address[whole]!) & (0xff << (8 - rest)) & 0xff) === 0;
}

export function overlaps(a: Cidr, b: Cidr): boolean {
  return a.prefix <= b.prefix ? contains(a, b.bytes) : contains(b, a.bytes);
}

export function sameAddress(a: AddressBytes, b: AddressBytes): boolean {
  return a.length === b.length && a.every((byte, index) => byte === b[index]);
}

/**
 * The IPv4 address that a transition form carries, if it is one: a router on the way may turn it back (NAT64 RFC 6052
 * and 8215, 6to4 RFC 3056, Teredo RFC 4380, IPv4-compatible RFC 4291, ISATAP RFC 5214).
 */
export function embeddedIpv4(bytes: AddressBytes): AddressBytes | undefined {
  if (bytes.length !== 16) return undefined;
  const at = (index: number): number => (bytes[index * 2]! << 8) | bytes[index * 2 + 1]!;
  if (at(0) === 0x64 && at(1) === 0xff9b) return bytes.slice(12);
  if (at(0) === 0x2002) return bytes.slice(2, 6);
  if (at(0) === 0x2001 && at(1) === 0) return bytes.slice(12).map((byte) => byte ^ 0xff);
  if ((at(4) & 0xfdff) === 0 && at(5) === 0x5efe) return bytes.slice(12);
  const lowOnly = at(0) === 0 && at(1) === 0 && at(2) === 0 && at(3) === 0 && at(4) === 0 && at(5) === 0;
  return lowOnly && at(6) !== 0 ? bytes.slice(12) : undefined;
}
