import { describe, expect, it } from "vitest";
import { escapeUntrusted } from "./escape.ts";

describe("escapeUntrusted", () => {
  it("leaves ordinary text, umlauts and emoji alone", () => {
    expect(escapeUntrusted("häuser /usr/bin/ok 🏠")).toBe("häuser /usr/bin/ok 🏠");
  });
  it("does not let a name forge a second log line", () => {
    expect(escapeUntrusted("a\nALLOWED b\r\u2028c")).toBe("a\\x0aALLOWED b\\x0d\\u2028c");
  });
  it("shows terminal escapes, C1 controls and bidi overrides", () => {
    expect(escapeUntrusted("\u001b[31m\u009b\u202eexe.txt")).toBe("\\x1b[31m\\x9b\\u202eexe.txt");
  });
  it("cuts at the limit", () => {
    expect(escapeUntrusted("x".repeat(600), 10)).toBe(`${"x".repeat(10)}…`);
  });
});
