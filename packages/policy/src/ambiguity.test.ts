import { describe, expect, it } from "vitest";
import { hostPatternsOverlap, pathPatternsOverlap } from "./glob-overlap.ts";
import { parsePolicy } from "./parse.ts";

const two = (a: string, b: string): string[] => {
  const rule = (name: string, fields: string): string =>
    `  ${name}: {endpoints: [{${fields}}], binaries: [/usr/bin/${name}]}\n`;
  const result = parsePolicy(`version: 1\nnetwork_policies:\n${rule("a", a)}${rule("b", b)}`);
  return result.ok ? [] : result.violations.map((violation) => `${violation.code} ${violation.message}`);
};
const api = "host: api.example.com, port: 443";
const ambiguous = (field: string) => [
  expect.stringMatching(new RegExp(`^endpoint_ambiguity network endpoint ambiguity validation failed: .*${field}`)),
];

describe("endpoints that contradict each other", () => {
  it.each([
    ["one sets allowed_ips", api, `${api}, allowed_ips: [10.0.0.0/8]`, "allowed_ips"],
    ["tls auto and skip", api, `${api}, tls: skip`, "tls=auto vs skip"],
    [
      "enforcement",
      `${api}, protocol: rest, access: full`,
      `${api}, protocol: rest, access: full, enforcement: enforce`,
      "enforcement=audit vs enforce",
    ],
    [
      "exact and wildcard",
      `${api}, protocol: rest, access: full`,
      `host: "*.example.com", port: 443, protocol: graphql, access: full`,
      "protocol=rest vs graphql",
    ],
    ["two wildcards", `host: "a*.example.com", port: 443, tls: skip`, `host: "*i.example.com", port: 443`, "tls"],
    ["no host", `port: 443, allowed_ips: [10.0.0.0/8]`, api, "allowed_ips"],
    [
      "overlapping classes in paths",
      `${api}, path: "/[a-m]x", protocol: rest, access: full`,
      `${api}, path: "/[k-z]x", protocol: rest, access: full, enforcement: enforce`,
      "enforcement",
    ],
    [
      "binding",
      `${api}, credential_binding: {provider: a}`,
      `${api}, credential_binding: {provider: b}`,
      "credential_binding",
    ],
    [
      "one of several ports",
      `host: api.example.com, ports: [443, 80], tls: skip`,
      `host: api.example.com, ports: [80, 81]`,
      "ports \\[80\\]",
    ],
  ])("%s", (_, a, b, field) => {
    expect(two(a, b)).toEqual(ambiguous(field));
  });

  it.each([
    ["other ports", api, "host: api.example.com, port: 444, tls: skip"],
    ["other hosts", api, "host: www.example.com, port: 443, tls: skip"],
    ["plain bytes beside requests", api, `${api}, protocol: rest, access: full, enforcement: enforce`],
    ["identical endpoints", `${api}, protocol: rest, access: full`, `${api}, protocol: rest, access: read-only`],
    [
      "a more specific path",
      `${api}, protocol: rest, access: full`,
      `${api}, path: /v1/**, protocol: rest, access: full, enforcement: enforce`,
    ],
    [
      "disjoint paths",
      `${api}, path: /ab, protocol: rest, access: full`,
      `${api}, path: /cd, protocol: graphql, access: full`,
    ],
    [
      "disjoint classes",
      `${api}, path: "/[a-c]x", protocol: rest, access: full`,
      `${api}, path: "/[d-f]x", protocol: graphql, access: full`,
    ],
    ["disjoint wildcards", `host: "a*.example.com", port: 443, tls: skip`, `host: "b*.example.com", port: 443`],
    ["the wildcard's apex", `host: example.com, port: 443, tls: skip`, `host: "*.example.com", port: 443`],
  ])("not %s", (_, a, b) => {
    expect(two(a, b)).toEqual([]);
  });

  it("stays bounded with many overlapping endpoints", () => {
    const parsed = (host: (n: number) => string) => {
      const endpoint = (n: number) => `{host: ${host(n)}, port: 443, path: /p${n}, protocol: rest, access: full}`;
      const endpoints = Array.from({ length: 9000 }, (_, n) => endpoint(n));
      const text = `{version: 1, network_policies: {r: {endpoints: [${endpoints}], binaries: [/x]}}}`;
      const started = performance.now();
      return { result: parsePolicy(text), took: () => performance.now() - started };
    };
    const apart = parsed((n) => `a${n}.example`);
    const reading = apart.took();
    expect(apart.result.ok).toBe(true);
    const { result, took } = parsed(() => "a.example");
    // Beside reading as many: what compares all of them for ever takes a hundred times as long.
    expect(took()).toBeLessThan(10 * reading);
    expect(result.ok ? "" : result.violations[0]?.message).toContain("too many overlapping endpoints");
  });
});

describe("overlap of patterns", () => {
  it.each([
    ["*.a.b", "x.a.b", true],
    ["*.a.b", "a.b", false],
    ["**.b", "x.y.b", true],
    ["**.b", "*.b", true],
    ["**.a.b", "*.b", false],
    ["**.b", "**.a.b", true],
    ["x*.a.b", "*y.a.b", true],
    ["x*.a.b", "y*.a.b", false],
    ["*.s3.*.b", "**.eu.b", true],
    ["*.s3.*.b", "x.s4.eu.b", false],
    ["", "x", true],
  ])("hosts %s and %s: %s", (a, b, expected) => {
    expect(hostPatternsOverlap(a, b)).toBe(expected);
    expect(hostPatternsOverlap(b, a)).toBe(expected);
  });

  it.each([
    ["/v1/**", "/v1", true],
    ["/v1/**", "/v2", false],
    ["/v*", "/v1/x", true],
    ["/a*b", "/ac", false],
    ["/a?", "/a[xy]", true],
    ["/a[!x]", "/ax", false],
    ["/{a,b}", "/b", true],
    ["/[", "/x", true],
  ])("paths %s and %s: %s", (a, b, expected) => {
    expect(pathPatternsOverlap(a, b)).toBe(expected);
    expect(pathPatternsOverlap(b, a)).toBe(expected);
  });
});
