import { describe, expect, test } from "vitest";
import { formatAuthority, normaliseHost, parseAuthority } from "./host-name.ts";

describe("host names", () => {
  test.each<[string, string | undefined]>([
    ["Example.COM", "example.com"],
    ["example.com.", "example.com"],
    ["a_b.example", "a_b.example"],
    ["[::FFFF:1.2.3.4]", "1.2.3.4"],
    ["[2001:DB8::1]", "2001:db8::1"],
    ["127.0.0.1", "127.0.0.1"],
    ["127.0.0.1.", "127.0.0.1"],
    ["1.2.3.4.example.com", "1.2.3.4.example.com"],
    ["localhost", "localhost"],
    ["example.com..", undefined],
    [".example.com", undefined],
    ["a..b", undefined],
    ["-a.com", undefined],
    ["a-.com", undefined],
    ["127.1", undefined],
    ["2130706433", undefined],
    ["0x7f000001", undefined],
    ["0x7f.1", undefined],
    ["0177.0.0.1", undefined],
    ["127.0.0.01", undefined],
    ["example.0x1", undefined],
    ["a b", undefined],
    ["a\0b", undefined],
    ["a%2eb", undefined],
    ["münchen.de", undefined],
    ["ⓔxample.com", undefined],
    ["１２７.0.0.1", undefined],
    ["[1.2.3.4]", undefined],
    ["[::1", undefined],
    ["[::1%25lo]", undefined],
    [`${"a".repeat(64)}.com`, undefined],
    [`${"a.".repeat(127)}com`, undefined],
    ["", undefined],
    [".", undefined],
  ])("%j is %j", (text, expected) => {
    expect(normaliseHost(text)).toBe(expected);
  });
});

describe("authorities", () => {
  test.each<[string, number | undefined, string | undefined]>([
    ["example.com:443", undefined, "example.com:443"],
    ["example.com", 443, "example.com:443"],
    ["example.com:", 443, "example.com:443"],
    ["[::1]:65535", undefined, "[::1]:65535"],
    ["[::1]", 80, "[::1]:80"],
    ["example.com", undefined, undefined],
    ["example.com:", undefined, undefined],
    ["example.com:0", 80, undefined],
    ["example.com:65536", 80, undefined],
    ["example.com:+80", 80, undefined],
    ["example.com:80:80", 80, undefined],
    ["::1:80", 80, undefined],
    ["[::1]x:80", 80, undefined],
    ["user@example.com:80", 80, undefined],
    [":80", 80, undefined],
  ])("%j with default %j is %j", (text, defaultPort, expected) => {
    const parsed = parseAuthority(text, defaultPort);
    expect(parsed === undefined ? undefined : formatAuthority(parsed)).toBe(expected);
  });

  test("the scheme's own port is left out", () => {
    expect(formatAuthority({ host: "::1", port: 443 }, 443)).toBe("[::1]");
  });
});
