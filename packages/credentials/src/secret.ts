const INSPECT = Symbol.for("nodejs.util.inspect.custom");

/** What stands in for a credential in logs, paths and errors. */
export const REDACTED = "[CREDENTIAL]";

/** A value that no log, error, inspection or JSON shows by accident; `reveal()` is the only way to it. */
export class Secret {
  readonly #value: string;

  constructor(value: string) {
    this.#value = value;
  }

  reveal(): string {
    return this.#value;
  }

  get length(): number {
    return this.#value.length;
  }

  toString(): string {
    return REDACTED;
  }

  toJSON(): string {
    return REDACTED;
  }

  [INSPECT](): string {
    return REDACTED;
  }
}
