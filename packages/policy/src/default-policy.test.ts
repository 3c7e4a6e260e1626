import { describe, expect, it } from "vitest";
import { DEFAULT_POLICY, effectiveFilesystem } from "./default-policy.ts";
import { parsePolicy } from "./parse.ts";
import { serializePolicy } from "./serialize.ts";
import { endpointText, policyOf } from "./testing/policies.ts";

describe("the default policy", () => {
  it("is valid and allows no connection", () => {
    expect(parsePolicy(serializePolicy(DEFAULT_POLICY))).toMatchObject({ ok: true, policy: DEFAULT_POLICY });
    expect(DEFAULT_POLICY.networkPolicies.size).toBe(0);
  });

  it("gets the baseline with the first network rule only, and nothing twice", () => {
    expect(effectiveFilesystem(DEFAULT_POLICY)).toEqual(DEFAULT_POLICY.filesystem);
    const policy = policyOf(
      `${endpointText("host: a.example, port: 1")}filesystem_policy: {read_only: [/usr], read_write: [/etc]}\n`,
    );
    expect(effectiveFilesystem(policy)).toEqual({
      includeWorkdir: false,
      readOnly: ["/usr", "/lib", "/app", "/var/log", "/proc", "/dev/urandom"],
      readWrite: ["/etc", "/tmp", "/dev/null"],
    });
    expect(effectiveFilesystem(policyOf("version: 1"))).toEqual({ includeWorkdir: true, readOnly: [], readWrite: [] });
  });
});
