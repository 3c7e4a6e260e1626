import {
  ADMISSION_BURST_MS,
  ADMISSION_COST_MS,
  ADMISSION_PART,
  ADMISSION_PAUSE_MS,
  SHARE_ALONE_MS,
  SHARE_CONTENDED_MS,
  SHARE_EVENT_MS,
  SHARE_SLICE_MS,
} from "./limits.ts";

export interface FairSharesDeps {
  /** Monotonic milliseconds with fractions. */
  readonly now?: () => number;
  /** Calls back after the event loop has looked at every socket once. */
  readonly nextTurn?: (callback: () => void) => void;
  /** Calls back when all that follows at once from what runs now (ticks, settled promises) is done. */
  readonly afterThis?: (callback: () => void) => void;
}

/**
 * The event loop of a host, shared round robin between the sandboxes that have work. One object a host.
 *
 * Whatever a sandbox's connections cause asks its {@link FairShare} first. What a share used is measured, not estimated,
 * and a share that used its slice waits until the loop has turned: every socket is looked at once, so its neighbours are
 * served, and then each share that waits gets one slice. A host with one sandbox measures and delays nothing.
 */
export class FairShares {
  readonly now: () => number;
  readonly #nextTurn: (callback: () => void) => void;
  readonly #afterThis: (callback: () => void) => void;
  readonly #shares = new Set<FairShare>();
  /** Shares with waiting work, in the order of their turns. */
  #ring: FairShare[] = [];
  #scheduled = false;
  #current: FairShare | undefined;
  #began = 0;
  #latest: FairShare | undefined;
  #contendedUntil = Number.NEGATIVE_INFINITY;

  constructor(deps: FairSharesDeps = {}) {
    this.now = deps.now ?? (() => performance.now());
    this.#nextTurn = deps.nextTurn ?? setImmediate;
    // A tick that a settled promise asks for comes after all other settled promises.
    this.#afterThis = deps.afterThis ?? ((callback) => queueMicrotask(() => process.nextTick(callback)));
  }

  /** For one sandbox; closed with it. */
  open(): FairShare {
    const share = new FairShare(this);
    this.#shares.add(share);
    return share;
  }

  close(share: FairShare): void {
    this.#shares.delete(share);
  }

  /** Whether nobody is there to be considered. */
  get single(): boolean {
    return this.#shares.size < 2;
  }

  get current(): FairShare | undefined {
    return this.#current;
  }

  /** How long a share may go on: hardly limited while it is the only one with work. */
  slice(share: FairShare, now: number): number {
    if (this.#latest !== share) {
      if (this.#latest !== undefined) this.#contendedUntil = now + SHARE_CONTENDED_MS;
      this.#latest = share;
    }
    return this.contended(now) ? SHARE_SLICE_MS : SHARE_ALONE_MS;
  }

  /** Whether more than one sandbox had work a moment ago. */
  contended(now: number): boolean {
    return now < this.#contendedUntil;
  }

  /** What runs now, and what follows at once from it, is on this share's account. */
  begin(share: FairShare, now: number): void {
    this.#current = share;
    this.#began = now - SHARE_EVENT_MS;
    this.#afterThis(this.#end);
  }

  readonly #end = (): void => {
    this.#current?.used(this.now() - this.#began);
    this.#current = undefined;
  };

  /** The share has waiting work. */
  wake(share: FairShare): void {
    this.#ring.push(share);
    this.#schedule();
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    this.#nextTurn(() => void this.#turn());
  }

  /** One slice for each share that waits. */
  async #turn(): Promise<void> {
    const ring = this.#ring;
    this.#ring = [];
    for (const share of ring) {
      const began = this.now();
      let until = began + this.slice(share, began);
      for (let now = began; share.waiting > 0 && now < until; now = this.now()) {
        const done = new Promise<void>((resolve) => this.#afterThis(resolve));
        this.#current = share;
        try {
          share.next();
        } catch (error) {
          // A defect, told as one in any event's callback is; the turns of the others come all the same.
          process.nextTick(() => {
            throw error;
          });
        }
        await done;
        this.#current = undefined;
        // What brought this piece of work, and what it lets come in next.
        until -= SHARE_EVENT_MS;
      }
      share.used(this.now() - began);
      if (share.waiting > 0) this.#ring.push(share);
    }
    this.#scheduled = false;
    if (this.#ring.length > 0) this.#schedule();
  }
}

/** One sandbox's part of the event loop. Bounded by whoever uses it: a connection has one piece of work waiting at most. */
export class FairShare implements Disposable {
  readonly #shares: FairShares;
  #queue: (() => void)[] = [];
  #first = 0;
  #used = 0;
  #at: number;
  /** What was used lately, less the part of the time that new connections may take. */
  #load = 0;
  #loadAt: number;
  #admittedAt = Number.NEGATIVE_INFINITY;

