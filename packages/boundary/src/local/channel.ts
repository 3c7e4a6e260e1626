import { closeSync } from "node:fs";
import { RuntimeError } from "@openshell/base";
import { BoundaryError, boundaryLost } from "./boundary-error.ts";
import { ByteReader } from "./bytes.ts";
import { errnoName } from "./errno.ts";
import {
  encodeMessage,
  FRAME_ERROR,
  FRAME_HEAD_BYTES,
  FRAME_MAX_DESCRIPTORS,
  FRAME_OK,
  type FrameHead,
  MESSAGE_MAX_BYTES,
  readFrameHead,
} from "./frames.ts";
import { type Addon, EVENT_CLOSED, EVENT_DATA, EVENT_WRITABLE } from "./native.ts";

/** A request without an answer after this long rejects; the connection stays. */
export const REQUEST_LIMIT_MS = 10_000;
/** Requests that may wait for an answer at once; more reject at once. */
export const REQUESTS_MAX = 4_096;
/** Bytes waiting for a peer that does not read; beyond, the channel closes. */
const SEND_QUEUE_MAX = 8 << 20;

export interface Message {
  readonly type: number;
  readonly payload: ByteReader;
  /** Owned by the receiver. */
  readonly fds: readonly number[];
}

export interface ChannelHandlers {
  /** A message that answers nothing. Runs in order with answers. */
  readonly onEvent: (message: Message) => void;
  /** Once, for whatever reason; pending requests have been rejected. */
  readonly onClose: (reason: string) => void;
}

interface Pending {
  readonly settle: (message: Message) => void;
  readonly reject: (error: Error) => void;
  readonly timer: NodeJS.Timeout;
}

export function closeDescriptors(fds: readonly number[]): void {
  for (const fd of fds) {
    try {
      closeSync(fd);
    } catch {
      // Already closed: nothing is owed.
    }
  }
}

/** Requests and answers with descriptors over one Unix socket. */
export class MessageChannel {
  readonly #addon: Addon;
  readonly #handle: object;
  readonly #handlers: ChannelHandlers;
  readonly #pending = new Map<number, Pending>();
  readonly #late = new Map<number, (message: Message) => void>();
  #closed = false;
  #nextId = 1;
  #input: Buffer[] = [];
  #inputSize = 0;
  #head: FrameHead | undefined;
  #parts: Buffer[] = [];
  #partsSize = 0;
  #descriptors: number[] = [];
  #messageDescriptors: number[] = [];
  #queue: Buffer[] = [];
  #queueOffset = 0;
  #queueSize = 0;

  /** Takes `fd` over. */
  constructor(addon: Addon, fd: number, handlers: ChannelHandlers) {
    this.#addon = addon;
    this.#handlers = handlers;
    this.#handle = addon.open(fd, (event, data, fds) => this.#onEvent(event, data, fds), false);
  }

  get closed(): boolean {
    return this.#closed;
  }

