import { expect, test } from "vitest";
import { DetachKeys } from "./detach-keys.ts";

const feed = (keys: DetachKeys, ...bytes: number[]) => {
  const { pass, detach } = keys.feed(Uint8Array.from(bytes));
  return { pass: [...pass], detach };
};

test("Ctrl-P Ctrl-Q leaves, also across reads", () => {
  expect(feed(new DetachKeys(), 97, 0x10, 0x11, 98)).toEqual({ pass: [97], detach: true });
  const keys = new DetachKeys();
  expect(feed(keys, 97, 0x10)).toEqual({ pass: [97], detach: false });
  expect(feed(keys, 0x11)).toEqual({ pass: [], detach: true });
});

test("a Ctrl-P without Ctrl-Q reaches the program", () => {
  const keys = new DetachKeys();
  expect(feed(keys, 0x10, 97)).toEqual({ pass: [0x10, 97], detach: false });
  expect(feed(keys, 0x10, 0x10)).toEqual({ pass: [0x10], detach: false });
  expect(feed(keys, 3)).toEqual({ pass: [0x10, 3], detach: false });
});

test("Ctrl-D leaves only where it is said to", () => {
  const data = Buffer.from("a\u0004b");
  expect(new DetachKeys().feed(data)).toEqual({ pass: Uint8Array.from(data), detach: false });
  expect(new DetachKeys(true).feed(data)).toEqual({ pass: Uint8Array.from([0x61]), detach: true });
  expect(new DetachKeys(true).feed(Buffer.from("\u0010\u0004"))).toEqual({
    pass: Uint8Array.from([0x10]),
    detach: true,
  });
});
