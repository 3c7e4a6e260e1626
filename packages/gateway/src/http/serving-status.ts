import type { Clock } from "@openshell/base";
import { DONE } from "../sessions/reader.ts";
import { HttpLimits } from "./limits.ts";
import { Places } from "./places.ts";
import type { StoreProbe } from "./store-probe.ts";

export interface ServingStatusOptions {
  readonly clock: Clock;
  readonly probe: StoreProbe;
  /** Aborted when the gateway ends its streams; its reason is what watchers end with. */
  readonly stopping: AbortSignal;
}

/**
 * Whether the gateway can do its work: from the end of its start to the beginning of its stop, while the store answers.
 *
 * Nothing runs while nobody watches: each question looks at the store; watchers share one look every
 * {@link HttpLimits.healthPollMs}, and are told at once what somebody else's question found.
 */
export class ServingStatus {
  readonly #clock: Clock;
  readonly #probe: StoreProbe;
  readonly #stopping: AbortSignal;
  readonly #watchers = new Set<() => void>();
  #phase: "starting" | "started" | "stopping" = "starting";
  #storeHealthy = false;
  #polling: AbortController | undefined;
  #watching = 0;
  readonly #places = new Places({
    all: HttpLimits.healthWatchers,
    strangers: HttpLimits.strangerHealthWatchers,
    what: "calls watch the health of this gateway",
    next: "Use Check, or end a Watch",
  });

  constructor({ clock, probe, stopping }: ServingStatusOptions) {
    this.#clock = clock;
    this.#probe = probe;
    this.#stopping = stopping;
  }

  /** As last seen. */
  get #serving(): boolean {
    return this.#phase === "started" && this.#storeHealthy;
  }

  /** The start is done. */
  started(): void {
    if (this.#phase === "starting") this.#change({ phase: "started" });
  }

  /** The gateway begins to stop: it does not serve from now on, whatever the store says. */
  stop(): void {
    this.#change({ phase: "stopping" });
  }

  /** Looks now. */
  async check(): Promise<boolean> {
    if (this.#phase === "started") {
      const { healthy } = await this.#probe();
      this.#change({ storeHealthy: healthy });
    }
    return this.#serving;
  }

  /**
   * Whether it serves: now, and at each change, until `signal` or the end of the gateway, which it throws. A watcher that
   * reads slowly misses what did not last.
   *
   * @param stranger the caller's connection proved nothing.
   * @throws ApiError RESOURCE_EXHAUSTED when too many watch already.
   */
  async *watch(signal: AbortSignal, stranger: boolean): AsyncGenerator<boolean, never, void> {
    using _place = this.#places.take(stranger);
    this.#watching += 1;
    try {
      let told = await this.check();
      yield told;
      this.#poll();
      for (;;) {
        if (told === this.#serving) await this.#nextChange(signal);
        if (told === this.#serving) continue;
        told = this.#serving;
        yield told;
      }
    } finally {
      this.#watching -= 1;
      if (this.#watching === 0) {
        this.#polling?.abort(DONE);
        this.#polling = undefined;
      }
    }
  }

  #change(facts: { readonly phase?: "started" | "stopping"; readonly storeHealthy?: boolean }): void {
    const before = this.#serving;
    this.#phase = facts.phase ?? this.#phase;
    this.#storeHealthy = facts.storeHealthy ?? this.#storeHealthy;
    if (before !== this.#serving) for (const wake of [...this.#watchers]) wake();
  }

  /** Resolves at a change; rejects with the reason of the first signal that is aborted. */
  #nextChange(signal: AbortSignal): Promise<void> {
    const signals = [signal, this.#stopping];
    const aborted = signals.find((one) => one.aborted);
    if (aborted !== undefined) return Promise.reject(aborted.reason);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const leave = (): void => {
      this.#watchers.delete(wake);
      for (const one of signals) one.removeEventListener("abort", onAbort);
    };
    const wake = (): void => {
      leave();
      resolve();
    };
    const onAbort = (event: Event): void => {
      leave();
      reject((event.target as AbortSignal).reason);
    };
    this.#watchers.add(wake);
    for (const one of signals) one.addEventListener("abort", onAbort);
    return promise;
  }

  #poll(): void {
    if (this.#polling !== undefined) return;
    const polling = new AbortController();
    this.#polling = polling;
    const { signal } = polling;
    void (async () => {
      while (!signal.aborted) {
        await this.#clock.sleep(HttpLimits.healthPollMs, { signal, unref: true }).catch(() => {});
        if (!signal.aborted) await this.check();
      }
    })();
  }
}
