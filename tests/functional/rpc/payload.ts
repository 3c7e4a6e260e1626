import { crc32 } from "node:zlib";

/**
 * What the echo service of the peers carries: a `google.protobuf.BytesValue` (field 1, bytes), so that programs without
 * generated code can write and read it with a handful of lines. An empty payload is an empty message.
 */

/** Bytes of a payload that both sides can make: byte i of message `seed`. Compresses well, on purpose. */
export function patterned(size: number, seed: number): Buffer {
  const bytes = Buffer.alloc(size);
  const period = Buffer.from(Array.from({ length: Math.min(size, 256) }, (_, i) => (seed * 31 + i * 7) & 255));
  if (size > 0) bytes.fill(period);
  return bytes;
}

/** A payload as the wire carries it. */
export function encodePayload(payload: Uint8Array): Buffer {
  if (payload.length === 0) return Buffer.alloc(0);
  const head = [0x0a];
  let length = payload.length;
  for (; length > 127; length >>>= 7) head.push((length & 127) | 128);
  head.push(length);
  return Buffer.concat([Buffer.from(head), payload]);
}

/** The payload of an encoded message. */
export function decodePayload(message: Uint8Array): Buffer {
  if (message.length === 0) return Buffer.alloc(0);
  let at = 1;
  while ((message[at]! & 128) !== 0) at++;
  return Buffer.from(message.buffer, message.byteOffset + at + 1, message.length - at - 1);
}

/** Payload size whose encoded message has exactly `bytes` bytes (beyond 2 MiB, where the length takes four bytes). */
export function payloadOfMessage(bytes: number): number {
  return bytes - 5;
}

/** As peers report a payload: its length and CRC-32. */
export function summary(payload: Uint8Array): { readonly length: number; readonly crc: number } {
  return { length: payload.length, crc: crc32(payload) };
}
