import { type Clock, RuntimeError } from "@openshell/base";
import { DONE } from "../sessions/reader.ts";
import type { Lane, SessionDelivery } from "./delivery.ts";
import {
  ACK_TIMEOUT_MS,
  BUILD_LIMIT_MS,
  BUILD_PERMITS,
  BUILD_SLICE_MS,
  RECONCILE_INTERVAL_MS,
  RECONCILE_TICKS,
  RESERVED_PERMITS,
} from "./limits.ts";
import type { Snapshot } from "./snapshot.ts";
import { DeliveryStats } from "./stats.ts";
import { TimeLimits } from "./time-limits.ts";

/** Whom a change may concern. */
export type Scope =
  | { readonly kind: "sandbox"; readonly sandboxId: string }
  | { readonly kind: "workspace"; readonly workspace: string }
  | { readonly kind: "provider"; readonly workspace: string; readonly provider: string }
  | { readonly kind: "everyone" };

export interface SchedulerDeps {
  readonly clock: Clock;
  /** The complete snapshot of a sandbox as it is now. */
  readonly build: (sandboxId: string) => Promise<Snapshot>;
  readonly stats?: DeliveryStats;
  /** Between 0 and 1; decides when a session is reconciled first. */
  readonly random?: () => number;
  readonly reconcileMs?: number;
  readonly permits?: number;
  readonly reserved?: number;
  /** Gives everything else of the process a turn. */
  readonly breathe?: () => Promise<void>;
}

interface Member {
  nextReconcile: number;
}

/**
 * Decides whose snapshot is built next. Sessions stand in two rings, one for changes of a single sandbox and one for
 * changes of many, and leave them from the front: whoever is dirty again goes to the end, so that one that changes all the
 * time delays nobody by more than its turn. The rings take turns, and a part of the permits is kept free of the second.
 */
export class DeliveryScheduler {
  readonly stats: DeliveryStats;
  readonly #deps: SchedulerDeps;
  readonly #members = new Map<SessionDelivery, Member>();
  /** Sessions that wait for their turn, since when, in order. */
  readonly #rings: Readonly<Record<Lane, Map<SessionDelivery, number>>> = { sandbox: new Map(), fanout: new Map() };
  readonly #permits: number;
  readonly #reserved: number;
  readonly #reconcileMs: number;
  readonly #closed = new AbortController();
  readonly #buildLimits: TimeLimits;
  readonly #answerLimits: TimeLimits;
  #publications = 0;
  #building = 0;
  #buildingFanout = 0;
  #last: Lane = "fanout";
  #breathing = false;
  #slice = 0;
  #reconciling = false;

  constructor(deps: SchedulerDeps) {
    this.#deps = deps;
    this.stats = deps.stats ?? new DeliveryStats();
    this.#buildLimits = new TimeLimits(deps.clock, BUILD_LIMIT_MS);
    this.#answerLimits = new TimeLimits(deps.clock, ACK_TIMEOUT_MS);
    this.#permits = deps.permits ?? BUILD_PERMITS;
    this.#reserved = deps.reserved ?? RESERVED_PERMITS;
    this.#reconcileMs = deps.reconcileMs ?? RECONCILE_INTERVAL_MS;
  }

  /** Grows with each change that was announced. Read before a bootstrap is, and given to {@link register}. */
  get publications(): number {
    return this.#publications;
  }

