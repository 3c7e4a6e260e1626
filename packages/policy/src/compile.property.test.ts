import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { compilePolicy } from "./compile.ts";
import { compileGlob } from "./globs.ts";
import { EMPTY_ENDPOINT, EMPTY_RULE, type Endpoint, type NetworkRule, type Policy, sortedMap } from "./model.ts";
import { glob, slowConnect, slowRequest } from "./testing/slow-evaluator.ts";

const RUNS = 8000;

const host = fc.constantFrom("a", "a.b", "b.a.b", "x-b.a.b", "a.x-b.b");
const address = fc.constantFrom("10.0.0.7", "8.8.8.8", "2606:4700::1");
const hostPattern = fc.oneof(
  { weight: 6, arbitrary: host },
  { weight: 1, arbitrary: address },
  {
    weight: 5,
    arbitrary: fc.constantFrom("*.b", "**.b", "*.a.b", "*-b.a.b", "x*.a.b", "a.*.b", "**.a.b", "*.0.0.7", "A.B", ""),
  },
);
const port = fc.constantFrom(80, 443, 443, 443);
const binary = fc.constantFrom(
  "/bin/a",
  "/bin/b",
  "/usr/bin/a",
  "/bin/*",
  "/**",
  "/**",
  "/usr/**/a",
  "/bin/[ab]",
  "/usr/bin/{a,b}",
);
const executable = fc.constantFrom("/bin/a", "/bin/b", "/bin/c", "/usr/bin/a", "/usr/bin/b", "/usr/local/bin/a", "/x");
const segment = fc.constantFrom("v1", "v2", "x", "items", "a.b", "");
const path = fc.array(segment, { maxLength: 4 }).map((segments) => `/${segments.join("/")}`);
const patternSegment = fc.oneof(segment, fc.constantFrom("*", "**", "v?", "v[1-2]", "i*s", "[!v]*", "{v1,x}"));
const pathPattern = fc.oneof(
  fc.constantFrom("**", "/**", ""),
  fc.array(patternSegment, { maxLength: 4 }).map((segments) => `/${segments.join("/")}`),
);
const selector = fc.oneof(
  { weight: 3, arbitrary: fc.constantFrom("", "**", "/**") },
  { weight: 2, arbitrary: fc.constantFrom("/v1/**", "/v1", "/v*", "/v1/items/**", "/*/items", "/v[1-2]/**") },
);
const value = fc.constantFrom("open", "open.1", "closed", "1.2.3", "");
const matcher = fc.record({
  any: fc.boolean(),
  globs: fc.array(fc.constantFrom("open*", "**", "1.*", "*", "closed", "?pen", "1.**", ""), {
    minLength: 1,
    maxLength: 2,
  }),
});
const key = fc.constantFrom("q", "state");
const requestRule = fc
  .record({
    method: fc.constantFrom("GET", "post", "*", "HEAD", "DELETE", ""),
    path: pathPattern,
    query: fc.array(fc.tuple(key, matcher), { maxLength: 2 }),
  })
  .map(({ method, path: pattern, query }) => ({ ...EMPTY_RULE, method, path: pattern, query: sortedMap(query) }));

const endpoint: fc.Arbitrary<Endpoint> = fc
  .record({
    host: hostPattern,
    ports: fc.uniqueArray(fc.constantFrom(80, 443), { minLength: 1, maxLength: 2 }),
    path: selector,
    protocol: fc.constantFrom(
      "" as const,
      "rest" as const,
      "rest" as const,
      "rest" as const,
      "graphql" as const,
      "tcp" as const,
    ),
    tls: fc.constantFrom("auto" as const, "skip" as const),
    enforcement: fc.constantFrom("" as const, "enforce" as const, "enforce" as const, "audit" as const),
    access: fc.constantFrom("" as const, "" as const, "read-only" as const, "read-write" as const, "full" as const),
    rules: fc.array(requestRule, { maxLength: 4 }),
    denyRules: fc.array(requestRule, { maxLength: 2 }),
    allowedIps: fc.constantFrom([], [], ["10.0.0.0/8"]),
    allowEncodedSlash: fc.boolean(),
    allowUninspectedCredentials: fc.boolean(),
    advisorProposed: fc.boolean(),
  })
  .map((fields) => ({ ...EMPTY_ENDPOINT, ...fields }));

const rule: fc.Arbitrary<NetworkRule> = fc.record({
  name: fc.constant(""),
  endpoints: fc.array(endpoint, { minLength: 1, maxLength: 4 }),
  binaries: fc.uniqueArray(binary, { maxLength: 3 }),
});

