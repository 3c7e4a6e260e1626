import { inspect } from "node:util";

/** What every printed form of a secret says. */
export const REDACTED = "[redacted]";

/**
 * A value that must not be printed. Converting it to text, JSON or a debug form gives {@link REDACTED}; only `reveal()`
 * gives the value, so that every place that handles a plain secret can be found by that name.
 */
export class Secret {
  readonly #value: string;

  constructor(value: string) {
    this.#value = value;
  }

  /** The plain value. Never put it into a log, an event or an error. */
  reveal(): string {
    return this.#value;
  }

  toString(): string {
    return REDACTED;
  }

  toJSON(): string {
    return REDACTED;
  }

  [inspect.custom](): string {
    return REDACTED;
  }

  [Symbol.toPrimitive](): string {
    return REDACTED;
  }
}
