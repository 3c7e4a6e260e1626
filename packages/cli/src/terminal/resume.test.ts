import { expect, test } from "vitest";
import { RpcError } from "../transport/rpc-error.ts";
import { LostError, REATTACH_LIMIT_MS, Resume } from "./resume.ts";

const lost = new RpcError("unavailable", "gone");
const bytes = (text: string): Buffer => Buffer.from(text);
const text = (data: Uint8Array): string => Buffer.from(data).toString();

test("what was written before a loss is left out of the repetition, whatever the chunks", () => {
  for (const cut of [1, 2, 3, 7]) {
    const resume = new Resume(false);
    expect(text(resume.take(bytes("abc")))).toBe("abc");
    expect(text(resume.take(bytes("def")))).toBe("def");
    expect(resume.retryAfter(lost)).toBeGreaterThan(0);
    const repetition = "abcdefghi";
    let fresh = "";
    for (let at = 0; at < repetition.length; at += cut)
      fresh += text(resume.take(bytes(repetition.slice(at, at + cut))));
    expect(fresh).toBe("ghi");
    expect(resume.retryAfter(lost)).toBeGreaterThan(0);
    expect(text(resume.take(bytes("abcdefghij")))).toBe("j");
  }
});

test("other failures are no loss", () => {
  const resume = new Resume(false);
  expect(resume.retryAfter(new RpcError("failed_precondition", "ended"))).toBeUndefined();
  expect(resume.retryAfter(new Error("bug"))).toBeUndefined();
  expect(resume.retryAfter(lost)).toBeGreaterThan(0);
});

test("where nobody can tell what arrived, the attachment is given up", () => {
  const withInput = new Resume(false);
  withInput.take(bytes("a"));
  withInput.sentInput();
  expect(() => withInput.retryAfter(lost)).toThrow(LostError);
  const long = new Resume(false);
  long.take(Buffer.alloc(600 * 1024));
  expect(() => long.retryAfter(lost)).toThrow(LostError);
  const other = new Resume(false);
  other.take(bytes("abc"));
  other.retryAfter(lost);
  expect(() => other.take(bytes("xyz"))).toThrow(LostError);
});

test("a terminal goes on in any case", () => {
  const resume = new Resume(true);
  resume.sentInput();
  resume.take(bytes("abc"));
  expect(resume.retryAfter(lost)).toBeGreaterThan(0);
  expect(text(resume.take(bytes("xyz")))).toBe("xyz");
  resume.take(Buffer.alloc(600 * 1024));
  expect(resume.retryAfter(lost)).toBeGreaterThan(0);
});

test("it ends", () => {
  const resume = new Resume(true);
  expect(resume.retryAfter(lost, 1000)).toBe(50);
  expect(resume.retryAfter(lost, 2000)).toBe(100);
  expect(() => resume.retryAfter(lost, 1001 + REATTACH_LIMIT_MS)).toThrow(LostError);
});
