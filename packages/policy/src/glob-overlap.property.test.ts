import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { hostPatternsOverlap, pathPatternsOverlap } from "./glob-overlap.ts";
import { compileGlob } from "./globs.ts";
import { HostTrie } from "./host-pattern.ts";
import { compilePathSelector } from "./path-selector.ts";

const hostPattern = fc
  .tuple(
    fc.constantFrom("", "**.", "*.", "a*.", "*b.", "a*b."),
    fc.array(fc.constantFrom("a", "b", "ab", "*"), { minLength: 1, maxLength: 3 }),
  )
  .map(([first, rest]) => first + rest.join("."));
const host = fc
  .array(fc.constantFrom("a", "b", "ab", "aab"), { minLength: 1, maxLength: 4 })
  .map((labels) => labels.join("."));
const pathPattern = fc
  .array(fc.constantFrom("/", "a", "b", "*", "?", "[ab]", "[!a]", "{a,b/}", "/**"), { maxLength: 5 })
  .map((parts) => `/${parts.join("")}`);
const path = fc.array(fc.constantFrom("/", "a", "b", "c"), { maxLength: 6 }).map((parts) => `/${parts.join("")}`);

describe("whatever two patterns both match, they are known to overlap on", () => {
  it("hosts", () => {
    let shared = 0;
    fc.assert(
      fc.property(hostPattern, hostPattern, fc.array(host, { minLength: 5, maxLength: 20 }), (a, b, hosts) => {
        const both = hosts.some((name) =>
          [a, b].every((pattern) => {
            const glob = compileGlob(pattern, ".");
            return !("error" in glob) && glob.matches(name);
          }),
        );
        if (!both) return;
        shared += 1;
        expect(hostPatternsOverlap(a, b)).toBe(true);
      }),
      { numRuns: 5000 },
    );
    expect(shared).toBeGreaterThan(100);
  });

  it("paths", () => {
    let shared = 0;
    fc.assert(
      fc.property(pathPattern, pathPattern, fc.array(path, { minLength: 5, maxLength: 20 }), (a, b, paths) => {
        const selectors = [a, b].map(compilePathSelector);
        if (!paths.some((candidate) => selectors.every((selector) => selector.matches(candidate)))) return;
        shared += 1;
        expect(pathPatternsOverlap(a, b)).toBe(true);
      }),
      { numRuns: 5000 },
    );
    expect(shared).toBeGreaterThan(100);
  });

  it("and patterns without wildcards overlap only when equal", () => {
    fc.assert(fc.property(host, host, (a, b) => hostPatternsOverlap(a, b) === (a === b)));
  });
});

describe("the trie of host patterns", () => {
  it("finds exactly the patterns that match", () => {
    fc.assert(
      fc.property(fc.array(hostPattern, { maxLength: 12 }), host, (patterns, name) => {
        const trie = new HostTrie();
        for (const [id, pattern] of patterns.entries()) trie.add(pattern, id);
        const expected = patterns.flatMap((pattern, id) => {
          const glob = compileGlob(pattern, ".");
          return !("error" in glob) && glob.matches(name) ? [id] : [];
        });
        expect(trie.find(name).sort((x, y) => x - y)).toEqual(expected);
      }),
      { numRuns: 3000 },
    );
  });
});
