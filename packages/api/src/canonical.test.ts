import { clone, create, type DescMessage, toBinary } from "@bufbuild/protobuf";
import { type ReflectMessage, reflect } from "@bufbuild/protobuf/reflect";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { canonicalBytes } from "./canonical.ts";
import {
  CreateProviderRequestSchema,
  CreateSandboxRequestSchema,
  UpdateConfigRequestSchema,
} from "./generated/openshell_pb.js";
import { NetworkMiddlewareConfigSchema, NetworkPolicyRuleSchema, SandboxPolicySchema } from "./generated/sandbox_pb.js";
import { anyMessage, picker } from "./testing/any-message.ts";

/** The same by the library's own means: a copy in which every map is written again in order. */
function reference(schema: DescMessage, message: never, without: readonly string[] = []): Uint8Array {
  const copy = clone(schema, message);
  const reflected = reflect(schema, copy);
  for (const field of schema.fields) if (without.includes(field.name)) reflected.clear(field);
  sortMaps(reflected);
  return toBinary(schema, copy);
}

function sortMaps(message: ReflectMessage): void {
  for (const field of message.fields) {
    if (!message.isSet(field)) continue;
    if (field.fieldKind === "message") {
      const child = message.get(field);
      sortMaps(child);
      message.set(field, child);
    } else if (field.fieldKind === "list" && field.listKind === "message") {
      const list = message.get(field);
      for (const [index, item] of [...list].entries()) {
        sortMaps(item as ReflectMessage);
        list.set(index, item);
      }
    } else if (field.fieldKind === "map") {
      const map = message.get(field);
      const entries = [...map.entries()].toSorted(([a], [b]) => (String(a) < String(b) ? -1 : 1));
      map.clear();
      for (const [key, value] of entries) {
        if (field.mapKind === "message") sortMaps(value as ReflectMessage);
        map.set(key, value);
      }
    }
  }
}

describe("the bytes that stand for a message", () => {
  const schemas = [
    SandboxPolicySchema,
    CreateSandboxRequestSchema,
    UpdateConfigRequestSchema,
    CreateProviderRequestSchema,
  ];

  it.each(schemas.map((schema) => [schema.name, schema] as const))("are those of its ordered copy: %s", (_, schema) => {
    fc.assert(
      fc.property(fc.array(fc.nat(0xff_ff), { minLength: 20, maxLength: 200 }), (numbers) => {
        const pick = picker(numbers);
        const message = anyMessage(schema, pick);
        const before = toBinary<DescMessage>(schema, message);
        const without = pick(2) === 0 ? [] : schema.fields.filter(() => pick(4) === 0).map(({ name }) => name);
        expect(canonicalBytes<DescMessage>(schema, message, without)).toEqual(
          reference(schema, message as never, without),
        );
        expect(toBinary<DescMessage>(schema, message)).toEqual(before);
      }),
      { numRuns: 300 },
    );
  });

  it("are equal whatever the order of maps and of objects in them, also where the message cannot be changed", () => {
    const policy = (order: (keys: string[]) => string[]) => {
      const each = <Value>(keys: string[], make: (key: string) => Value) =>
        Object.fromEntries(order(keys).map((key) => [key, make(key)]));
      const config = each(["x", "y"], (key) => ({ [key]: [each(["n", "m"], (key) => key)] }));
      return create(SandboxPolicySchema, {
        networkPolicies: each(["p", "q"], (name) => create(NetworkPolicyRuleSchema, { name })),
        networkMiddlewares: each(["m", "o"], (name) => create(NetworkMiddlewareConfigSchema, { name, config })),
      });
    };
    const one = policy((keys) => keys);
    const other = policy((keys) => keys.toReversed());
    Object.freeze(one);
    Object.freeze(one.networkPolicies);
    expect(toBinary(SandboxPolicySchema, one)).not.toEqual(toBinary(SandboxPolicySchema, other));
    expect(canonicalBytes(SandboxPolicySchema, one)).toEqual(canonicalBytes(SandboxPolicySchema, other));
  });
});
