import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { stringify } from "yaml";
import { canonicalTarget, parseQuery } from "./canonical-target.ts";
import { compilePolicy } from "./compile.ts";
import { policyHash } from "./hash.ts";
import { parsePolicy } from "./parse.ts";
import { policyFromProto, policyToProto } from "./proto.ts";
import { serializePolicy } from "./serialize.ts";
import { EVERY_KEY } from "./testing/policies.ts";

/** The text with some of its lines and characters changed: most results are wrong in ways nobody thought of. */
const mutated = fc
  .tuple(
    fc.array(
      fc.tuple(
        fc.nat(EVERY_KEY.length - 1),
        fc.constantFrom("", ":", " ", "\n", "[", "}", "*", "&a", "*a", "-", '"', "1", "x: "),
      ),
      { minLength: 1, maxLength: 4 },
    ),
  )
  .map(([changes]) => {
    let text = EVERY_KEY;
    for (const [at, insert] of changes) text = text.slice(0, at) + insert + text.slice(at + (insert === "" ? 7 : 1));
    return text;
  });

/** Policies of the right shape with wrong and right values in random places. */
const scalar = fc.oneof(
  fc.string(),
  fc.integer({ min: -1, max: 70_000 }),
  fc.boolean(),
  fc.constant(null),
  fc.constantFrom("rest", "full", "skip", "enforce", "/**", "*.a.example", "GET"),
);
const shaped = fc.record(
  {
    version: fc.oneof({ weight: 5, arbitrary: fc.constant(1) }, scalar),
    filesystem_policy: fc.dictionary(
      fc.constantFrom("include_workdir", "read_only", "read_write"),
      fc.oneof(scalar, fc.array(scalar)),
    ),
    network_policies: fc.dictionary(
      fc.string({ maxLength: 8 }),
      fc.record(
        {
          endpoints: fc.array(
            fc.dictionary(
              fc.constantFrom(
                "host",
                "port",
                "ports",
                "path",
                "protocol",
                "tls",
                "access",
                "rules",
                "deny_rules",
                "allowed_ips",
                "mcp",
                "enforcement",
              ),
              fc.oneof(
                scalar,
                fc.array(scalar),
                fc.array(
                  fc.record({ allow: fc.dictionary(fc.constantFrom("method", "path", "query", "params"), scalar) }),
                ),
              ),
            ),
            { maxLength: 3 },
          ),
          binaries: fc.array(fc.oneof(scalar, fc.record({ path: scalar }))),
        },
        { requiredKeys: [] },
      ),
      { maxKeys: 3 },
    ),
  },
  { requiredKeys: [] },
);

describe("any text", () => {
  it("gives a policy that round-trips, or violations with a place and a next step", () => {
    let accepted = 0;
    fc.assert(
      fc.property(
        fc.oneof(
          mutated,
          shaped.map((value) => stringify(value)),
          fc.string(),
        ),
        (text) => {
          const result = parsePolicy(text);
          if (!result.ok) {
            expect(result.violations.length).toBeGreaterThan(0);
            for (const violation of result.violations) {
              expect(violation.code).toMatch(/^[a-z0-9_]+$/);
              expect(violation.message).not.toBe("");
              expect(violation.next).not.toBe("");
            }
            return;
          }
          accepted += 1;
          const { policy } = result;
          const again = parsePolicy(serializePolicy(policy));
          expect(again.ok && again.policy).toEqual(policy);
          const wire = policyFromProto(policyToProto(policy));
          expect(wire.ok && wire.policy).toEqual(policy);
          expect(wire.ok && policyHash(wire.policy)).toBe(policyHash(policy));
          compilePolicy(policy).connect({ host: "a.example", port: 443, process: { exe: "/x", ancestors: [] } });
        },
      ),
      { numRuns: 800 },
    );
    expect(accepted).toBeGreaterThan(15);
  }, 60_000);

  it("as a request target is canonical or refused", () => {
    fc.assert(
      fc.property(
        fc.oneof(
          fc.string(),
          fc.string().map((text) => `/${text}`),
          fc.webUrl(),
        ),
        fc.boolean(),
        (target, allowEncodedSlash) => {
          const result = canonicalTarget(target, { allowEncodedSlash });
          if (!result.ok) return;
          expect(result.path).toMatch(/^\/[\x21-\x7e]*$/);
          parseQuery(result.query);
        },
      ),
      { numRuns: 5000 },
    );
  });
});
