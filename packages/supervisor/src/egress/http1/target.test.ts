import { describe, expect, test } from "vitest";
import { HttpParseError } from "./head.ts";
import { canonicalTarget, decodeQuery } from "./target.ts";

describe("canonical targets", () => {
  test.each<[string, string]>([
    ["/", "/"],
    ["/a/b", "/a/b"],
    ["/a//b", "/a/b"],
    ["/a/./b", "/a/b"],
    ["/a/../b", "/b"],
    ["/a/..", "/"],
    ["/a/b/..", "/a/"],
    ["/a/%2e%2e/b", "/b"],
    ["/a/%2E/b", "/a/b"],
    ["/%61", "/a"],
    ["/a;x=y/b", "/a/b"],
    ["/a/..;x/b", "/b"],
    ["/%c3%a9", "/%C3%A9"],
    ["/a/", "/a/"],
    ["/.git/config", "/.git/config"],
    ["/a%2fb", "/a%2Fb"],
    ["/a%3Bb", "/a%3Bb"],
  ])("%s becomes %s", (raw, path) => {
    expect(canonicalTarget(raw).path).toBe(path);
    expect(canonicalTarget(path).path).toBe(path);
  });

  test("encoded slashes are reported, the query is kept byte for byte", () => {
    expect(canonicalTarget("/@scope%2fname?a=%2f+b&&c")).toMatchObject({
      path: "/@scope%2Fname",
      encodedSlash: true,
      query: "a=%2f+b&&c",
    });
  });

  test("absolute form gives up its authority", () => {
    expect(canonicalTarget("HTTP://Example.COM:8080/a?b")).toMatchObject({
      scheme: "http",
      authority: { host: "example.com", port: 8080 },
      path: "/a",
      query: "b",
    });
    expect(canonicalTarget("http://[::1]")).toMatchObject({ authority: { host: "::1", port: 80 }, path: "/" });
  });

  test.each([
    "",
    "*",
    "a",
    "example.com:443",
    "/..",
    "/a/../..",
    "/%2e%2e/",
    "/a%",
    "/a%2",
    "/a%zz",
    "/a%00",
    "/a%0a",
    "/a%7f",
    "/a#b",
    "/a b",
    "/\x80",
    "/a/%2f..",
    "/..%2fa",
    "/a%2f%2e%2e",
    "http:///a",
    "http://user@a/",
    "http://a:b/",
    "http://a:0/",
    "http://127.1/",
    "http://0x7f000001/",
    "ftp://a/",
    `/${"a".repeat(4096)}`,
  ])("%j is refused", (raw) => {
    expect(() => canonicalTarget(raw)).toThrow(HttpParseError);
  });
});

describe("queries", () => {
  test("decode strictly, in order, with repetitions", () => {
    expect(decodeQuery("a=1&b=x+y%2B&a=%c3%a9&c&=d")).toEqual([
      ["a", "1"],
      ["b", "x y+"],
      ["a", "é"],
      ["c", ""],
      ["", "d"],
    ]);
  });

  test.each(["a=%", "a=%g1", "%=a", "a=%ff", "a=%ed%a0%80"])("%j is refused", (query) => {
    expect(() => decodeQuery(query)).toThrow(HttpParseError);
  });
});
