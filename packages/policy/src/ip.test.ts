import { BlockList } from "node:net";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { ALWAYS_BLOCKED, canonicalHost, cidrContains, cidrsOverlap, formatIp, parseCidr, parseIp } from "./ip.ts";

describe("addresses", () => {
  it.each([
    "1.2.3",
    "1.2.3.4.5",
    "01.2.3.4",
    "256.1.1.1",
    "0x7f.0.0.1",
    "1.2.3.4 ",
    "::1::",
    ":::",
    "1:2:3:4:5:6:7",
    "1:2:3:4:5:6:7:8:9",
    "g::",
    "12345::",
    "::1.2.3",
    "fe80::1%eth0",
    "[::1]",
    "",
    "a",
  ])("%j is none", (text) => {
    expect(parseIp(text)).toBeUndefined();
  });

  it("have the canonical text that URLs give them", () => {
    fc.assert(
      fc.property(
        fc.oneof(
          fc.ipV6(),
          fc
            .array(fc.constantFrom("0", "1", "ab", "00ff"), { minLength: 8, maxLength: 8 })
            .map((groups) => groups.join(":")),
        ),
        (text) => {
          const address = parseIp(text);
          expect(address && formatIp(address)).toBe(new URL(`http://[${text}]/`).hostname.slice(1, -1));
        },
      ),
    );
    fc.assert(
      fc.property(fc.ipV4(), (text) => {
        const address = parseIp(text);
        expect(address && formatIp(address)).toBe(text);
      }),
    );
  });

  it.each([
    ["EXAMPLE.com.", "example.com"],
    ["[2001:DB8::0:1]", "2001:db8::1"],
    ["::ffff:1.2.3.4", "::ffff:102:304"],
    ["10.0.0.7", "10.0.0.7"],
    ["example.com", "example.com"],
  ])("canonicalHost(%s) is %s", (host, expected) => {
    expect(canonicalHost(host)).toBe(expected);
    expect(canonicalHost(canonicalHost(host))).toBe(expected);
  });
});

describe("blocks", () => {
  it.each(["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/08x", "::/129", "x/8", "10.0.0.0/8/8"])(
    "%s is none",
    (text) => {
      expect(parseCidr(text)).toBeUndefined();
    },
  );

  it("contain what the platform's block list contains", () => {
    fc.assert(
      fc.property(fc.ipV4(), fc.nat(32), fc.ipV4(), (base, prefix, candidate) => {
        const list = new BlockList();
        list.addSubnet(base, prefix, "ipv4");
        const block = parseCidr(`${base}/${prefix}`);
        expect(cidrContains(block as never, parseIp(candidate) as never)).toBe(list.check(candidate, "ipv4"));
      }),
    );
    fc.assert(
      fc.property(fc.ipV6(), fc.nat(128), fc.ipV6(), fc.boolean(), (base, prefix, other, same) => {
        const candidate = same ? base : other;
        const list = new BlockList();
        list.addSubnet(base, prefix, "ipv6");
        const block = parseCidr(`${base}/${prefix}`);
        expect(cidrContains(block as never, parseIp(candidate) as never)).toBe(list.check(candidate, "ipv6"));
      }),
    );
  });

  it("overlap in both directions, never over families", () => {
    const overlap = (a: string, b: string): boolean => cidrsOverlap(parseCidr(a) as never, parseCidr(b) as never);
    expect(overlap("10.0.0.0/8", "10.1.0.0/16")).toBe(true);
    expect(overlap("10.1.0.0/16", "10.0.0.0/8")).toBe(true);
    expect(overlap("10.1.0.0/16", "10.2.0.0/16")).toBe(false);
    expect(overlap("0.0.0.0/0", "::/0")).toBe(false);
  });

  it.each([
    "127.0.0.1",
    "127.255.0.1",
    "0.0.0.0",
    "169.254.169.254",
    "::",
    "::1",
    "fe80::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0.0.0.0",
  ])("%s is always blocked", (text) => {
    expect(ALWAYS_BLOCKED.some((block) => cidrContains(block, parseIp(text) as never))).toBe(true);
  });

  it.each(["10.0.0.1", "8.8.8.8", "2606:4700::1", "fc00::1", "::ffff:8.8.8.8"])("%s is not", (text) => {
    expect(ALWAYS_BLOCKED.some((block) => cidrContains(block, parseIp(text) as never))).toBe(false);
  });
});
