import { create, type DescMessage, fromBinary, toBinary } from "@bufbuild/protobuf";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { Code } from "@connectrpc/connect";
import { describe, expect, it } from "vitest";
import { undecodable } from "./decode-error.ts";
import { ApiError, readErrorDetails } from "./errors.ts";
import { WorkspaceSelectorSchema } from "./generated/datamodel_pb.js";
import {
  CreateSandboxRequestSchema,
  ExecSandboxInputSchema,
  GetSandboxRequestSchema,
  OpenShell,
} from "./generated/openshell_pb.js";
import { resolveScope } from "./selectors.ts";

/** Names that a 0.0.x client may have sent: letters decide what their bytes look like to a decoder. */
const NAMES = [
  "default",
  "a",
  "abcdefghi",
  "b",
  "c",
  "team-a",
  "x1",
  "0",
  "9",
  "hi",
  "zzzzz",
  "m2",
  "production",
  "e2345",
];
const text = (number: number, value: string) => new BinaryWriter().tag(number, WireType.LengthDelimited).string(value);

/** What a server answers these bytes: the violations of an undecodable request, or of the selector that came out. */
function answer(schema: DescMessage, bytes: Uint8Array): { code: Code; fields: string[]; message: string } {
  let error: unknown;
  try {
    const message = fromBinary(schema, bytes) as { workspaceScope?: undefined };
    resolveScope(message.workspaceScope, { all: true });
  } catch (thrown) {
    error = thrown instanceof ApiError ? thrown : undecodable(schema, bytes);
  }
  const refused = error as ReturnType<typeof undecodable>;
  return {
    code: refused.code,
    fields: readErrorDetails(refused).violations.map(({ field }) => field),
    message: refused.rawMessage,
  };
}

const scoped = OpenShell.methods.flatMap(({ name, input }) => {
  const field = input.fields.find((candidate) => candidate.message === WorkspaceSelectorSchema);
  return field === undefined ? [] : [[name, input, field.number] as const];
});

describe("a request of a 0.0.x client", () => {
  it("finds the requests with a selector", () => expect(scoped.length).toBeGreaterThan(40));

  it.each(scoped)("to %s is refused, naming the selector, whatever the workspace is called", (_, input, number) => {
    for (const name of NAMES) {
      const { code, fields, message } = answer(input, text(number, name).finish());
      expect([name, code, fields[0]]).toEqual([name, Code.InvalidArgument, "workspace_scope"]);
      expect(message).toMatch(/^workspace_scope: /);
    }
  });

  it("is refused inside the first message of a stream", () => {
    const start = text(12, "default").finish();
    const bytes = new BinaryWriter().tag(1, WireType.LengthDelimited).bytes(start).finish();
    expect(answer(ExecSandboxInputSchema, bytes).fields).toEqual(["start.workspace_scope"]);
  });

  it("is refused where the number of its workspace means something else now", () => {
    const bytes = text(5, "default").finish();
    expect(answer(CreateSandboxRequestSchema, bytes).fields).toContain("workspace_scope");
  });
});

describe("undecodable", () => {
  const whole = toBinary(
    CreateSandboxRequestSchema,
    create(CreateSandboxRequestSchema, {
      workspaceScope: { selection: { case: "workspace", value: "default" } },
      name: "box",
      spec: { environment: { A: "1" }, policy: { networkPolicies: { a: { endpoints: [{ host: "h", port: 1 }] } } } },
    }),
  );

  it("names a text that is not UTF-8, and the path to it", () => {
    const bad = new BinaryWriter()
      .tag(1, WireType.LengthDelimited)
      .bytes(new Uint8Array([0xff]))
      .finish();
    expect(answer(GetSandboxRequestSchema, bad).fields).toContain("name");
    const spec = new BinaryWriter().tag(1, WireType.LengthDelimited).bytes(bad).finish();
    expect(answer(CreateSandboxRequestSchema, spec).fields).toContain("spec.log_level");
  });

  it("answers millions of wrong fields as fast as few", () => {
    const wrong = new Uint8Array(4 * 1024 * 1024);
    // A message sent as a number, then an empty selector, over and over; the last byte begins what never ends.
    for (let index = 0; index + 4 <= wrong.length; index += 4) wrong.set([0x08, 0x01, 0x3a, 0x00], index);
    wrong[wrong.length - 1] = 0xff;
    const started = performance.now();
    const error = undecodable(CreateSandboxRequestSchema, wrong);
    expect(performance.now() - started).toBeLessThan(500);
    expect(error.code).toBe(Code.InvalidArgument);
    expect(readErrorDetails(error).violations[0]?.field).toBe("spec");
  });

  it("answers every truncation of a request, and random bytes, without failing itself", () => {
    for (let length = 0; length < whole.length; length++) {
      const error = undecodable(CreateSandboxRequestSchema, whole.subarray(0, length));
      expect(error.code).toBe(Code.InvalidArgument);
      expect(readErrorDetails(error).violations.length).toBeGreaterThan(0);
    }
    for (let round = 0; round < 2_000; round++) {
      const bytes = Uint8Array.from({ length: round % 61 }, (_, index) => (index * 7919 + round * 104_729) % 251);
      for (const [, input] of scoped.slice(round % scoped.length, (round % scoped.length) + 1))
        expect(undecodable(input, bytes).rawMessage).not.toBe("");
    }
  });
});
