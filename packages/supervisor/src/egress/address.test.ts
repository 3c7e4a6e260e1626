import { isIP } from "node:net";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { contains, embeddedIpv4, formatAddress, overlaps, parseAddress, parseCidr } from "./address.ts";

function canonical(text: string): string | undefined {
  const bytes = parseAddress(text);
  return bytes === undefined ? undefined : formatAddress(bytes);
}

describe("addresses", () => {
  test.each<[string, string | undefined]>([
    ["1.2.3.4", "1.2.3.4"],
    ["255.255.255.255", "255.255.255.255"],
    ["::ffff:127.0.0.1", "127.0.0.1"],
    ["::ffff:7f00:1", "127.0.0.1"],
    ["0:0:0:0:0:ffff:127.0.0.1", "127.0.0.1"],
    ["2001:DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1"],
    ["::", "::"],
    ["::1", "::1"],
    ["1::", "1::"],
    ["64:ff9b::127.0.0.1", "64:ff9b::7f00:1"],
    ["01.2.3.4", undefined],
    ["1.2.3", undefined],
    ["127.1", undefined],
    ["1.2.3.256", undefined],
    ["0x7f.0.0.1", undefined],
    ["2130706433", undefined],
    [" 1.2.3.4", undefined],
    ["1.2.3.4 ", undefined],
    ["::1%lo", undefined],
    [":::", undefined],
    ["1::2::3", undefined],
    ["1:2:3:4:5:6:7", undefined],
    ["1:2:3:4:5:6:7:8:9", undefined],
    ["12345::", undefined],
    ["::1.2.3", undefined],
    ["1.2.3.4::", undefined],
    ["", undefined],
  ])("%j is %j", (text, expected) => {
    expect(canonical(text)).toBe(expected);
  });

  test("what Node takes for an address we read, and format to the same one", () => {
    fc.assert(
      fc.property(fc.oneof(fc.ipV4(), fc.ipV6()), (text) => {
        expect(isIP(text)).not.toBe(0);
        const once = canonical(text);
        expect(once).toBeDefined();
        expect(canonical(once!)).toBe(once);
      }),
      { seed: 3, numRuns: 500 },
    );
  });

  test("transition forms show the address inside", () => {
    const inner = (text: string): string | undefined => {
      const bytes = embeddedIpv4(parseAddress(text)!);
      return bytes === undefined ? undefined : formatAddress(bytes);
    };
    expect(inner("64:ff9b::a00:1")).toBe("10.0.0.1");
    expect(inner("2002:7f00:1::")).toBe("127.0.0.1");
    expect(inner("2001:0:4136:e378:8000:63bf:80ff:fffe")).toBe("127.0.0.1");
    expect(inner("::127.0.0.1")).toBe("127.0.0.1");
    expect(inner("fe80::5efe:a00:1")).toBe("10.0.0.1");
    expect(inner("2606:4700::1111")).toBeUndefined();
  });
});

describe("networks", () => {
  test("contain by prefix", () => {
    const inside = (network: string, address: string): boolean => contains(parseCidr(network)!, parseAddress(address)!);
    expect(inside("10.0.0.0/8", "10.255.0.1")).toBe(true);
    expect(inside("10.0.0.0/8", "11.0.0.1")).toBe(false);
    expect(inside("172.16.0.0/12", "172.31.255.255")).toBe(true);
    expect(inside("172.16.0.0/12", "172.32.0.0")).toBe(false);
    expect(inside("0.0.0.0/0", "1.2.3.4")).toBe(true);
    expect(inside("10.0.0.0/8", "::1")).toBe(false);
    expect(inside("::ffff:10.0.0.0/104", "10.9.9.9")).toBe(true);
    expect(inside("1.2.3.4", "1.2.3.4")).toBe(true);
  });

  test("overlap when one holds the other", () => {
    expect(overlaps(parseCidr("127.0.0.0/8")!, parseCidr("0.0.0.0/0")!)).toBe(true);
    expect(overlaps(parseCidr("127.0.0.1")!, parseCidr("127.0.0.0/8")!)).toBe(true);
    expect(overlaps(parseCidr("10.0.0.0/8")!, parseCidr("127.0.0.0/8")!)).toBe(false);
  });

  test.each(["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/8/8", "a/8", "::/129", "::ffff:1.2.3.4/90"])(
    "%s is none",
    (text) => {
      expect(parseCidr(text)).toBeUndefined();
    },
  );
});