  /**
   * Sends a request. `decode` runs when the answer arrives, before any later message is looked at; what it throws
   * rejects. Rejects with `BoundaryError` when init refuses, `boundary_lost` when the connection ends first. `late` gets
   * an answer that comes after the limit, so that what it started can be undone; its descriptors are closed.
   */
  request<T>(
    type: number,
    payload: Uint8Array,
    decode: (message: Message) => T,
    limitMs: number = REQUEST_LIMIT_MS,
    late?: (message: Message) => void,
  ): Promise<T> {
    if (this.#closed) return Promise.reject(boundaryLost("it is closed"));
    if (this.#pending.size >= REQUESTS_MAX) {
      return Promise.reject(new RuntimeError("boundary_busy", "Too many requests wait for the sandbox's init"));
    }
    const id = this.#nextId;
    this.#nextId = id >= 0xffff_fffe ? 1 : id + 1;
    return new Promise<T>((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#pending.delete(id);
        if (late !== undefined) this.#late.set(id, late);
        reject(new RuntimeError("boundary_timeout", `The sandbox's init has not answered within ${limitMs} ms`));
      }, limitMs);
      const settle = (message: Message): void => {
        try {
          if (message.type === FRAME_ERROR) {
            const body = message.payload;
            throw new BoundaryError(body.string(), body.i32(), body.string());
          }
          resolve(decode(message));
        } catch (error) {
          closeDescriptors(message.fds);
          reject(error as Error);
        }
      };
      this.#pending.set(id, { settle, reject, timer });
      this.#send(encodeMessage(type, id, payload));
    });
  }

  close(reason: string): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#addon.close(this.#handle);
    closeDescriptors(this.#descriptors);
    closeDescriptors(this.#messageDescriptors);
    this.#queue = [];
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const { reject, timer } of pending) {
      clearTimeout(timer);
      reject(boundaryLost(reason));
    }
    this.#handlers.onClose(reason);
  }

  #send(bytes: Buffer): void {
    this.#queue.push(bytes);
    this.#queueSize += bytes.length;
    if (this.#queue.length === 1) this.#flush();
    if (this.#queueSize > SEND_QUEUE_MAX) this.close("the sandbox's init does not read");
  }

  #flush(): void {
    try {
      for (let first = this.#queue[0]; first !== undefined; first = this.#queue[0]) {
        const sent = this.#addon.send(this.#handle, first, this.#queueOffset);
        this.#queueOffset += sent;
        this.#queueSize -= sent;
        if (this.#queueOffset < first.length) {
          if (sent === 0) {
            this.#addon.watch(this.#handle, true);
            return;
          }
          continue;
        }
        this.#queue.shift();
        this.#queueOffset = 0;
      }
      this.#addon.watch(this.#handle, false);
    } catch (error) {
      this.close((error as Error).message);
    }
  }

  #onEvent(event: number, data: unknown, fds: unknown): void {
    if (this.#closed) return;
    if (event === EVENT_DATA) {
      this.#descriptors.push(...(fds as number[]));
      this.#input.push(data as Buffer);
      this.#inputSize += (data as Buffer).length;
      try {
        this.#parse();
      } catch (error) {
        this.close(`protocol error: ${(error as Error).message}`);
      }
    } else if (event === EVENT_WRITABLE) {
      this.#flush();
    } else if (event === EVENT_CLOSED) {
      this.close(data === 0 ? "closed by the sandbox's init" : describeErrno(data));
    }
  }

  #take(size: number): Buffer {
    const first = this.#input[0];
    if (first === undefined || size === 0) return Buffer.alloc(0);
    this.#inputSize -= size;
    if (first.length === size) {
      this.#input.shift();
      return first;
    }
    if (first.length < size) this.#input = [Buffer.concat(this.#input)];
    const whole = this.#input[0] as Buffer;
    const taken = whole.subarray(0, size);
    if (whole.length === size) this.#input.shift();
    else this.#input[0] = whole.subarray(size);
    return taken;
  }

  #parse(): void {
    while (!this.#closed) {
      if (this.#head === undefined) {
        if (this.#inputSize < FRAME_HEAD_BYTES) return;
        this.#head = readFrameHead(this.#take(FRAME_HEAD_BYTES));
        const count = this.#head.descriptors;
        if (this.#descriptors.length < count) throw new RangeError("descriptors are missing");
        this.#messageDescriptors.push(...this.#descriptors.splice(0, count));
        if (this.#messageDescriptors.length > FRAME_MAX_DESCRIPTORS) throw new RangeError("too many descriptors");
      }
      const head = this.#head;
      if (this.#inputSize < head.size) return;
      this.#parts.push(this.#take(head.size));
      this.#partsSize += head.size;
      this.#head = undefined;
      if (this.#partsSize > MESSAGE_MAX_BYTES) throw new RangeError("message too long");
      if (head.more) continue;
      const payload = this.#parts.length === 1 ? (this.#parts[0] as Buffer) : Buffer.concat(this.#parts);
      const fds = this.#messageDescriptors;
      this.#parts = [];
      this.#partsSize = 0;
      this.#messageDescriptors = [];
      this.#deliver(head, { type: head.type, payload: new ByteReader(payload), fds });
    }
  }

  #deliver(head: FrameHead, message: Message): void {
    if (head.type !== FRAME_OK && head.type !== FRAME_ERROR) {
      this.#handlers.onEvent(message);
      return;
    }
    const pending = this.#pending.get(head.id);
    // The answer to a request that was given up.
    if (pending === undefined) {
      closeDescriptors(message.fds);
      const late = this.#late.get(head.id);
      this.#late.delete(head.id);
      if (head.type === FRAME_OK) late?.(message);
      return;
    }
    this.#pending.delete(head.id);
    clearTimeout(pending.timer);
    pending.settle(message);
  }
}

/** Why the connection failed; EMFILE also when descriptors came that found no room. */
function describeErrno(errno: unknown): string {
  return typeof errno === "number" && errno < 0 ? errnoName(-errno) : `error ${String(errno)}`;
}
