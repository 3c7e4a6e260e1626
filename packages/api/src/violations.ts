/** What is wrong with one field of a request, and what would be right. */
export interface FieldViolation {
  /** Path in proto names with list indices and map keys in brackets, such as `spec.environment[PATH]`. */
  readonly field: string;
  /** One sentence; never contains the value of a secret field. */
  readonly description: string;
}

/** Violations of one request that are collected; how many of them an error carries depends on their sizes. */
export const MAX_VIOLATIONS = 32;
/** Characters of one description; the rest is cut with an ellipsis. */
export const MAX_DESCRIPTION = 256;
/** Characters of one field path, which may hold a map key of the caller's. */
export const MAX_FIELD_PATH = 160;

/** Collects every violation of a request, so that a caller can fix all of them at once. */
export class Violations {
  readonly #found: FieldViolation[] = [];

  /** Notes a violation; `undefined`, the answer of a check that passed, is ignored. */
  add(violation: FieldViolation | undefined): void {
    if (violation !== undefined && this.#found.length < MAX_VIOLATIONS) this.#found.push(violation);
  }

  /** Notes `description` for `field` unless `holds`. */
  require(holds: boolean, field: string, description: string): void {
    if (!holds) this.add({ field, description });
  }

  get list(): readonly FieldViolation[] {
    return this.#found;
  }

  get isEmpty(): boolean {
    return this.#found.length === 0;
  }
}
