import { create, toBinary } from "@bufbuild/protobuf";
import { SandboxSpecSchema } from "@openshell/api/generated/openshell_pb.js";
import { describe, expect, it } from "vitest";
import { sharedMessages } from "./shared-messages.ts";

const spec = (command: string): Uint8Array =>
  toBinary(
    SandboxSpecSchema,
    create(SandboxSpecSchema, { command: [command], policy: { networkPolicies: { a: { name: "a" } } } }),
  );

describe("shared messages", () => {
  it("are one and the same for equal bytes, and frozen through and through", () => {
    const decode = sharedMessages(SandboxSpecSchema, 1024 * 1024);
    const first = decode(spec("one"));
    expect(first.command).toEqual(["one"]);
    expect(decode(Buffer.concat([spec("one")]))).toBe(first);
    expect(decode(spec("two")).command).toEqual(["two"]);
    expect(() => first.command.push("more")).toThrow(TypeError);
    expect(() => {
      first.policy!.networkPolicies["a"]!.name = "b";
    }).toThrow(TypeError);
  });

  it("are forgotten beyond the limit, oldest first", () => {
    const decode = sharedMessages(SandboxSpecSchema, 10 * 9 * spec("00").length);
    const first = decode(spec("00"));
    for (let index = 1; index < 10; index += 1) decode(spec(String(index).padStart(2, "0")));
    expect(decode(spec("00"))).toBe(first);
    for (let index = 10; index < 30; index += 1) decode(spec(String(index)));
    expect(decode(spec("00"))).not.toBe(first);
    expect(decode(spec("00"))).toEqual(first);
  });
});
