import { create, type DescMessage, toBinary } from "@bufbuild/protobuf";
import { SandboxPolicySchema } from "@openshell/api";
import {
  ConfigUpdateSchema,
  ProviderEnvironmentSchema,
  ProviderValueSchema,
  SandboxConfigSchema,
  SessionAcceptedSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { anyMessage, picker } from "@openshell/api/testing/any-message.ts";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { deepFreeze } from "../store/frozen.ts";
import { redactSecrets } from "./redaction.ts";
import { fits, mostBytes } from "./size.ts";

describe("the size of a message", () => {
  it.each(
    [ConfigUpdateSchema, SessionAcceptedSchema, SandboxPolicySchema].map((schema) => [schema.name, schema] as const),
  )("is never more than what is counted: %s", (_, schema: DescMessage) => {
    fc.assert(
      fc.property(fc.array(fc.nat(0xff_ff), { minLength: 20, maxLength: 200 }), (numbers) => {
        const message = anyMessage(schema, picker(numbers));
        const bytes = toBinary(schema, message).length;
        expect(mostBytes(message)).toBeGreaterThanOrEqual(bytes);
        expect([fits(schema, message, bytes), fits(schema, message, bytes - 1)]).toEqual([true, false]);
      }),
      { numRuns: 200 },
    );
  });

  it("counts secrets that debug output leaves out", () => {
    const value = create(ProviderValueSchema, { name: "TOKEN", value: "x".repeat(5_000) });
    const environment = redactSecrets(
      ProviderEnvironmentSchema,
      create(ProviderEnvironmentSchema, { values: [value] }),
    );
    expect(mostBytes(environment)).toBeGreaterThan(5_000);
    expect(fits(ProviderEnvironmentSchema, environment, 5_000)).toBe(false);
  });

  it("is counted once for what cannot change, and anew for what can", () => {
    const policy = deepFreeze(create(SandboxPolicySchema, { networkPolicies: {} }));
    const config = create(SandboxConfigSchema, { policy, settings: { a: "1" } });
    const first = mostBytes(config);
    expect(mostBytes(config)).toBe(first);
    config.settings["b"] = "2";
    expect(mostBytes(config)).toBeGreaterThan(first);
  });
});
