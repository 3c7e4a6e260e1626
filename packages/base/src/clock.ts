/** Time as the core logic sees it; tests pass a hand-driven one. */
export interface Clock {
  /** Wall time, milliseconds since the epoch. */
  now(): number;
  /** Monotonic milliseconds; only differences mean something. */
  monotonic(): number;
  /** Resolves after `ms`; rejects with the signal's reason when aborted first. Never keeps the process alive by itself when `unref`. */
  sleep(ms: number, options?: { readonly signal?: AbortSignal; readonly unref?: boolean }): Promise<void>;
}

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
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", onAbort);
        resolve();
      }, ms);
      if (options.unref) timer.unref();
      signal?.addEventListener("abort", onAbort, { once: true });
    }),
};
