import { SYNTHETIC_TTL } from "../limits.ts";

/** The part of the DNS wire format (RFC 1035) that answering address questions needs. */

export const RCODE = { noError: 0, formatError: 1, serverFailure: 2, notImplemented: 4, refused: 5 } as const;
export const TYPE = { a: 1, aaaa: 28 } as const;

export interface Question {
  readonly id: number;
  /** Lower case, no trailing dot; `.` alone is the root. */
  readonly name: string;
  readonly type: number;
  readonly class: number;
  readonly recursionDesired: boolean;
  /** The question section as it came, so that the answer repeats its exact letters. */
  readonly section: Buffer;
  readonly edns: boolean;
}

export type ParsedQuery =
  | { readonly kind: "question"; readonly question: Question }
  /** Readable enough to be answered with an error. */
  | { readonly kind: "error"; readonly id: number; readonly rcode: number }
  /** Not a query: no answer at all, or two servers could talk to each other for ever. */
  | { readonly kind: "ignore" };

export function parseQuery(bytes: Buffer): ParsedQuery {
  if (bytes.length < 12 || bytes.length > 4096) return { kind: "ignore" };
  const id = bytes.readUInt16BE(0);
  const flags = bytes.readUInt16BE(2);
  if ((flags & 0x8000) !== 0) return { kind: "ignore" };
  if ((flags & 0x7800) !== 0) return { kind: "error", id, rcode: RCODE.notImplemented };
  if (bytes.readUInt16BE(4) !== 1 || bytes.readUInt16BE(6) !== 0)
    return { kind: "error", id, rcode: RCODE.formatError };
  const labels: string[] = [];
  let offset = 12;
  let length = 0;
  for (;;) {
    const size = bytes[offset];
    // A question has nothing before it to point to, so compression is malformed here.
    if (size === undefined || size > 63) return { kind: "error", id, rcode: RCODE.formatError };
    offset += 1;
    if (size === 0) break;
    length += size + 1;
    if (length > 254 || offset + size > bytes.length) return { kind: "error", id, rcode: RCODE.formatError };
    labels.push(bytes.toString("latin1", offset, offset + size).toLowerCase());
    offset += size;
  }
  if (offset + 4 > bytes.length) return { kind: "error", id, rcode: RCODE.formatError };
  const type = bytes.readUInt16BE(offset);
  const cls = bytes.readUInt16BE(offset + 2);
  offset += 4;
  // A label with a dot in it is not the name that its text form would be.
  const name = labels.some((label) => label.includes(".")) ? undefined : labels.length === 0 ? "." : labels.join(".");
  if (name === undefined) return { kind: "error", id, rcode: RCODE.formatError };
  const edns =
    bytes.readUInt16BE(10) > 0 &&
    bytes[offset] === 0 &&
    offset + 3 <= bytes.length &&
    bytes.readUInt16BE(offset + 1) === 41;
  return {
    kind: "question",
    question: {
      id,
      name,
      type,
      class: cls,
      recursionDesired: (flags & 0x0100) !== 0,
      section: bytes.subarray(12, offset),
      edns,
    },
  };
}

const OPT = Buffer.from([0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0]);

/** Answers with one address, or with none. */
export function formatAnswer(question: Question, rcode: number, address: Buffer | undefined): Buffer {
  const header = Buffer.alloc(12);
  header.writeUInt16BE(question.id, 0);
  // Response, authoritative, recursion available: resolvers in clients accept nothing less quietly.
  header.writeUInt16BE(0x8400 | (question.recursionDesired ? 0x0100 : 0) | 0x0080 | rcode, 2);
  header.writeUInt16BE(1, 4);
  header.writeUInt16BE(address === undefined ? 0 : 1, 6);
  header.writeUInt16BE(question.edns ? 1 : 0, 10);
  const parts = [header, question.section];
  if (address !== undefined) {
    const record = Buffer.alloc(12);
    record.writeUInt16BE(0xc00c, 0);
    record.writeUInt16BE(question.type, 2);
    record.writeUInt16BE(1, 4);
    record.writeUInt32BE(SYNTHETIC_TTL, 6);
    record.writeUInt16BE(address.length, 10);
    parts.push(record, address);
  }
  if (question.edns) parts.push(OPT);
  return Buffer.concat(parts);
}

export function formatError(id: number, rcode: number): Buffer {
  const header = Buffer.alloc(12);
  header.writeUInt16BE(id, 0);
  header.writeUInt16BE(0x8080 | rcode, 2);
  return header;
}
