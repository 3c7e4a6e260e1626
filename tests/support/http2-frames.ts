import net from "node:net";
import tls from "node:tls";

/**
 * HTTP/2 by hand (RFC 9113, RFC 7541): frames and header blocks as no library would send them, and what came back, frame
 * by frame. Header blocks are literals without indexing, in clear; those that come back are not decoded.
 */

export const PREFACE: Buffer = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");

export const FRAME = {
  data: 0,
  headers: 1,
  priority: 2,
  reset: 3,
  settings: 4,
  pushPromise: 5,
  ping: 6,
  goaway: 7,
  windowUpdate: 8,
  continuation: 9,
} as const;

export const FLAG = { endStream: 1, ack: 1, endHeaders: 4, padded: 8, priority: 32 } as const;

/** Error codes (RFC 9113 §7). */
export const CODE = {
  noError: 0,
  protocolError: 1,
  internalError: 2,
  flowControlError: 3,
  streamClosed: 5,
  frameSizeError: 6,
  refusedStream: 7,
  cancel: 8,
  compressionError: 9,
  enhanceYourCalm: 11,
} as const;

export const SETTING = { initialWindowSize: 4, maxFrameSize: 5 } as const;

/** One frame, with any length that fits in 24 bits. */
export function frame(type: number, flags: number, stream: number, payload: Uint8Array = Buffer.alloc(0)): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head[3] = type;
  head[4] = flags;
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

function hpackInteger(value: number, prefixBits: number): Buffer {
  const max = (1 << prefixBits) - 1;
  if (value < max) return Buffer.from([value]);
  const bytes = [max];
  let rest = value - max;
  for (; rest > 127; rest >>>= 7) bytes.push((rest & 127) | 128);
  bytes.push(rest);
  return Buffer.from(bytes);
}

export type RawFields = readonly (readonly [name: string, value: string])[];

/** A header block; names and values are taken as Latin-1 and not looked at. */
export function headerBlock(fields: RawFields): Buffer {
  const text = (value: string) => {
    const bytes = Buffer.from(value, "latin1");
    return Buffer.concat([hpackInteger(bytes.length, 7), bytes]);
  };
  return Buffer.concat(fields.flatMap(([name, value]) => [Buffer.from([0]), text(name), text(value)]));
}

/** The fields of a gRPC request. */
export function grpcFields(path: string, more: RawFields = []): RawFields {
  return [
    [":method", "POST"],
    [":scheme", "http"],
    [":path", path],
    [":authority", "localhost"],
    ["content-type", "application/grpc"],
    ["te", "trailers"],
    ...more,
  ];
}

export function headers(stream: number, fields: RawFields, flags: number = FLAG.endHeaders): Buffer {
  return frame(FRAME.headers, flags, stream, headerBlock(fields));
}

export function data(stream: number, bytes: Uint8Array, flags = 0): Buffer {
  return frame(FRAME.data, flags, stream, bytes);
}

export function reset(stream: number, code: number = CODE.cancel): Buffer {
  const payload = Buffer.alloc(4);
  payload.writeUInt32BE(code);
  return frame(FRAME.reset, 0, stream, payload);
}

export function settings(values: readonly (readonly [id: number, value: number])[] = []): Buffer {
  const payload = Buffer.alloc(values.length * 6);
  for (const [index, [id, value]] of values.entries()) {
    payload.writeUInt16BE(id, index * 6);
    payload.writeUInt32BE(value, index * 6 + 2);
  }
  return frame(FRAME.settings, 0, 0, payload);
}

export function windowUpdate(stream: number, increment: number): Buffer {
  const payload = Buffer.alloc(4);
  payload.writeUInt32BE(increment);
  return frame(FRAME.windowUpdate, 0, stream, payload);
}

export function ping(flags = 0): Buffer {
  return frame(FRAME.ping, flags, 0, Buffer.from("attacker"));
}

/** A gRPC message: any flags byte, and any length in front of it. */
export function grpcMessage(bytes: Uint8Array, flags = 0, length: number = bytes.length): Buffer {
  const prefix = Buffer.alloc(5);
  prefix[0] = flags;
  prefix.writeUInt32BE(length, 1);
  return Buffer.concat([prefix, bytes]);
}

export interface ReceivedFrame {
  readonly type: number;
  readonly flags: number;
  readonly stream: number;
  readonly payload: Buffer;
}

/** Where a server listens. */
export type Place =
  | { readonly path: string }
  | { readonly host: string; readonly port: number; readonly tls?: tls.ConnectionOptions };

export interface RawOptions {
  /** Answers pings and settings as a decent client does. Default: true. */
  readonly polite?: boolean;
  /** Sent after the preface; `undefined` as first entry sends no preface at all. */
  readonly settings?: readonly (readonly [id: number, value: number])[];
  /** Sends nothing by itself. */
  readonly silent?: boolean;
}

