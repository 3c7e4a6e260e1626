import type { OnReadOpts } from "node:net";
import type { Duplex } from "node:stream";
import { type BufferBudget, type Deadlines, resetSocket } from "./channel.ts";
import type { FairShare } from "./fair-share.ts";
import { holdReads, releaseReads } from "./hold-reads.ts";
import { TUNNEL_BUFFER_BYTES, TUNNEL_IDLE_MS, TUNNEL_TOTAL_MS, WRITE_AHEAD_BYTES } from "./limits.ts";

const EMPTY = Buffer.alloc(0);

/**
 * Reads of the upstream socket into one buffer of its own, without an allocation for each. Set before the socket exists,
 * bound to its tunnel later; the socket rests until then.
 */
export class DirectReader {
  /** Takes bytes that are only valid until it returns true; false: they are still in use, no further read until resumed. */
  onBytes: ((bytes: Buffer) => boolean) | undefined;
  readonly onread: OnReadOpts = {
    buffer: Buffer.allocUnsafeSlow(TUNNEL_BUFFER_BYTES),
    callback: (count, buffer) => this.onBytes?.(Buffer.from(buffer.buffer, buffer.byteOffset, count)) ?? true,
  };
}

export interface TunnelBytes {
  readonly toUpstream: number;
  readonly toClient: number;
}

/** Of the sandbox that the tunnel belongs to. */
export interface TunnelAccounts {
  readonly budget: BufferBudget;
  readonly deadlines: Deadlines;
  readonly share: FairShare;
}

/** Passes bytes both ways until both ends are closed; each direction waits for its receiver. Half-closing is kept. */
export class Tunnel {
  readonly #client: Duplex;
  readonly #upstream: Duplex;
  readonly #budget: BufferBudget;
  readonly #deadlines: Deadlines;
  readonly #share: FairShare;
  #toUpstream = 0;
  #toClient = 0;
  #lastActivity: number;
  readonly #refuseFirst: ((bytes: Buffer) => boolean) | undefined;

  /** `refuseFirst` sees the client's first bytes when the server has not spoken yet; true ends the tunnel. */
  constructor(
    client: Duplex,
    upstream: Duplex,
    { budget, deadlines, share }: TunnelAccounts,
    refuseFirst?: (bytes: Buffer) => boolean,
  ) {
    this.#refuseFirst = refuseFirst;
    this.#client = client;
    this.#upstream = upstream;
    this.#budget = budget;
    this.#deadlines = deadlines;
    this.#share = share;
    this.#lastActivity = deadlines.now();
  }

  /** Resolves when it is over, for whatever reason. `reader` belongs to the upstream socket. */
  run(reader?: DirectReader): Promise<TunnelBytes> {
    const started = this.#deadlines.now();
    const timer = setInterval(() => {
      const now = this.#deadlines.now();
      if (now - this.#lastActivity > TUNNEL_IDLE_MS || now - started > TUNNEL_TOTAL_MS) this.destroy();
    }, 30_000).unref();
    return new Promise((resolve) => {
      let open = 2;
      const onClose = (): void => {
        open -= 1;
        // Both are gone together: half of a broken connection is of no use to anybody.
        if (open === 1) this.#endOther();
        if (open > 0) return;
        clearInterval(timer);
        resolve({ toUpstream: this.#toUpstream, toClient: this.#toClient });
      };
      for (const socket of [this.#client, this.#upstream]) {
        socket.on("error", () => socket.destroy());
        if (socket.destroyed) queueMicrotask(onClose);
        else socket.once("close", onClose);
      }
      this.#pump(this.#client, this.#upstream, (bytes) => {
        this.#toUpstream += bytes;
      });
      const count = (bytes: number): void => {
        this.#toClient += bytes;
      };
      if (reader === undefined) this.#pump(this.#upstream, this.#client, count);
      else this.#pumpDirect(reader, count);
    });
  }

  destroy(): void {
    resetSocket(this.#client);
    resetSocket(this.#upstream);
  }

  #endOther(): void {
    const survivor = this.#client.destroyed ? this.#upstream : this.#client;
    const gone = survivor === this.#client ? this.#upstream : this.#client;
    // A clean end still lets the survivor finish what is on its way to it; a break is passed on as one.
    if (gone.errored === null && gone.readableEnded) {
      if (!survivor.writableEnded) survivor.end();
      survivor.once("finish", () => survivor.destroy());
      if (survivor.writableFinished) survivor.destroy();
    } else resetSocket(survivor);
  }

  #pumpDirect(reader: DirectReader, count: (bytes: number) => void): void {
    const [from, to] = [this.#upstream, this.#client];
    let charged = 0;
    const settle = (): void => {
      this.#budget.release(charged);
      charged = 0;
    };
    const pass = (bytes: Buffer): boolean => {
      count(bytes.length);
      this.#lastActivity = this.#deadlines.now();
      if (to.destroyed || to.writableEnded) return true;
      to.write(bytes);
      // What the kernel did not take at once still refers to the buffer.
      if (to.writableLength === 0) return true;
      charged = to.writableLength;
      this.#budget.charge(charged);
      to.write(EMPTY, () => {
        settle();
        from.resume();
      });
      return false;
    };
    reader.onBytes = (bytes) => {
      if (this.#share.ready()) return pass(bytes);
      this.#share.later(() => {
        if (pass(bytes)) from.resume();
      });
      return false;
    };
    to.once("close", settle);
    from.once("end", () => {
      if (!to.destroyed && !to.writableEnded) to.end();
    });
    from.resume();
  }

  #pump(from: Duplex, to: Duplex, count: (bytes: number) => void): void {
    let charged = 0;
    const settle = (): void => {
      if (charged === 0) return;
      this.#budget.release(charged);
      charged = 0;
    };
    const pass = (chunk: Buffer): void => {
      if (from === this.#client && this.#toUpstream === 0 && this.#toClient === 0 && this.#refuseFirst?.(chunk)) {
        this.destroy();
        return;
      }
      count(chunk.length);
      this.#lastActivity = this.#deadlines.now();
      if (to.destroyed || to.writableEnded) return;
      if (to.write(chunk)) return;
      this.#budget.charge(to.writableLength - charged);
      charged = to.writableLength;
      if (charged >= WRITE_AHEAD_BYTES || this.#budget.exhausted) from.pause();
    };
    from.on("data", (chunk: Buffer) => {
      if (this.#share.ready()) {
        pass(chunk);
        return;
      }
      holdReads(from);
      this.#budget.charge(chunk.length);
      this.#share.later(() => {
        this.#budget.release(chunk.length);
        releaseReads(from);
        pass(chunk);
      });
    });
    to.on("drain", () => {
      settle();
      if (this.#budget.exhausted) this.#budget.whenFree(() => from.resume());
      else from.resume();
    });
    to.once("close", settle);
    from.once("end", () => {
      if (!to.destroyed && !to.writableEnded) to.end();
    });
    from.resume();
  }
}
