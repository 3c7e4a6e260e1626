import { describe, expect, it } from "vitest";
import {
  containsMarker,
  formatPlaceholder,
  isReservedName,
  parsePlaceholder,
  redactPlaceholders,
  splitPlaceholders,
} from "./placeholder.ts";

const handle = "0123456789abcdef".repeat(4);

describe("placeholders", () => {
  it.each([
    ["openshell:resolve:env:KEY", { key: "KEY", epoch: undefined, handle: undefined, alias: false }],
    ["openshell:resolve:env:v12_MY_KEY", { key: "MY_KEY", epoch: "12", handle: undefined, alias: false }],
    [`openshell:resolve:env:s${handle}_K`, { key: "K", epoch: undefined, handle, alias: false }],
    ["sk-OPENSHELL-RESOLVE-ENV-v3_KEY", { key: "KEY", epoch: "3", handle: undefined, alias: true }],
    ["openshell:resolve:env:vault_KEY", { key: "vault_KEY", epoch: undefined, handle: undefined, alias: false }],
  ])("%s", (text, expected) => {
    expect(parsePlaceholder(text)).toEqual(expected);
    if (!expected.alias) expect(formatPlaceholder(expected.key, expected.epoch, expected.handle)).toBe(text);
  });

  it.each([
    "",
    "KEY",
    "openshell:resolve:env:",
    "openshell:resolve:env:9KEY",
    "openshell:resolve:env:A-B",
    "OPENSHELL-RESOLVE-ENV-KEY",
    "x openshell:resolve:env:KEY",
    "openshell:resolve:env:KEY ",
    "Openshell:resolve:env:KEY",
  ])("%j is none", (text) => {
    expect(parsePlaceholder(text)).toBeUndefined();
  });

  it("names that look qualified are reserved", () => {
    expect(["v1_KEY", `s${handle}_KEY`].map(isReservedName)).toEqual([true, true]);
    expect(["v_KEY", "V1_KEY", "s123_KEY", "KEY"].map(isReservedName)).toEqual([false, false, false, false]);
  });

  it("are found inside a text", () => {
    expect(
      splitPlaceholders("a:openshell:resolve:env:v1_K:b").map(({ text, placeholder }) => [text, placeholder?.key]),
    ).toEqual([
      ["a:", undefined],
      ["openshell:resolve:env:v1_K", "K"],
      [":b", undefined],
    ]);
  });

  it("are redacted in every form", () => {
    expect(redactPlaceholders(`/x/openshell:resolve:env:v1_K/sk-OPENSHELL-RESOLVE-ENV-K?`, "[CREDENTIAL]")).toBe(
      "/x/[CREDENTIAL]/[CREDENTIAL]?",
    );
  });
});

describe("markers", () => {
  it.each([
    ["openshell:resolve:env:K", true],
    ["x-OPENSHELL-RESOLVE-ENV-K", true],
    ["openshell%3Aresolve%3aenv%3AK", true],
    ["%6f%70%65%6e%73%68%65%6c%6c%3a%72%65%73%6f%6c%76%65%3a%65%6e%76%3a", true],
    ["openshell%253Aresolve%253Aenv%253AK", true],
    ["openshell resolve env", false],
    ["100%", false],
    ["%zz%3", false],
  ])("%s: %s", (text, expected) => {
    expect(containsMarker(text)).toBe(expected);
  });
});