  constructor(shares: FairShares) {
    this.#shares = shares;
    this.#at = shares.now();
    this.#loadAt = this.#at;
  }

  get waiting(): number {
    return this.#queue.length - this.#first;
  }

  /** Whether the host has no other sandbox. */
  get alone(): boolean {
    return this.#shares.single;
  }

  /** True: go on, at once and until the event loop's next event. False: this share had its slice; use `later`. */
  ready(): boolean {
    const shares = this.#shares;
    if (shares.current === this || shares.single) return true;
    // What waits already goes first.
    if (this.waiting > 0) return false;
    const now = shares.now();
    // A share that uses less than half of the time is never delayed, except within a burst longer than its slice.
    this.#used = Math.max(0, this.#used - (now - this.#at) / 2);
    this.#at = now;
    if (this.#used >= shares.slice(this, now)) return false;
    shares.begin(this, now);
    return true;
  }

  /** Runs `work` in a later turn of this share, in the order of the calls. It must not throw. */
  later(work: () => void): void {
    this.#queue.push(work);
    if (this.waiting === 1) this.#shares.wake(this);
  }

  /** Undefined: go on; else resolves when it is this share's turn. */
  turn(): Promise<void> | undefined {
    if (this.ready()) return undefined;
    return new Promise((resolve) => this.later(resolve));
  }

  /**
   * Milliseconds until the sandbox may take one more connection, 0 for now. Turns alone let a flood have whatever time its
   * neighbours leave, and a loop that is always busy answers them late. While others have work, a sandbox that uses more
   * than a small part of the time takes connections one by one, each after a pause; what it has open goes on as before.
   */
  get admissionPause(): number {
    const shares = this.#shares;
    const now = shares.now();
    if (shares.single || !shares.contended(now)) return 0;
    const excess = this.#loadNow(now) - ADMISSION_BURST_MS;
    if (excess <= 0) return 0;
    return Math.max(0, Math.min(excess / ADMISSION_PART, this.#admittedAt + ADMISSION_PAUSE_MS - now));
  }

  /** A connection was taken. */
  admitted(): void {
    if (this.#shares.single) return;
    this.#admittedAt = this.#shares.now();
    this.#loadBy(ADMISSION_COST_MS, this.#admittedAt);
  }

  #loadBy(milliseconds: number, now: number): void {
    this.#load = Math.min(this.#loadNow(now) + milliseconds, 2 * ADMISSION_BURST_MS);
  }

  #loadNow(now: number): number {
    this.#load = Math.max(0, this.#load - (now - this.#loadAt) * ADMISSION_PART);
    this.#loadAt = now;
    return this.#load;
  }

  /** Of {@link FairShares} only: does the oldest piece of work. */
  next(): void {
    const work = this.#queue[this.#first]!;
    this.#first += 1;
    if (this.#first === this.#queue.length) {
      this.#queue = [];
      this.#first = 0;
    } else if (this.#first >= 1024) {
      this.#queue.splice(0, this.#first);
      this.#first = 0;
    }
    work();
  }

  /** Of {@link FairShares} only. */
  used(milliseconds: number): void {
    // No debts: whoever was busy for minutes waits no longer than whoever was busy for a moment.
    this.#used = Math.min(this.#used + milliseconds, 2 * SHARE_ALONE_MS);
    this.#loadBy(milliseconds, this.#shares.now());
  }

  /** What waits is done in its turn; the others are not delayed for this one's sake any more. */
  [Symbol.dispose](): void {
    this.#shares.close(this);
  }
}
