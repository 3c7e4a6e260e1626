import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { StoreError } from "../store/errors.ts";
import { translateError } from "./translate-error.ts";

test("a full disk is told to clients with what to do; other database failures are not", () => {
  const full = new StoreError("store_full", "the disk is full", { next: "Free some space" });
  expect(translateError(full)).toMatchObject({
    code: Code.ResourceExhausted,
    rawMessage: "the disk is full. Free some space",
  });
  expect(translateError(new StoreError("store_write_failed", "no such column: x"))).toBeUndefined();
});
