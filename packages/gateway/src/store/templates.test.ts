import type { Compilable, CompiledQuery } from "kysely";
import { expect, it } from "vitest";
import { Templates } from "./templates.ts";

const query = (sql: string, parameters: readonly unknown[]): Compilable => ({
  compile: () => ({ sql, parameters }) as unknown as CompiledQuery<unknown>,
});

it("a text is built once, for whatever parameters", () => {
  const templates = new Templates();
  let built = 0;
  const of = (value: number) =>
    templates.of("key", [value, "x"], () => {
      built += 1;
      return query("update t set a = ? where b = ?", [value, "x"]);
    });
  expect([of(1), of(2)].map((one) => one.compile())).toMatchObject([
    { sql: "update t set a = ? where b = ?", parameters: [1, "x"] },
    { sql: "update t set a = ? where b = ?", parameters: [2, "x"] },
  ]);
  expect(built).toBe(1);
});

it("parameters in another order than the query's are an error of the program", () => {
  expect(() => new Templates().of("key", [1, 2], () => query("?", [2, 1]))).toThrow("another order");
  expect(() => new Templates().of("key", [1], () => query("?", [1, 2]))).toThrow("another order");
});
