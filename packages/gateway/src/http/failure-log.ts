import { LogField } from "@openshell/base";
import type { Logger } from "pino";
import { HttpLimits } from "./limits.ts";

/** Logs calls that failed as nobody expected, so many a while: whoever can cause one can cause many, and logs are rotated. */
export class FailureLog {
  readonly #log: Logger;
  readonly #now: () => number;
  #since = Number.NEGATIVE_INFINITY;
  #count = 0;

  /** @param now milliseconds that only grow */
  constructor(log: Logger, now: () => number = () => performance.now()) {
    this.#log = log;
    this.#now = now;
  }

  failed(error: unknown, method: string): void {
    const now = this.#now();
    if (now - this.#since >= HttpLimits.failureWindowMs) {
      const left = this.#count - HttpLimits.failuresLogged;
      if (left > 0) this.#log.error({ count: left }, "more calls failed unexpectedly, and were not logged");
      this.#since = now;
      this.#count = 0;
    }
    if (this.#count++ < HttpLimits.failuresLogged) {
      this.#log.error({ [LogField.method]: method, err: error }, "a call failed unexpectedly");
    }
  }
}
