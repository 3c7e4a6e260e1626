import type { Http2Stream } from "node:http2";
import { COMPRESSED, encodeFrame, PREFIX_BYTES, writePrefix } from "./frame.ts";
import { WireLimits } from "./limits.ts";

/**
 * Sends messages on an HTTP/2 stream. What the connection has not taken yet is counted: beyond
 * {@link WireLimits.writeAheadBytes} whoever sends waits, so that a slow reader costs the sender no memory.
 */
export class MessageSink {
  readonly #stream: Http2Stream;
  #outstanding = 0;
  #waiter: PromiseWithResolvers<void> | undefined;
  #closed = false;

  constructor(stream: Http2Stream) {
    this.#stream = stream;
  }

  /** Sends a message. A promise: wait for it before the next one. A stream that has closed swallows the message. */
  write(message: Uint8Array, compressed = false): Promise<void> | undefined {
    const stream = this.#stream;
    if (this.#closed || stream.destroyed || stream.writableEnded) return undefined;
    const flags = compressed ? COMPRESSED : 0;
    const bytes = PREFIX_BYTES + message.length;
    this.#outstanding += bytes;
    const taken = (): void => {
      this.#outstanding -= bytes;
      if (this.#outstanding <= WireLimits.writeAheadBytes) this.#wake();
    };
    if (message.length <= WireLimits.copiedBytes) stream.write(encodeFrame(message, flags), taken);
    else {
      const prefix = Buffer.allocUnsafe(PREFIX_BYTES);
      writePrefix(prefix, message.length, flags);
      stream.cork();
      stream.write(prefix);
      stream.write(message, taken);
      stream.uncork();
    }
    return this.#outstanding > WireLimits.writeAheadBytes ? this.drained() : undefined;
  }

  /** Resolves when there is room again, or the stream has closed. */
  drained(): Promise<void> {
    if (this.#closed || this.#outstanding <= WireLimits.writeAheadBytes) return Promise.resolve();
    this.#waiter ??= Promise.withResolvers();
    return this.#waiter.promise;
  }

  /** The stream has ended: nobody waits for it any longer. */
  close(): void {
    this.#closed = true;
    this.#wake();
  }

  #wake(): void {
    this.#waiter?.resolve();
    this.#waiter = undefined;
  }
}
