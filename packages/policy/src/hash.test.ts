import { createHash } from "node:crypto";
import { describe, expect, it } from "vitest";
import { policyHash } from "./hash.ts";
import { policyFromProto, policyToProto } from "./proto.ts";
import { serializePolicy } from "./serialize.ts";
import { sha256Hex } from "./sha256.ts";
import { EVERY_KEY, policyOf } from "./testing/policies.ts";

describe("sha256", () => {
  it("agrees with the platform at every length around a block", () => {
    for (let length = 0; length < 300; length += 1) {
      const data = Uint8Array.from({ length }, (_, i) => (i * 7 + length) & 0xff);
      expect(sha256Hex(data)).toBe(createHash("sha256").update(data).digest("hex"));
    }
  });
});

describe("policyHash", () => {
  it("is the same for the same policy in another order and spelling", () => {
    const a = "version: 1\nnetwork_policies: {a: {endpoints: [{host: x.example, port: 1}]}, b: {name: b}}";
    const b =
      '{"network_policies": {"b": {}, "a": {"endpoints": [{"ports": [1], "host": "x.example"}]}}, "version": 1}';
    expect(policyHash(policyOf(a))).toBe(policyHash(policyOf(b)));
    expect(policyHash(policyOf(a))).toMatch(/^[0-9a-f]{64}$/);
  });

  it("survives YAML and the wire", () => {
    const policy = policyOf(EVERY_KEY);
    const wire = policyFromProto(policyToProto(policy));
    expect(wire.ok && policyHash(wire.policy)).toBe(policyHash(policy));
    expect(policyHash(policyOf(serializePolicy(policy)))).toBe(policyHash(policy));
  });

  it("changes with every line that decides", () => {
    const base = policyHash(policyOf(EVERY_KEY));
    for (const [from, to] of [
      ["port: 9443", "port: 9444"],
      ["enforcement: audit", "enforcement: enforce"],
      ["mode: redact", "mode: mask"],
      ["hard_requirement", "best_effort"],
      ['force: "true"', 'force: "yes"'],
      ["access: read-only", "access: full"],
      ["operation_name: Viewer", "operation_name: Viewers"],
      ["/usr/bin/wget", "/usr/bin/wget2"],
    ] as const) {
      expect(EVERY_KEY).toContain(from);
      expect([from, policyHash(policyOf(EVERY_KEY.replace(from, to)))]).not.toEqual([from, base]);
    }
  });
});
