import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { unlessAbsent } from "./absent.ts";

test("what does not exist is undefined; what could not be looked at is an error", () => {
  expect(unlessAbsent(() => "text")).toBe("text");
  expect(unlessAbsent(() => readFileSync("/proc/self/absent"))).toBeUndefined();
  const failing = (code: string) => () => {
    throw Object.assign(new Error(code), { code });
  };
  for (const code of ["ESRCH", "EACCES", "EPERM"]) expect(unlessAbsent(failing(code))).toBeUndefined();
  for (const code of ["EMFILE", "ENFILE", "EIO"]) expect(() => unlessAbsent(failing(code))).toThrow(code);
});
