import { describe, expect, test } from "vitest";
import { parseAddress } from "./address.ts";
import {
  checkDestination,
  type DestinationRules,
  isAlwaysBlocked,
  isInternal,
  parseDeniedEndpoint,
  parseDeniedName,
} from "./destination.ts";

const rules: DestinationRules = { alwaysDenied: [], deniedNames: new Set(), ownAddresses: () => [] };

function check(
  host: string,
  port: number,
  addresses: string[],
  grant: { allowedIps?: string[]; exactHost?: boolean } = {},
  over = rules,
) {
  const decision = checkDestination(
    { host, port, addresses: addresses.map((address) => parseAddress(address)!) },
    { allowedIps: grant.allowedIps, exactHost: grant.exactHost ?? false },
    over,
  );
  return decision.allowed ? "allowed" : decision.kind;
}

describe("addresses by kind", () => {
  test.each([
    "127.0.0.1",
    "127.255.255.255",
    "::1",
    "::ffff:127.0.0.1",
    "169.254.169.254",
    "::ffff:169.254.169.254",
    "fe80::1",
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "::127.0.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "240.0.0.1",
    "ff02::1",
  ])("%s is blocked in every mode", (address) => {
    expect(isAlwaysBlocked(parseAddress(address)!)).toBe(true);
    expect(check("h.example", 443, [address], { exactHost: true })).toBe("declared endpoint check failed");
    expect(check("h.example", 443, [address], { allowedIps: ["10.0.0.0/8"] })).toBe("allowed_ips check failed");
    expect(check("h.example", 443, [address])).toBe("internal address");
    expect(check(address, 443, [address])).toBe("declared endpoint check failed");
  });

  test.each([
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "192.0.0.1",
    "192.0.2.1",
    "198.51.100.1",
    "203.0.113.1",
    "198.18.0.1",
    "198.19.255.255",
    "fc00::1",
    "fd12::1",
    "fec0::1",
    "2001:db8::1",
    "64:ff9b::a00:1",
    "2002:a00:1::",
    "::10.0.0.1",
    "::ffff:10.0.0.1",
  ])("%s is internal", (address) => {
    expect(isInternal(parseAddress(address)!)).toBe(true);
    expect(check("h.example", 443, [address])).toBe("internal address");
  });

  test.each(["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101"])(
    "%s is public",
    (address) => {
      expect(isInternal(parseAddress(address)!)).toBe(false);
      expect(check("h.example", 443, [address])).toBe("allowed");
    },
  );
});

describe("modes", () => {
  test("one bad address among good ones refuses all", () => {
    expect(check("h.example", 443, ["1.1.1.1", "10.0.0.1"])).toBe("internal address");
  });

  test("a literally named host may be private, an address literal as well", () => {
    expect(check("h.example", 443, ["10.0.0.1"], { exactHost: true })).toBe("allowed");
    expect(check("10.0.0.1", 443, ["10.0.0.1"])).toBe("allowed");
  });

  test("allowed_ips decide alone", () => {
    expect(check("h.example", 443, ["10.0.0.1"], { allowedIps: ["10.0.0.0/8"] })).toBe("allowed");
    expect(check("h.example", 443, ["1.1.1.1"], { allowedIps: ["10.0.0.0/8"], exactHost: true })).toBe(
      "allowed_ips check failed",
    );
    expect(check("h.example", 443, ["10.0.0.1", "11.0.0.1"], { allowedIps: ["10.0.0.0/8"] })).toBe(
      "allowed_ips check failed",
    );
  });

  test.each(["0.0.0.0/0", "127.0.0.1", "169.254.0.0/16", "::/0", "fe80::/10", "nonsense", "10.0.0.0/40"])(
    "the entry %s spoils the list",
    (entry) => {
      expect(check("h.example", 443, ["10.0.0.1"], { allowedIps: ["10.0.0.0/8", entry] })).toBe(
        "invalid allowed_ips in policy",
      );
    },
  );

  test.each([2379, 2380, 6443, 10250, 10255])("control-plane port %i is refused on declared destinations", (port) => {
    expect(check("h.example", port, ["1.1.1.1"], { exactHost: true })).toBe("declared endpoint check failed");
    expect(check("1.1.1.1", port, ["1.1.1.1"])).toBe("declared endpoint check failed");
    expect(check("h.example", port, ["10.0.0.1"], { allowedIps: ["10.0.0.0/8"] })).toBe("allowed_ips check failed");
  });

  test("a pattern never leads to an address of this machine, public or not", () => {
    const over: DestinationRules = {
      alwaysDenied: [],
      deniedNames: new Set<string>(),
      ownAddresses: () => ["28.1.2.3", "2d00::5"],
    };
    expect(check("h.example", 443, ["28.1.2.3"], {}, over)).toBe("internal address");
    expect(check("h.example", 443, ["28.1.2.4", "2d00::5"], {}, over)).toBe("internal address");
    expect(check("h.example", 443, ["28.1.2.4"], {}, over)).toBe("allowed");
    expect(check("h.example", 443, ["28.1.2.3"], { exactHost: true }, over)).toBe("allowed");
    expect(check("h.example", 443, ["28.1.2.3"], { allowedIps: ["28.1.2.0/24"] }, over)).toBe("allowed");
  });

  test("no address at all is refused", () => {
    expect(check("h.example", 443, [])).toBe("internal address");
  });
});

