import type { Compilable, CompiledQuery } from "kysely";
import type { SqlValue } from "./command.ts";

/** Statements that differ in their parameters only: their text is built once, since building costs more than running. */
export class Templates {
  readonly #texts = new Map<string, string>();

  /**
   * The query that `build` makes, whose parameters are exactly these, in their order. `key`: names its text; there are few of
   * them.
   */
  of(key: string, parameters: readonly SqlValue[], build: () => Compilable): Compilable {
    const sql = this.#texts.get(key);
    if (sql !== undefined) return { compile: () => ({ sql, parameters }) as unknown as CompiledQuery<unknown> };
    const compiled = build().compile();
    const same =
      compiled.parameters.length === parameters.length &&
      parameters.every((value, index) => Object.is(value, compiled.parameters[index]));
    if (!same) throw new Error(`the parameters of ${key} stand in another order than its query's`);
    this.#texts.set(key, compiled.sql);
    return { compile: () => compiled };
  }
}
