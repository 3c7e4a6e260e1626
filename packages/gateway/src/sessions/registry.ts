import { resourceExhausted, unavailable } from "@openshell/api/errors.ts";
import type { Clock } from "@openshell/base";
import { SessionRefused } from "./failure.ts";
import { MAX_SESSION_WAITERS } from "./limits.ts";
import { DONE } from "./reader.ts";
import type { SupervisorSession } from "./session.ts";

/** The one current session of each sandbox. A later session replaces the earlier one; the end of a replaced one changes nothing. */
export class SessionRegistry {
  readonly #sessions = new Map<string, SupervisorSession>();
  readonly #waiters = new Map<string, Set<() => void>>();

  get(sandboxId: string): SupervisorSession | undefined {
    return this.#sessions.get(sandboxId);
  }

  get all(): Iterable<SupervisorSession> {
    return this.#sessions.values();
  }

  /** Makes `session` the current one. @throws SessionRefused when the same instance has a newer connection already. */
  register(session: SupervisorSession): void {
    const current = this.#sessions.get(session.sandboxId);
    const alive = current !== undefined && current.state !== "closed";
    if (alive && current.instanceId === session.instanceId && current.connectionEpoch >= session.connectionEpoch) {
      throw new SessionRefused("stale_connection", "a newer connection of this supervisor exists");
    }
    this.#sessions.set(session.sandboxId, session);
    current?.close(unavailable("a newer session of this sandbox was opened"));
    session.onState(() => this.#wake(session.sandboxId));
  }

  /** Forgets the session if it still is the current one, and says whether it was. */
  unregister(session: SupervisorSession): boolean {
    if (this.#sessions.get(session.sandboxId) !== session) return false;
    this.#sessions.delete(session.sandboxId);
    this.#wake(session.sandboxId);
    return true;
  }

  /** Wakes those who wait for this sandbox, so that they look at its state again. */
  notify(sandboxId: string): void {
    this.#wake(sandboxId);
  }

  /**
   * Resolves with the sandbox's session once its workload runs. `verdict` is asked at the start and after each change
   * whether waiting still makes sense; it throws what the caller is to be told otherwise.
   *
   * @throws ApiError UNAVAILABLE after `limitMs`; what `verdict` throws; the signal's reason.
   */
  async ready(
    sandboxId: string,
    options: { clock: Clock; limitMs: number; signal: AbortSignal; verdict?: () => Promise<void> },
  ): Promise<SupervisorSession> {
    const { clock, limitMs, signal, verdict } = options;
    const deadline = clock.monotonic() + limitMs;
    for (;;) {
      signal.throwIfAborted();
      const now = this.#sessions.get(sandboxId);
      if (now?.state === "ready") return now;
      // Listening begins before the verdict is asked, so that no change between the two is missed.
      const change = this.#nextChange(sandboxId);
      const timer = new AbortController();
      try {
        await verdict?.();
        const left = deadline - clock.monotonic();
        if (left <= 0) throw supervisorAway();
        const timeout = clock.sleep(left, { signal: AbortSignal.any([timer.signal, signal]), unref: true });
        timeout.catch(() => {});
        await Promise.race([change.promise, timeout]);
      } finally {
        timer.abort(DONE);
        change.cancel();
      }
    }
  }

  #nextChange(sandboxId: string): { readonly promise: Promise<void>; readonly cancel: () => void } {
    const { promise, resolve } = Promise.withResolvers<void>();
    let waiters = this.#waiters.get(sandboxId);
    if (waiters === undefined) {
      waiters = new Set();
      this.#waiters.set(sandboxId, waiters);
    }
    if (waiters.size >= MAX_SESSION_WAITERS) {
      throw resourceExhausted(`more than ${MAX_SESSION_WAITERS} calls wait for this sandbox`, {
        next: "Try again",
        retryDelayMs: 1_000,
      });
    }
    waiters.add(resolve);
    const cancel = (): void => {
      const set = this.#waiters.get(sandboxId);
      if (set?.delete(resolve) && set.size === 0) this.#waiters.delete(sandboxId);
    };
    return { promise, cancel };
  }

  #wake(sandboxId: string): void {
    for (const waiter of [...(this.#waiters.get(sandboxId) ?? [])]) waiter();
  }
}

function supervisorAway() {
  return unavailable("the sandbox's supervisor is not connected; nothing was started", {
    next: "Try again; if it stays so, read the sandbox's conditions",
    retryDelayMs: 1_000,
  });
}
