import { create, type DescMessage, fromBinary, toBinary } from "@bufbuild/protobuf";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { Code } from "@connectrpc/connect";
import { CreateSandboxRequestSchema, SandboxPhase } from "@openshell/api";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Harness } from "../testing/harness.ts";
import { unknownFields } from "../unknown-fields.ts";
import { call, hasRequestId, isBuilt, refusal, requestOf, rpcNames, sampleOf } from "./calls.ts";

const extra = new BinaryWriter().tag(4_000, WireType.Varint).uint32(1).finish();
const withExtra = (schema: DescMessage, init: object) =>
  fromBinary(schema, new Uint8Array([...toBinary(schema, create(schema, init as never)), ...extra]));

describe("fields of a newer release", () => {
  let gateway: Harness;
  beforeAll(async () => {
    gateway = await Harness.open();
    await gateway.create({ name: "x" });
    await gateway.phase(SandboxPhase.READY, "x");
  });
  afterAll(() => gateway[Symbol.asyncDispose]());

  const built = rpcNames.filter(isBuilt);

  it.each(built.filter(hasRequestId))("are refused by %s, which would change something without them", async (rpc) => {
    const { schema, start } = requestOf(rpc);
    const request = withExtra(schema, sampleOf(rpc)) as never;
    const { code, fields, message } = await refusal(gateway, rpc, request);
    expect([code, fields]).toEqual([Code.InvalidArgument, [start ? "start.#4000" : "#4000"]]);
    expect(message).toMatch(/field 4000 of (?:the request|start) is not known to this gateway\. Leave it out/);
  });

  it.each(built.filter((rpc) => !hasRequestId(rpc)))("are left out by %s, which only reads", async (rpc) => {
    const plain = await call(gateway, rpc, sampleOf(rpc));
    const { error } = await call(gateway, rpc, withExtra(requestOf(rpc).schema, sampleOf(rpc)) as never);
    expect(error?.rawMessage).toBe(plain.error?.rawMessage);
  });

  it("are found at any depth: in lists, maps, choices and optional messages", () => {
    const nested = (tags: readonly number[], inner: Uint8Array): Uint8Array =>
      tags.reduceRight(
        (bytes, tag) => new BinaryWriter().tag(tag, WireType.LengthDelimited).bytes(bytes).finish(),
        inner,
      );
    const at = (...tags: number[]) =>
      unknownFields(CreateSandboxRequestSchema, fromBinary(CreateSandboxRequestSchema, nested(tags, extra)));
    expect(at()).toEqual([{ path: "", number: 4_000 }]);
    expect(at(1)).toEqual([{ path: "spec", number: 4_000 }]);
    expect(at(1, 6)).toEqual([{ path: "spec.template", number: 4_000 }]);
    // No arm: the selector itself is refused.
    expect(at(7)).toEqual([]);
    expect(at(7, 2)).toEqual([{ path: "workspace_scope.all_workspaces", number: 4_000 }]);
    expect(at(9)).toEqual([{ path: "service_exposures[0]", number: 4_000 }]);
    const { path } = at(1, 7, 5, 2, 2)[0] ?? { path: "" };
    expect(path).toMatch(/^spec\.policy\.\w+\[\]\.\w+\[0\]$/);
  });
});
