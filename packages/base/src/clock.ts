/** Time as the core logic sees it; tests pass a hand-driven one. */
export interface Clock {
  /** Wall time, milliseconds since the epoch. */
  now(): number;
  /** Monotonic milliseconds; only differences mean something. */
  monotonic(): number;
  /** Resolves after `ms`; rejects with the signal's reason when aborted first. Never keeps the process alive by itself when `unref`. */
  sleep(ms: number, options?: { readonly signal?: AbortSignal; readonly unref?: boolean }): Promise<void>;
}

/** Node's timers hold 31 bits of milliseconds; a longer one would fire at once. */
const TIMER_MAX_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  sleep: (ms, options = {}) =>
    new Promise((resolve, reject) => {
      const { signal } = options;
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const onAbort = (): void => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      let left = ms;
      let timer: NodeJS.Timeout;
      const wait = (): void => {
        const part = Math.min(left, TIMER_MAX_MS);
        left -= part;
        timer = setTimeout(() => {
          if (left > 0) {
            wait();
            return;
          }
          signal?.removeEventListener("abort", onAbort);
          resolve();
        }, part);
        if (options.unref) timer.unref();
      };
      wait();
      signal?.addEventListener("abort", onAbort, { once: true });
    }),
};
