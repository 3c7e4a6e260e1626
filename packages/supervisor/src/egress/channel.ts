import { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { TLSSocket } from "node:tls";
import { RuntimeError, systemCode } from "@openshell/base";
import type { FairShare } from "./fair-share.ts";
import { holdReads, releaseReads } from "./hold-reads.ts";
import { LINGER_BYTES, LINGER_MS, READ_AHEAD_BYTES, WRITE_AHEAD_BYTES } from "./limits.ts";

/** Counts what is read and not yet passed on, over all connections of a sandbox. Readers stop above the limit and go on below seven eighths of it. */
export class BufferBudget {
  readonly limit: number;
  #used = 0;
  readonly #waiting = new Set<() => void>();
  readonly #onExhausted: () => void;

  /** `onExhausted`: there is no room left; reading stops. */
  constructor(limit: number, onExhausted: () => void = () => {}) {
    this.limit = limit;
    this.#onExhausted = onExhausted;
  }

  get used(): number {
    return this.#used;
  }

  get exhausted(): boolean {
    return this.#used >= this.limit;
  }

  charge(bytes: number): void {
    const before = this.#used;
    this.#used += bytes;
    if (before < this.limit && this.exhausted) this.#onExhausted();
  }

  release(bytes: number): void {
    this.#used -= bytes;
    if (this.#waiting.size === 0 || this.#used > this.limit * 0.875) return;
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const resume of waiting) resume();
  }

  /** Calls back once there is room again. */
  whenFree(resume: () => void): void {
    this.#waiting.add(resume);
  }
}

/** Wakes channels whose wait is over. One timer for a sandbox, and none while nothing waits. */
export class Deadlines {
  readonly #channels = new Set<Channel>();
  readonly #now: () => number;
  #timer: NodeJS.Timeout | undefined;

  constructor(now: () => number) {
    this.#now = now;
  }

  now(): number {
    return this.#now();
  }

  add(channel: Channel): void {
    this.#channels.add(channel);
    this.#timer ??= setInterval(() => this.sweep(), 250).unref();
  }

  remove(channel: Channel): void {
    this.#channels.delete(channel);
    if (this.#channels.size > 0 || this.#timer === undefined) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  sweep(): void {
    const now = this.#now();
    for (const channel of this.#channels) channel.expire(now);
  }
}

interface Waiter {
  readonly resolve: (chunk: Buffer | null) => void;
  readonly reject: (error: Error) => void;
}

interface DrainWaiter {
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/**
 * One end of a byte connection, read by pulling: bytes are taken from the kernel only as fast as `read` is called (plus
 * a bounded read-ahead), and `write` tells when the other side must be waited for. Every wait has a limit.
 */
export class Channel {
  readonly socket: Duplex;
  readonly #budget: BufferBudget;
  readonly #deadlines: Deadlines;
  readonly #share: FairShare;
  readonly #queue: Buffer[] = [];
  /** What came in waits for the sandbox's turn. */
  #deferred = false;
  /** Nothing is read until a pause is over. */
  #resting = false;
  #queued = 0;
  #paused = false;
  #ended = false;
  #failure: Error | undefined;
  #reader: Waiter | undefined;
  #drain: DrainWaiter | undefined;
  #unsent = 0;
  #readDeadline = 0;
  #writeDeadline = 0;
  #closed = false;
  #detached = false;
  #onClose: (() => void)[] = [];
  /** Called instead of queueing when bytes or the end come while nobody may send any (idle pooled connections). */
  unsolicited: (() => void) | undefined;
  /** `now()` time after which the connection ends whatever it does; 0 is never. */
  totalDeadline = 0;
  bytesRead = 0;
  bytesWritten = 0;
  /** When the last byte came in; `Deadlines.now` time. */
  lastRead: number;

  constructor(socket: Duplex, budget: BufferBudget, deadlines: Deadlines, share: FairShare) {
    this.socket = socket;
    this.#budget = budget;
    this.#deadlines = deadlines;
    this.#share = share;
    this.lastRead = deadlines.now();
    socket.on("data", this.#onData);
    socket.on("end", this.#onEnd);
    socket.on("error", this.#onError);
    socket.on("close", this.#onSocketClose);
    socket.on("drain", this.#onDrain);
    deadlines.add(this);
    if (socket.isPaused()) socket.resume();
  }

  now(): number {
    return this.#deadlines.now();
  }

  get closed(): boolean {
    return this.#closed || this.socket.destroyed;
  }

  /** Bytes that were read and not taken yet. */
  get buffered(): number {
    return this.#queued;
  }

  get ended(): boolean {
    return this.#ended;
  }

  onClose(callback: () => void): void {
    if (this.#closed) callback();
    else this.#onClose.push(callback);
  }

  /** The next bytes, `null` at the end. Rejects when the connection breaks or `limitMs` pass without any. */
  read(limitMs: number): Buffer | null | Promise<Buffer | null> {
    const first = this.#queue.shift();
    if (first !== undefined) {
      this.#take(first.length);
      return first;
    }
    if (this.#failure !== undefined) return Promise.reject(this.#failure);
    if (this.#ended) return null;
    this.#readDeadline = this.#deadlines.now() + limitMs;
    return new Promise<Buffer | null>((resolve, reject) => {
      this.#reader = { resolve, reject };
      this.#resume();
    });
  }

  /** Waits at most `limitMs` for bytes or the end, taking nothing. False when neither came. */
  readable(limitMs: number): Promise<boolean> {
    if (this.#queue.length > 0 || this.#ended || this.#failure !== undefined) return Promise.resolve(true);
    return new Promise((resolve) => {
      const settle = (came: boolean): void => {
        clearTimeout(timer);
        this.#reader = undefined;
        resolve(came);
      };
      const timer = setTimeout(() => settle(false), limitMs);
      this.#readDeadline = Number.POSITIVE_INFINITY;
      this.#reader = {
        resolve: (chunk) => {
          settle(true);
          if (chunk !== null) this.unread(chunk);
        },
        reject: () => settle(true),
      };
      this.#resume();
    });
  }

  /** Reads nothing for so long, not even ahead: what comes meanwhile stays in the kernel and costs nothing. */
  async rest(milliseconds: number): Promise<void> {
    if (this.closed) return;
    this.#resting = true;
    holdReads(this.socket);
    await sleep(milliseconds);
    this.#resting = false;
    if (!this.#deferred && !this.#detached) releaseReads(this.socket);
  }

  /** Puts bytes back in front. */
  unread(chunk: Buffer): void {
    if (chunk.length === 0) return;
    this.#queue.unshift(chunk);
    this.#queued += chunk.length;
    this.#budget.charge(chunk.length);
  }

  /** Undefined when the bytes were taken at once, else resolves when there is room again. */
  write(bytes: Buffer | string, limitMs: number, encoding?: BufferEncoding): Promise<void> | undefined {
    if (this.#failure !== undefined) return Promise.reject(this.#failure);
    if (this.closed || this.socket.writableEnded) return Promise.reject(closedError());
    this.bytesWritten += bytes.length;
    const accepted =
      typeof bytes === "string" ? this.socket.write(bytes, encoding ?? "utf8") : this.socket.write(bytes);
    if (accepted) return undefined;
    // Not accepted promises a drain event: it gives the bytes back, and ends the wait below.
    this.#charge();
    if (this.#unsent < WRITE_AHEAD_BYTES && !this.#budget.exhausted) return undefined;
    this.#writeDeadline = this.#deadlines.now() + limitMs;
    const previous = this.#drain;
    return new Promise<void>((resolve, reject) => {
      this.#drain =
        previous === undefined
          ? { resolve, reject }
          : {
              resolve: () => {
                previous.resolve();
                resolve();
              },
              reject: (error) => {
                previous.reject(error);
                reject(error);
              },
            };
    });
  }

  cork(): void {
    this.socket.cork();
  }

  uncork(): void {
    this.socket.uncork();
  }

  /** Sends the end; the other direction stays open. */
  end(): void {
    if (!this.closed && !this.socket.writableEnded) this.socket.end();
  }

  /** True once `end` was called or the write side is gone. */
  get finished(): boolean {
    return this.closed || this.socket.writableEnded;
  }

  /** Ends at once. `reset` makes the peer see a broken connection, not an orderly end. */
  destroy(reset = false): void {
    if (this.socket.destroyed) return;
    if (reset) resetSocket(this.socket);
    else this.socket.destroy();
  }

  /** Sends the end and closes as soon as everything before it was handed to the kernel. */
  finish(): void {
    if (this.closed) return;
    if (this.socket.writableFinished) {
      this.destroy();
      return;
    }
    this.socket.once("finish", () => this.destroy());
    this.end();
    // A peer that takes nothing must not hold the connection.
    setTimeout(() => this.destroy(), LINGER_MS).unref();
  }

  /** Sends the end after a final answer and reads what the client still sends, so that the answer is not lost to a reset. */
  async linger(): Promise<void> {
    this.end();
    // Whoever was still reading (a body nobody wants any more) makes room.
    const reader = this.#reader;
    this.#reader = undefined;
    reader?.reject(closedError());
    let left = LINGER_BYTES;
    const until = this.#deadlines.now() + LINGER_MS;
    try {
      while (left > 0) {
        const wait = until - this.#deadlines.now();
        if (wait <= 0) break;
        const chunk = await this.read(wait);
        if (chunk === null) break;
        left -= chunk.length;
      }
    } catch {
      // Broken already: nothing to wait for.
    }
    if (this.socket.writableFinished || this.closed) this.destroy();
    else {
      this.socket.once("finish", () => this.destroy());
      setTimeout(() => this.destroy(), LINGER_MS).unref();
    }
  }

  /** Takes the socket out, with unread bytes put back into it: the next owner (TLS, a tunnel) sees the stream whole. */
  detach(): Duplex {
    this.#detached = true;
    if (this.#deferred && !this.#ended) releaseReads(this.socket);
    this.#deferred = false;
    this.socket.pause();
    this.#unhook();
    for (let chunk = this.#queue.pop(); chunk !== undefined; chunk = this.#queue.pop()) {
      this.#take(chunk.length);
      this.socket.unshift(chunk);
    }
    return this.socket;
  }

  /** Fails a wait whose limit has passed. */
  expire(now: number): void {
    if (this.totalDeadline !== 0 && now > this.totalDeadline) this.#fail(idleError("total time"));
    else if (this.#reader !== undefined && now > this.#readDeadline) this.#fail(idleError("read"));
    else if (this.#drain !== undefined && now > this.#writeDeadline) this.#fail(idleError("write"));
  }

  /** Breaks the connection with a reason that waiting readers and writers get. */
  abort(error: Error): void {
    this.#fail(error);
  }

  readonly #onData = (chunk: Buffer): void => {
    this.bytesRead += chunk.length;
    this.lastRead = this.#deadlines.now();
    if (this.unsolicited !== undefined) {
      this.unsolicited();
      return;
    }
    const reader = this.#reader;
    const mine = !this.#deferred && this.#share.ready();
    if (reader !== undefined && mine) {
      this.#reader = undefined;
      reader.resolve(chunk);
      return;
    }
    this.#queue.push(chunk);
    this.#queued += chunk.length;
    this.#budget.charge(chunk.length);
    if (!mine) this.#defer();
    if (this.#queued >= READ_AHEAD_BYTES || this.#budget.exhausted) {
      this.#paused = true;
      this.socket.pause();
    }
  };

  /** These bytes came when others have the event loop; no more are read until it is the sandbox's turn. */
  #defer(): void {
    if (this.#deferred) return;
    this.#deferred = true;
    holdReads(this.socket);
    this.#share.later(() => this.#deliver());
  }

  #deliver(): void {
    if (!this.#deferred) return;
    this.#deferred = false;
    if (!this.#ended && !this.#resting) releaseReads(this.socket);
    const reader = this.#reader;
    if (reader === undefined) return;
    const chunk = this.#queue.shift();
    if (chunk === undefined && !this.#ended) return;
    this.#reader = undefined;
    if (chunk !== undefined) this.#take(chunk.length);
    reader.resolve(chunk ?? null);
  }

  readonly #onEnd = (): void => {
    this.#ended = true;
    this.unsolicited?.();
    const reader = this.#reader;
    // Hundreds that end at once are as much work as hundreds that say something.
    if (reader === undefined || this.#deferred) return;
    if (this.#share.ready()) {
      this.#reader = undefined;
      reader.resolve(null);
    } else this.#defer();
  };

  readonly #onError = (error: Error): void => {
    this.#failure ??= new RuntimeError("connection_broken", `The connection broke: ${systemCode(error) ?? "error"}`, {
      cause: error,
    });
  };

  readonly #onSocketClose = (): void => {
    this.#closed = true;
    this.#unhook();
    this.#deliver();
    const failure = this.#failure ?? closedError();
    const reader = this.#reader;
    this.#reader = undefined;
    if (reader !== undefined) {
      if (this.#ended) reader.resolve(null);
      else reader.reject(failure);
    }
    if (!this.#ended) this.#failure ??= failure;
    const drain = this.#drain;
    this.#drain = undefined;
    drain?.reject(failure);
    this.#settle();
    this.#take(this.#queued);
    this.#queue.length = 0;
    const callbacks = this.#onClose;
    this.#onClose = [];
    for (const callback of callbacks) callback();
  };

  readonly #onDrain = (): void => {
    this.#settle();
    const drain = this.#drain;
    this.#drain = undefined;
    drain?.resolve();
  };

  #fail(error: Error): void {
    this.#failure ??= error;
    const reader = this.#reader;
    this.#reader = undefined;
    const drain = this.#drain;
    this.#drain = undefined;
    this.destroy(true);
    reader?.reject(error);
    drain?.reject(error);
  }

  #charge(): void {
    const unsent = this.socket.writableLength;
    this.#budget.charge(unsent - this.#unsent);
    this.#unsent = unsent;
  }

  #settle(): void {
    if (this.#unsent === 0) return;
    const unsent = this.#unsent;
    this.#unsent = 0;
    this.#budget.release(unsent);
  }

  #take(bytes: number): void {
    if (bytes === 0) return;
    this.#queued -= bytes;
    this.#budget.release(bytes);
  }

  #resume(): void {
    if (!this.#paused) return;
    if (this.#budget.exhausted) {
      this.#budget.whenFree(() => this.#resume());
      return;
    }
    this.#paused = false;
    this.socket.resume();
  }

  #unhook(): void {
    this.#deadlines.remove(this);
    const { socket } = this;
    socket.off("data", this.#onData);
    socket.off("end", this.#onEnd);
    socket.off("close", this.#onSocketClose);
    socket.off("drain", this.#onDrain);
    // A detached socket has a new owner; a closed one may still report an error late, which must not be thrown.
    if (this.#detached) socket.off("error", this.#onError);
  }
}

/** Ends so that the peer sees a break: a TCP reset, or TLS without its closing alert. */
export function resetSocket(socket: Duplex): void {
  if (socket.destroyed) return;
  if (socket instanceof Socket && !(socket instanceof TLSSocket)) socket.resetAndDestroy();
  else socket.destroy();
}

function closedError(): RuntimeError {
  return new RuntimeError("connection_closed", "The connection was closed");
}

function idleError(what: string): RuntimeError {
  return new RuntimeError("idle_limit", `Nothing happened within the limit (${what})`);
}
