import { ByteWriter } from "./bytes.ts";

/** Netlink message and attribute framing (linux/netlink.h). Sequence numbers are the caller's. */
export const NLM_F_REQUEST = 0x1;
export const NLM_F_ACK = 0x4;
export const NLM_F_EXCL = 0x200;
export const NLM_F_CREATE = 0x400;
export const NLM_F_APPEND = 0x800;

/** Attribute whose payload is attributes. */
const NLA_F_NESTED = 0x8000;

/** One message: header, fixed part written by `fixed`, then attributes written by `attributes`; padded to four bytes. */
export function message(
  writer: ByteWriter,
  header: { readonly type: number; readonly flags: number; readonly sequence: number },
  body: (writer: ByteWriter) => void,
): void {
  const start = writer.length;
  // nlmsg_pid 0: to the kernel, from whoever owns the socket.
  writer.u32(0).u16(header.type).u16(header.flags).u32(header.sequence).u32(0);
  body(writer);
  writer.patchU32(start, writer.length - start);
  writer.align(4);
}

export function attribute(writer: ByteWriter, type: number, payload: Uint8Array): void {
  writer
    .u16(4 + payload.length)
    .u16(type)
    .bytes(payload)
    .align(4);
}

export function attributeU32(writer: ByteWriter, type: number, value: number): void {
  writer.u16(8).u16(type).u32(value);
}

/** nf_tables takes its integers in network byte order. */
export function attributeU32be(writer: ByteWriter, type: number, value: number): void {
  writer.u16(8).u16(type).u32be(value);
}

/** Zero-terminated, as the kernel wants names. */
export function attributeString(writer: ByteWriter, type: number, text: string): void {
  attribute(writer, type, new TextEncoder().encode(`${text}\0`));
}

export function nested(writer: ByteWriter, type: number, body: (writer: ByteWriter) => void): void {
  const start = writer.length;
  writer.u16(0).u16(type | NLA_F_NESTED);
  body(writer);
  writer.patchU16(start, writer.length - start);
  writer.align(4);
}

/** Runs `write` against a fresh writer. */
export function compile(write: (writer: ByteWriter) => void): Uint8Array {
  const writer = new ByteWriter();
  write(writer);
  return writer.finish();
}

/** How many messages of a batch ask for an acknowledgement. */
export function acknowledgements(batch: Uint8Array): number {
  const view = new DataView(batch.buffer, batch.byteOffset, batch.byteLength);
  let count = 0;
  for (let at = 0; at + 16 <= batch.length; at += (Math.max(16, view.getUint32(at, true)) + 3) & ~3) {
    if ((view.getUint16(at + 6, true) & NLM_F_ACK) !== 0) count += 1;
  }
  return count;
}
