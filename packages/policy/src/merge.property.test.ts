import fc from "fast-check";
import { expect, test } from "vitest";
import { anyBinary, type MergeOperation, mergePolicy } from "./merge.ts";
import { EMPTY_ENDPOINT, EMPTY_RULE, type Endpoint, type NetworkRule, type Policy, sortedMap } from "./model.ts";

const PROGRAMS = ["/a", "/b", "/c"];

const endpoint: fc.Arbitrary<Endpoint> = fc
  .record({
    host: fc.constantFrom("x.example.com", "X.example.com", "y.example.com"),
    ports: fc.uniqueArray(fc.constantFrom(80, 443, 8443), { minLength: 1 }),
    path: fc.constantFrom("", "/v1/**"),
    protocol: fc.constantFrom("" as const, "rest" as const, "websocket" as const),
    access: fc.constantFrom("" as const, "read-only" as const, "full" as const),
    rules: fc.subarray(["GET", "POST"].map((method) => ({ ...EMPTY_RULE, method, path: "/r" }))),
  })
  .map((fields) => {
    const access = fields.protocol === "" ? "" : fields.access;
    return { ...EMPTY_ENDPOINT, ...fields, access, rules: fields.protocol === "" || access !== "" ? [] : fields.rules };
  });
const rule: fc.Arbitrary<NetworkRule> = fc.record({
  name: fc.constant(""),
  // Two of one place in one rule contradict each other or say the same.
  endpoints: fc.uniqueArray(endpoint, {
    minLength: 1,
    maxLength: 3,
    selector: ({ host, path }) => host.toLowerCase() + path,
  }),
  binaries: fc.oneof(fc.subarray(PROGRAMS, { minLength: 1 }), fc.constant(["**"])),
});
const policy: fc.Arbitrary<Policy> = fc
  .dictionary(fc.constantFrom("p", "q", "r"), rule, { maxKeys: 3 })
  .map((rules) => ({ version: 1, networkPolicies: sortedMap(Object.entries(rules)), networkMiddlewares: new Map() }));
const added: fc.Arbitrary<MergeOperation & { kind: "add_rule" }> = fc.record({
  kind: fc.constant("add_rule" as const),
  rule: fc.constantFrom("p", "q", "new"),
  content: rule,
});

/** Who may connect where. */
function reach(rules: Iterable<NetworkRule>): Set<string> {
  const found = new Set<string>();
  for (const { endpoints, binaries } of rules) {
    for (const program of anyBinary(binaries) ? [...PROGRAMS, "anything"] : binaries) {
      for (const { host, ports, path } of endpoints) {
        for (const port of ports) found.add(`${program} ${host.toLowerCase()}:${port}${path}`);
      }
    }
  }
  return found;
}

test("adding a rule opens what it declares, all of it, and nothing else", () => {
  let accepted = 0;
  fc.assert(
    fc.property(policy, added, (before, operation) => {
      const result = mergePolicy(before, [operation]);
      if (!result.ok) return;
      accepted += 1;
      const wanted = reach([...before.networkPolicies.values(), operation.content]);
      const named = before.networkPolicies.get(operation.rule);
      const open = named !== undefined && anyBinary(named.binaries);
      const got = reach(result.policy.networkPolicies.values());
      expect(got.difference(wanted)).toEqual(new Set());
      // A rule for any program takes up no others, and has what they need already.
      if (!open) expect(wanted.difference(got)).toEqual(new Set());
    }),
    { numRuns: 2_000 },
  );
  expect(accepted).toBeGreaterThan(500);
});

test("adding a rule twice is adding it once, and removing what was added alone gives back what was", () => {
  fc.assert(
    fc.property(policy, added, (before, operation) => {
      const once = mergePolicy(before, [operation]);
      if (!once.ok) return;
      const twice = mergePolicy(once.policy, [operation]);
      expect(twice.ok && [...twice.policy.networkPolicies]).toEqual([...once.policy.networkPolicies]);
      if (before.networkPolicies.has("new") || !once.policy.networkPolicies.has("new")) return;
      const undone = mergePolicy(once.policy, [{ kind: "remove_rule", rule: "new" }]);
      expect(undone.ok && [...undone.policy.networkPolicies]).toEqual([...before.networkPolicies]);
    }),
    { numRuns: 1_000 },
  );
});
