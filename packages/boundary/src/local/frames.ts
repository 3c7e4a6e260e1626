import type { IsolationLayer } from "../boundary.ts";
import { ByteReader } from "./bytes.ts";

/**
 * Frames of the local control protocol, the other half of native/init/frames.h.
 *
 * Head, little endian: payload length u32, type u16, number of descriptors u16, request id u32, flags u32. Descriptors
 * travel with the first byte of their frame. A message longer than a frame continues in the next one (flag 1, same type
 * and id). Revisions only add types and trailing fields: readers ignore what they do not know.
 */
export const PROTOCOL_REVISION = 1;
export const FRAME_HEAD_BYTES = 16;
export const FRAME_MAX_BYTES = 65_536;
export const FRAME_MAX_DESCRIPTORS = 16;
/** One message over several frames. */
export const MESSAGE_MAX_BYTES = 4 << 20;
export const FLAG_MORE = 1;

export const FRAME_HELLO = 1;
export const FRAME_SOCKETS = 2;
export const FRAME_CONFIRM = 3;
export const FRAME_MAIN = 4;
export const FRAME_SPAWN = 5;
export const FRAME_SIGNAL = 6;
export const FRAME_CLOSE_STDIN = 7;
export const FRAME_ACK_EXIT = 8;
export const FRAME_IDENTIFIER = 9;
export const FRAME_IDENTIFY = 10;
export const FRAME_SAVE = 11;
export const FRAME_LOAD = 12;
export const FRAME_FREEZE = 13;
export const FRAME_THAW = 14;
export const FRAME_RESUME = 15;
export const FRAME_TERMINATE = 16;
export const FRAME_ATTACH_MAIN = 17;
/** Launcher to gateway: init stands. */
export const FRAME_READY = 64;
/** Init to host, unasked: a process ended. */
export const FRAME_EXIT = 65;
/** Init to host, unasked: another host has attached; the connection ends now, the sandbox lives on. */
export const FRAME_REPLACED = 66;
export const FRAME_OK = 128;
export const FRAME_ERROR = 129;

export interface FrameHead {
  readonly size: number;
  readonly type: number;
  readonly descriptors: number;
  readonly id: number;
  readonly more: boolean;
}

/** Throws RangeError for a head that breaks a limit. */
export function readFrameHead(bytes: Uint8Array): FrameHead {
  const reader = new ByteReader(bytes);
  const size = reader.u32();
  const type = reader.u16();
  const descriptors = reader.u16();
  const id = reader.u32();
  const flags = reader.u32();
  if (size > FRAME_MAX_BYTES - FRAME_HEAD_BYTES) throw new RangeError(`frame of ${size} bytes`);
  if (descriptors > FRAME_MAX_DESCRIPTORS) throw new RangeError(`frame with ${descriptors} descriptors`);
  return { size, type, descriptors, id, more: (flags & FLAG_MORE) !== 0 };
}

/** One message as bytes, cut into frames; it carries no descriptor (hosts never send any). */
export function encodeMessage(type: number, id: number, payload: Uint8Array): Buffer {
  if (payload.length > MESSAGE_MAX_BYTES) throw new RangeError(`message of ${payload.length} bytes`);
  const room = FRAME_MAX_BYTES - FRAME_HEAD_BYTES;
  const frames = Math.max(1, Math.ceil(payload.length / room));
  const out = Buffer.alloc(payload.length + frames * FRAME_HEAD_BYTES);
  let at = 0;
  for (let i = 0; i < frames; i++) {
    const part = payload.subarray(i * room, (i + 1) * room);
    out.writeUInt32LE(part.length, at);
    out.writeUInt16LE(type, at + 4);
    out.writeUInt32LE(id, at + 8);
    out.writeUInt32LE(i + 1 < frames ? FLAG_MORE : 0, at + 12);
    out.set(part, at + FRAME_HEAD_BYTES);
    at += FRAME_HEAD_BYTES + part.length;
  }
  return out;
}

/** Isolation layers as init writes them: count u8, then name, enforced, detail. */
export function readLayers(reader: ByteReader): IsolationLayer[] {
  const layers: IsolationLayer[] = [];
  for (let left = reader.u8(); left > 0; left--) {
    layers.push({ name: reader.string(), enforced: reader.flag(), detail: reader.string() });
  }
  return layers;
}