/** One connection, driven frame by frame. */
export class RawHttp2 implements Disposable {
  readonly socket: net.Socket;
  /** Frames that came, but for DATA, which is counted only. */
  readonly frames: ReceivedFrame[] = [];
  dataBytes = 0;
  closed = false;
  readonly #polite: boolean;
  #rest: Buffer = Buffer.alloc(0);
  readonly #wakers = new Set<() => void>();

  private constructor(socket: net.Socket, options: RawOptions) {
    this.socket = socket;
    this.#polite = options.polite ?? true;
    socket.on("data", (chunk: Buffer) => this.#take(chunk));
    socket.on("error", () => {});
    socket.on("close", () => {
      this.closed = true;
      this.#wake();
    });
    if (!options.silent) socket.write(Buffer.concat([PREFACE, settings(options.settings)]));
  }

  static async open(place: Place, options: RawOptions = {}): Promise<RawHttp2> {
    const secure = "tls" in place && place.tls !== undefined;
    const socket = secure
      ? tls.connect({ ALPNProtocols: ["h2"], ...place.tls, host: place.host, port: place.port })
      : net.connect(place as net.NetConnectOpts);
    await new Promise<void>((done, fail) => {
      socket.once(secure ? "secureConnect" : "connect", done);
      socket.once("error", fail);
    });
    socket.removeAllListeners("error");
    return new RawHttp2(socket, options);
  }

  /** Resolves when the kernel has taken everything, or the connection is gone. */
  async write(...frames: readonly Buffer[]): Promise<void> {
    if (this.socket.destroyed || !this.socket.writable) return;
    if (this.socket.write(frames.length === 1 ? frames[0]! : Buffer.concat(frames))) return;
    await new Promise<void>((done) => {
      const over = () => {
        this.socket.off("drain", over).off("close", over);
        done();
      };
      this.socket.on("drain", over).on("close", over);
    });
  }

  /** Waits for a frame, or for the end of the connection (undefined). */
  async wait(wanted: (frame: ReceivedFrame) => boolean, timeoutMs = 10_000): Promise<ReceivedFrame | undefined> {
    const end = performance.now() + timeoutMs;
    for (;;) {
      const found = this.frames.find(wanted);
      if (found !== undefined || this.closed) return found;
      const left = end - performance.now();
      if (left <= 0) throw new Error(`no such frame; got ${this.frames.map(({ type }) => type).join(" ")}`);
      await new Promise<void>((done) => {
        const timer = setTimeout(done, left);
        this.#wakers.add(() => {
          clearTimeout(timer);
          done();
        });
      });
    }
  }

  /** Waits until the other side has ended the connection. */
  async ended(timeoutMs = 10_000): Promise<void> {
    await this.wait(() => false, timeoutMs);
  }

  /** The code of the GOAWAY that came, if one did. */
  get goaway(): number | undefined {
    return this.frames.find(({ type }) => type === FRAME.goaway)?.payload.readUInt32BE(4);
  }

  /**
   * Whether the connection ended with one of these codes. Its last frame is lost where the other side closed before it had
   * read everything: the kernel then throws away both directions.
   */
  endedWith(...codes: readonly number[]): boolean {
    const { goaway } = this;
    return goaway === undefined ? this.closed : codes.includes(goaway);
  }

  /** The code with which the stream was reset, if it was. */
  resetOf(stream: number): number | undefined {
    return this.frames.find((one) => one.type === FRAME.reset && one.stream === stream)?.payload.readUInt32BE(0);
  }

  /** True when the stream's response has ended. */
  endOf(stream: number): boolean {
    return this.frames.some((one) => one.stream === stream && (one.flags & FLAG.endStream) !== 0);
  }

  [Symbol.dispose](): void {
    this.socket.destroy();
  }

  #take(chunk: Buffer): void {
    let bytes = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
    for (;;) {
      if (bytes.length < 9) break;
      const length = bytes.readUIntBE(0, 3);
      if (bytes.length < 9 + length) break;
      const got: ReceivedFrame = {
        type: bytes[3]!,
        flags: bytes[4]!,
        stream: bytes.readUInt32BE(5) & 0x7fff_ffff,
        payload: bytes.subarray(9, 9 + length),
      };
      bytes = bytes.subarray(9 + length);
      this.#frame(got);
    }
    this.#rest = Buffer.from(bytes);
    this.#wake();
  }

  #frame(got: ReceivedFrame): void {
    if (got.type === FRAME.data) {
      this.dataBytes += got.payload.length;
      if ((got.flags & FLAG.endStream) === 0) return;
    }
    this.frames.push({ ...got, payload: Buffer.from(got.payload) });
    if (!this.#polite || this.socket.destroyed) return;
    if (got.type === FRAME.ping && (got.flags & FLAG.ack) === 0) {
      this.socket.write(frame(FRAME.ping, FLAG.ack, 0, got.payload));
    }
    if (got.type === FRAME.settings && (got.flags & FLAG.ack) === 0)
      this.socket.write(frame(FRAME.settings, FLAG.ack, 0));
  }

  #wake(): void {
    for (const wake of this.#wakers) wake();
    this.#wakers.clear();
  }
}
