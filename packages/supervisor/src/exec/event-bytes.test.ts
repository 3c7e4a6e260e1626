import { fromBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema } from "@openshell/api";
import { describe, expect, it } from "vitest";
import { exitEvent, outputEvent } from "./event-bytes.ts";

describe("exec events in wire form", () => {
  it.each([0, 1, 127, 128, 16_384, 65_536])("decodes output of %i bytes", (size) => {
    const data = new Uint8Array(size).map((_, index) => index & 0xff);
    for (const stream of ["stdout", "stderr"] as const) {
      const event = fromBinary(ExecSandboxEventSchema, outputEvent(stream, data));
      expect(event.payload.case).toBe(stream);
      expect(event.payload.case === stream && Buffer.compare(event.payload.value.data, data)).toBe(0);
    }
  });
  it.each([0, 1, 127, 128, 137, 255])("decodes exit code %i", (code) => {
    const event = fromBinary(ExecSandboxEventSchema, exitEvent(code));
    expect(event.payload).toMatchObject({ case: "exit", value: { exitCode: code } });
  });
});