describe("endpoints that no policy opens", () => {
  const denied = (texts: string[], own: string[] = []) => ({
    alwaysDenied: texts.map((text) => parseDeniedEndpoint(text)!),
    deniedNames: new Set<string>(),
    ownAddresses: () => own,
  });

  test("by address and port, by address alone, in any spelling", () => {
    const over = denied(["10.0.0.5:17670", "10.0.0.6", "[fd00::5]:53"]);
    expect(check("h.example", 17670, ["10.0.0.5"], { exactHost: true }, over)).toBe("internal address");
    expect(check("h.example", 443, ["10.0.0.5"], { exactHost: true }, over)).toBe("allowed");
    expect(check("h.example", 443, ["10.0.0.6"], { allowedIps: ["10.0.0.0/8"] }, over)).toBe("internal address");
    expect(check("h.example", 443, ["64:ff9b::a00:6"], { exactHost: true }, over)).toBe("internal address");
    expect(check("h.example", 53, ["fd00::5"], { exactHost: true }, over)).toBe("internal address");
  });

  test("a listener on all addresses is every address of the machine", () => {
    const over = denied(["0.0.0.0:17670"], ["10.0.0.9", "fd00::9"]);
    expect(check("h.example", 17670, ["10.0.0.9"], { exactHost: true }, over)).toBe("internal address");
    expect(check("h.example", 17670, ["fd00::9"], { exactHost: true }, over)).toBe("internal address");
    expect(check("h.example", 17670, ["10.0.0.8"], { exactHost: true }, over)).toBe("allowed");
  });

  test("are IP, IP:port or [IPv6]:port", () => {
    expect(parseDeniedEndpoint("host:1")).toBeUndefined();
    expect(parseDeniedEndpoint("1.2.3.4:x")).toBeUndefined();
    expect(parseDeniedEndpoint("fd00::1")).toMatchObject({ port: undefined });
  });

  test("by name, on its port and in every spelling", () => {
    const named: DestinationRules = { ...rules, deniedNames: new Set([parseDeniedName("Guard.Example.:8443")!]) };
    const grant = { allowedIps: undefined, exactHost: true };
    const addresses = [parseAddress("93.184.216.34")!];
    const check = (host: string, port: number) => checkDestination({ host, port, addresses }, grant, named).allowed;
    expect([check("guard.example", 8443), check("guard.example", 443), check("a.example", 8443)]).toEqual([
      false,
      true,
      true,
    ]);
    for (const text of ["10.0.0.1:80", "[::1]:80", "a", "a:b", ":1", "a b:1"])
      expect(parseDeniedName(text)).toBeUndefined();
  });
});
