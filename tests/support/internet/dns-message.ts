/** DNS messages (RFC 1035 §4, RFC 3596, RFC 6891): as much as a test name server needs. */

export const TYPES = {
  A: 1,
  NS: 2,
  CNAME: 5,
  SOA: 6,
  PTR: 12,
  TXT: 16,
  AAAA: 28,
  OPT: 41,
  HTTPS: 65,
  ANY: 255,
} as const;
export const CODES = { NOERROR: 0, FORMERR: 1, SERVFAIL: 2, NXDOMAIN: 3, NOTIMP: 4, REFUSED: 5 } as const;
export type ResponseCode = keyof typeof CODES;

export interface Question {
  readonly id: number;
  readonly recursionDesired: boolean;
  /** Lower case, without the final dot. */
  readonly name: string;
  readonly type: number;
  /** The name, type and class as sent: repeated in the answer, with its letter case. */
  readonly raw: Buffer;
  /** The UDP size the client announced, absent without EDNS. */
  readonly ednsSize?: number;
}

export interface ResourceRecord {
  readonly name: string;
  readonly type: number;
  readonly ttl: number;
  readonly data: Buffer;
}

/** The question of a query with exactly one. Throws on anything malformed. */
export function parseQuery(message: Buffer): Question {
  const flags = message.readUInt16BE(2);
  if (flags & 0x8000 || message.readUInt16BE(4) !== 1) throw new Error("not a query with one question");
  const labels: string[] = [];
  let at = 12;
  for (let length = message.readUInt8(at); length !== 0; length = message.readUInt8(at)) {
    if (length > 63 || at + 1 + length >= message.length) throw new Error("bad label");
    labels.push(message.toString("latin1", at + 1, at + 1 + length));
    at += 1 + length;
  }
  const type = message.readUInt16BE(at + 1);
  const end = at + 5;
  const base = {
    id: message.readUInt16BE(0),
    recursionDesired: (flags & 0x0100) !== 0,
    name: labels.join(".").toLowerCase(),
    type,
    raw: message.subarray(12, end),
  };
  // An OPT record has the root as its name and its class is the size.
  const additional = message.readUInt16BE(10) > 0 && message.length >= end + 11 && message.readUInt8(end) === 0;
  if (additional && message.readUInt16BE(end + 1) === TYPES.OPT) {
    return { ...base, ednsSize: message.readUInt16BE(end + 3) };
  }
  return base;
}

export function encodeName(name: string): Buffer {
  const parts: Buffer[] = [];
  for (const label of name.split(".").filter(Boolean)) {
    const bytes = Buffer.from(label, "latin1");
    if (bytes.length > 63) throw new Error(`label too long: ${label}`);
    parts.push(Buffer.from([bytes.length]), bytes);
  }
  return Buffer.concat([...parts, Buffer.from([0])]);
}

export function encodeIpv4(address: string): Buffer {
  return Buffer.from(address.split(".").map(Number));
}

export function encodeIpv6(address: string): Buffer {
  const [head = "", tail] = address.split("::");
  const groups = (text: string) => text.split(":").filter(Boolean);
  const [left, right] = [groups(head), groups(tail ?? "")];
  const zeros = tail === undefined ? 0 : 8 - left.length - right.length;
  const all = [...left, ...Array<string>(zeros).fill("0"), ...right];
  if (all.length !== 8) throw new Error(`not an IPv6 address: ${address}`);
  const bytes = Buffer.alloc(16);
  for (const [index, group] of all.entries()) bytes.writeUInt16BE(Number.parseInt(group, 16), index * 2);
  return bytes;
}

export function encodeText(text: string): Buffer {
  const bytes = Buffer.from(text);
  const parts: Buffer[] = [];
  for (let at = 0; at === 0 || at < bytes.length; at += 255) {
    const part = bytes.subarray(at, at + 255);
    parts.push(Buffer.from([part.length]), part);
  }
  return Buffer.concat(parts);
}

/** An answer. Beyond `maxBytes` it is emptied and marked truncated, so that the client asks again over TCP. */
export function encodeAnswer(
  question: Question,
  code: ResponseCode,
  answers: readonly ResourceRecord[],
  maxBytes: number,
): Buffer {
  const build = (records: readonly ResourceRecord[], truncated: boolean): Buffer => {
    const header = Buffer.alloc(12);
    header.writeUInt16BE(question.id, 0);
    const recursion = (question.recursionDesired ? 0x0100 : 0) | 0x0080;
    header.writeUInt16BE(0x8400 | recursion | (truncated ? 0x0200 : 0) | CODES[code], 2);
    header.writeUInt16BE(1, 4);
    header.writeUInt16BE(records.length, 6);
    header.writeUInt16BE(question.ednsSize === undefined ? 0 : 1, 10);
    const parts = [header, question.raw];
    for (const record of records) {
      const fixed = Buffer.alloc(10);
      fixed.writeUInt16BE(record.type, 0);
      fixed.writeUInt16BE(1, 2);
      fixed.writeUInt32BE(record.ttl, 4);
      fixed.writeUInt16BE(record.data.length, 8);
      parts.push(encodeName(record.name), fixed, record.data);
    }
    if (question.ednsSize !== undefined) parts.push(Buffer.from([0, 0, TYPES.OPT, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]));
    return Buffer.concat(parts);
  };
  const whole = build(answers, false);
  return whole.length <= maxBytes ? whole : build([], true);
}
