import type { Clock } from "@openshell/base";
import { SessionRefused } from "./failure.ts";

/** Reason for ending a timer that is no longer needed: the default one is an exception with a stack, made each time. */
export const DONE = "done";

/**
 * The next message of a stream, within a limit. A stream that ends gives undefined.
 *
 * @throws SessionRefused `timeout` past the limit; the read goes on in the background until the stream ends.
 */
export async function readWithin<T>(
  iterator: AsyncIterator<T>,
  clock: Clock,
  timeoutMs: number,
  what: string,
): Promise<T | undefined> {
  const timer = new AbortController();
  const { promise, resolve, reject } = Promise.withResolvers<T | undefined>();
  clock.sleep(timeoutMs, { signal: timer.signal, unref: true }).then(
    () => reject(new SessionRefused("timeout", `no ${what} within ${timeoutMs / 1000} s`, { retryable: true })),
    () => {},
  );
  iterator.next().then((result) => resolve(result.done ? undefined : result.value), reject);
  try {
    return await promise;
  } finally {
    timer.abort(DONE);
  }
}

/** A stream that ends when it breaks: a peer that died and one that left are the same to whoever serves it. */
export function endingWhenBroken<T>(iterator: AsyncIterator<T>): AsyncIterator<T> {
  return {
    async next() {
      try {
        return await iterator.next();
      } catch {
        return { done: true, value: undefined };
      }
    },
  };
}
