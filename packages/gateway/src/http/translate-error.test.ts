import { Code, ConnectError } from "@connectrpc/connect";
import { StatusError } from "@openshell/rpc/wire/status.ts";
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

test("CreateSandbox of a gateway without descriptors, or on a full disk, said INTERNAL in place of what to do", () => {
  const open = Object.assign(new Error("EMFILE: too many open files, open '/x'"), { code: "EMFILE" });
  expect(translateError(new Error("reading failed", { cause: open }))).toMatchObject({
    code: Code.Unavailable,
    rawMessage: expect.stringMatching(/^the gateway has too many open files\. .*ulimit -n/),
  });
  const full = Object.assign(new Error("ENOSPC: no space left on device, write"), { code: "ENOSPC" });
  expect(translateError(full)).toMatchObject({
    code: Code.ResourceExhausted,
    rawMessage: "the disk with the gateway's files is full. Free space there, then try again",
  });
  expect(translateError(Object.assign(new Error("EACCES: /secret"), { code: "EACCES" }))).toBeUndefined();
});

test("what is wrong with the bytes of a caller is told to it, and no failure of the gateway", () => {
  const found = new StatusError(Code.Internal, "the stream ended within a message");
  const error = new ConnectError(found.message, Code.Internal, undefined, undefined, found);
  expect(translateError(error)).toMatchObject({ code: Code.Internal, rawMessage: found.message });
  expect(translateError(new ConnectError("secret", Code.Internal))).toBeUndefined();
});