const middleware = fc
  .record({
    onError: fc.constantFrom("" as const, "fail_open" as const, "fail_closed" as const),
    include: fc.array(fc.constantFrom("*.b", "**.b", "a.b", "a"), { minLength: 1, maxLength: 2 }),
    exclude: fc.array(fc.constantFrom("a.b", "*.b"), { maxLength: 1 }),
  })
  .map((fields) => ({ name: "", middleware: "m", order: 0, config: undefined, ...fields }));

const policy: fc.Arbitrary<Policy> = fc
  .record({
    rules: fc.array(fc.tuple(fc.constantFrom("a", "b", "c", "B", "a_1"), rule), { maxLength: 5 }),
    middlewares: fc.array(fc.tuple(fc.constantFrom("m", "n"), middleware), { maxLength: 1 }),
    withMiddleware: fc.integer({ min: 0, max: 2 }),
  })
  .map(({ rules, middlewares, withMiddleware }) => ({
    version: 1,
    networkPolicies: sortedMap(rules),
    networkMiddlewares: sortedMap(withMiddleware === 0 ? middlewares : []),
  }));

const connection = fc.record({
  host: fc.oneof({ weight: 5, arbitrary: host }, { weight: 1, arbitrary: address }),
  port,
  process: fc.record({ exe: executable, ancestors: fc.array(executable, { maxLength: 2 }) }),
});

const request = fc.record({
  method: fc.constantFrom("GET", "get", "POST", "HEAD", "DELETE", "OPTIONS"),
  path,
  query: fc.array(fc.tuple(key, value), { maxLength: 3 }),
  encodedSlash: fc.constantFrom(false, false, false, true),
});

describe("the compiled policy decides as the slow evaluator", () => {
  it("about connections and requests", () => {
    const seen = new Map<string, number>();
    fc.assert(
      fc.property(
        policy,
        fc.array(connection, { minLength: 1, maxLength: 6 }),
        fc.array(request, { maxLength: 6 }),
        (source, connections, requests) => {
          const compiled = compilePolicy(source);
          for (const query of connections) {
            const slow = slowConnect(source, query);
            const fast = compiled.connect(query);
            seen.set(slow.code, (seen.get(slow.code) ?? 0) + 1);
            if (!fast.allowed) {
              expect({ code: fast.code, policy: fast.policy }).toEqual({ code: slow.code, policy: slow.policy });
              continue;
            }
            const { grant: _, ...rest } = fast;
            const { matches: __, code: ___, ...expected } = slow;
            expect(rest).toEqual(expected);
            expect(compiled.connect(query)).toBe(fast);
            for (const asked of requests) {
              const fastRequest = compiled.request(fast.grant, asked);
              const slowAnswer = slowRequest(slow, asked);
              const label = slowAnswer.audited ? "audited" : `request ${slowAnswer.code}`;
              seen.set(label, (seen.get(label) ?? 0) + 1);
              expect({
                allowed: fastRequest.allowed,
                code: fastRequest.allowed ? "" : fastRequest.code,
                policy: fastRequest.policy,
                endpoint: fastRequest.endpoint,
                audited: fastRequest.audited,
              }).toEqual(slowAnswer);
            }
          }
        },
      ),
      { numRuns: RUNS },
    );
    // A generator that never reaches a branch proves nothing about it.
    for (const code of [
      "no_policy",
      "endpoint_not_allowed",
      "binary_not_allowed",
      "unsupported_protocol",
      "unsupported_middleware",
      "",
      "audited",
      "request ",
      "request deny_rule",
      "request not_permitted",
      "request path_not_matched",
      "request encoded_slash",
      "request unsupported_protocol",
    ]) {
      expect([code, seen.get(code) ?? 0]).toSatisfy(([, count]: [string, number]) => count > 50);
    }
  }, 120_000);
});

describe("globs match as their translation to regular expressions", () => {
  const piece = fc.constantFrom("a", "b", "/", ".", "*", "**", "?", "[ab]", "[!a]", "[a-c]", "{a,b/a}", "é", "😀");
  const text = fc.array(fc.constantFrom("a", "b", "c", "/", "."), { maxLength: 8 }).map((parts) => parts.join(""));
  it.each(["/", ".", ""] as const)(
    "with separator '%s'",
    (separator) => {
      fc.assert(
        fc.property(fc.array(piece, { maxLength: 6 }), text, (parts, candidate) => {
          const pattern = parts.join("");
          const compiled = compileGlob(pattern, separator);
          if ("error" in compiled) throw new Error(compiled.error);
          expect(compiled.matches(candidate)).toBe(glob(pattern, separator, candidate));
        }),
        { numRuns: 20_000 },
      );
    },
    60_000,
  );
});