  /** Sessions that something is to be sent to or is awaited from, and those among them that wait for an answer. */
  counts(): { readonly sessions: number; readonly dirty: number; readonly waiting: number } {
    let dirty = 0;
    let waiting = 0;
    for (const delivery of this.#members.keys()) {
      if (delivery.busy) dirty += 1;
      if (delivery.waiting) waiting += 1;
    }
    return { sessions: this.#members.size, dirty, waiting };
  }

  /** Takes part from now on. A change that was announced since `publications` was read may be missing in its bootstrap. */
  register(delivery: SessionDelivery, publications: number): void {
    const first = this.#reconcileMs * (1 + (this.#deps.random ?? Math.random)());
    this.#members.set(delivery, { nextReconcile: this.#deps.clock.monotonic() + first });
    if (publications !== this.#publications) delivery.markDirty();
  }

  /** Ends the delivery, if it still is one. */
  unregister(delivery: SessionDelivery): void {
    delivery.close();
    this.#members.delete(delivery);
    for (const ring of Object.values(this.#rings)) ring.delete(delivery);
  }

  /** A change was stored: whoever it may concern is looked at. Never waits. `one`: the delivery of the sandbox that a scope of one names. */
  publish(scope: Scope, one?: SessionDelivery): void {
    this.#publications += 1;
    if (scope.kind === "sandbox") {
      one?.markDirty();
      return;
    }
    for (const delivery of this.#members.keys()) {
      const concerned =
        scope.kind === "everyone" ||
        delivery.concerns(scope.workspace, scope.kind === "provider" ? scope.provider : undefined);
      if (concerned) delivery.markDirty("fanout");
    }
  }

  /** A change of these sandboxes among others. */
  publishTo(deliveries: readonly SessionDelivery[]): void {
    this.#publications += 1;
    for (const delivery of deliveries) delivery.markDirty("fanout");
  }

  /** A turn for this session. Standing in a ring it keeps its place; a change of it alone moves it out of the crowd. */
  readonly request = (delivery: SessionDelivery, lane: Lane): void => {
    if (!this.#members.has(delivery)) return;
    const { sandbox, fanout } = this.#rings;
    if (sandbox.has(delivery)) return;
    if (lane === "sandbox") fanout.delete(delivery);
    if (!fanout.has(delivery)) this.#rings[lane].set(delivery, this.#deps.clock.monotonic());
    this.#pump();
  };

  /** The limit of an answer, for deliveries. */
  readonly limitAnswer = (late: () => void): (() => void) => this.#answerLimits.begin(late);

  /** Looks at every session once an interval, whether anybody announced a change or not. Ends with `close`. */
  async reconcile(): Promise<void> {
    if (this.#reconciling) return;
    this.#reconciling = true;
    const { clock } = this.#deps;
    const { signal } = this.#closed;
    while (!signal.aborted) {
      await clock.sleep(this.#reconcileMs / RECONCILE_TICKS, { signal, unref: true }).catch(() => {});
      if (signal.aborted) return;
      const now = clock.monotonic();
      for (const [delivery, member] of this.#members) {
        if (member.nextReconcile > now) continue;
        member.nextReconcile = now + this.#reconcileMs;
        delivery.reconcile("fanout");
      }
    }
  }

  close(): void {
    this.#closed.abort(DONE);
    this.#buildLimits.close();
    this.#answerLimits.close();
    for (const delivery of [...this.#members.keys()]) this.unregister(delivery);
  }

  /** Hands out turns while there are permits. Builds run beside it; after each slice of them everything else has a turn. */
  #pump(): void {
    if (this.#breathing) return;
    for (;;) {
      if (this.#idle()) return;
      if (performance.now() - this.#slice >= BUILD_SLICE_MS) {
        this.#breathing = true;
        void (this.#deps.breathe ?? nextLoop)().then(() => {
          this.#breathing = false;
          this.#slice = performance.now();
          this.#pump();
        });
        return;
      }
      const next = this.#next();
      if (next === undefined) return;
      void this.#turn(...next);
    }
  }

  #idle(): boolean {
    return this.#rings.sandbox.size === 0 && this.#rings.fanout.size === 0;
  }

  #next(): [SessionDelivery, Lane] | undefined {
    if (this.#building >= this.#permits || this.#closed.signal.aborted) return undefined;
    const crowd = this.#buildingFanout < this.#permits - this.#reserved;
    const order: readonly Lane[] = this.#last === "fanout" ? ["sandbox", "fanout"] : ["fanout", "sandbox"];
    for (const lane of order) {
      if (lane === "fanout" && !crowd) continue;
      const first = this.#rings[lane].entries().next();
      if (first.done) continue;
      const [delivery, since] = first.value;
      this.#rings[lane].delete(delivery);
      this.#last = lane;
      this.stats.waited(lane, (this.#deps.clock.monotonic() - since) / 1000);
      return [delivery, lane];
    }
    return undefined;
  }

  async #turn(delivery: SessionDelivery, lane: Lane): Promise<void> {
    this.#building += 1;
    if (lane === "fanout") this.#buildingFanout += 1;
    try {
      await delivery.turn(() => this.#build(delivery.sandboxId));
    } finally {
      this.#building -= 1;
      if (lane === "fanout") this.#buildingFanout -= 1;
      this.#pump();
    }
  }

  async #build(sandboxId: string): Promise<Snapshot> {
    return await new Promise((resolve, reject) => {
      const inTime = this.#buildLimits.begin(() => reject(tooLate()));
      this.#deps.build(sandboxId).then(resolve, reject).finally(inTime);
    });
  }
}

function tooLate(): RuntimeError {
  return new RuntimeError("snapshot_timeout", `the configuration was not read within ${BUILD_LIMIT_MS / 1000} s`);
}

const nextLoop = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
